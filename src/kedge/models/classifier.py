"""Naming images: as one of some classes, those that a model knows and those of a few examples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from kedge.data.files.archives import is_hidden
from kedge.data.lazy_images import LazyImages
from kedge.data.table import ImageTable
from kedge.errors import KedgeError, require
from kedge.models.drift_compensation import pool_with_mean
from kedge.models.model import Model
from kedge.utils import progress
from kedge.utils.config_io import validated
from kedge.utils.progress import silent, task
from kedge.utils.text import plain_name


@dataclass(frozen=True, eq=False)
class Classifier:
    """Names images as one of some classes; `Model.classifier` makes it."""

    model: Model
    classes: tuple[str, ...]
    representatives: Float[Tensor, "k r"]

    def probabilities(self, images: Any) -> Float[Tensor, "n k"]:
        """Of each class for each image. Images are an array of the size that the model takes
        (uint8, N×C×H×W, N×H×W×C or N×H×W), or paths, Pillow images or arrays of any size."""
        return torch.cat(list(self._some(images)))

    def predict(self, images: Any) -> list[str]:
        """The name of the likeliest class of each image."""
        return [best[0][0] for best in self.top(images, 1)]

    def top(self, images: Any, n: int = 3) -> list[list[tuple[str, float]]]:
        """The n likeliest classes of each image (all, if there are fewer), each with its
        probability, the likeliest first."""
        n = validated("n", int, n)
        require(n >= 1, f"n is {n}: at least the likeliest class is named.")
        found = []
        for some in self._some(images):
            best = some.topk(min(n, len(self.classes)), 1)
            for numbers, values in zip(best.indices.tolist(), best.values.tolist(), strict=True):
                names = (self.classes[i] for i in numbers)
                found.append(list(zip(names, values, strict=True)))
        return found

    @torch.no_grad()
    def _some(self, images: Any) -> Iterator[Float[Tensor, "n k"]]:
        """Probabilities, of some images at a time: with thousands of classes all may be many."""
        if not isinstance(images, Tensor | np.ndarray | LazyImages):
            images = self._pictures(images if isinstance(images, list | tuple) else [images])
        # One is enough of a file, whose images have one size.
        few = images[:1] if isinstance(images, LazyImages) else images
        table = ImageTable.build(few, [0] * len(few), ["?"], "images")
        self.model.check_images(table)
        pixels = images if isinstance(images, LazyImages) else table.images
        size = self.model.embed_batch
        many = (
            task("classifying images", len(images)) if len(images) > size else nullcontext(silent)
        )
        with many as tick:
            for batch in pixels.split(size):
                features = self.model.embed(batch, tick)
                yield self.model.head.logits(features, self.representatives).softmax(-1)

    def _pictures(self, images: Sequence[Any]) -> Tensor | LazyImages:
        """Brought to what the model takes, each in its place."""
        require(len(images) > 0, "No image was given to be named.")
        for path in (Path(image) for image in images if isinstance(image, str | Path)):
            require(
                not path.is_dir(),
                f"{path}: this is a folder; give the paths of its images.",
            )
            require(path.exists(), f"{path}: there is no image here.")
        table = self.model.open({"?": images})
        lost = len(images) - len(table)
        require(
            lost == 0,
            f"{lost} of {len(images)} images to be named cannot be read; give them one by one to "
            "see which, or the command 'kedge predict', which names the others.",
        )
        return table.images


def build_classifier(model: Model, support: Any, known: bool | Sequence[str] | None) -> Classifier:
    """See `Model.classifier`."""
    known = support is None if known is None else known
    if isinstance(known, str):
        raise KedgeError(f"known='{known}': give the names of classes as a list.")
    names = model.classes if known is True else tuple(dict.fromkeys(known or ()))
    if unknown := set(names) - set(model.classes):
        raise KedgeError(f"The model does not know a class named '{min(unknown)}'.")
    table = None if support is None else _examples(model, support)
    new = () if table is None else table.classes
    if not names and not new:
        nothing = "knows no class yet" if known is True else "was given none to choose among"
        raise KedgeError(f"The model {nothing}: give it examples of some classes.")
    features = () if table is None else model.embed(table.images).split(table.counts.tolist())
    examples = dict(zip(new, features, strict=True))
    with torch.no_grad():
        return _beside(model, names, examples) if names else _apart(model, examples)


def _apart(model: Model, examples: Mapping[str, Float[Tensor, "_ d"]]) -> Classifier:
    """Classes that are known from their examples alone."""
    counts = torch.tensor([len(some) for some in examples.values()], device=model.device)
    padded = nn.utils.rnn.pad_sequence(list(examples.values()), batch_first=True)
    present = torch.arange(padded.shape[1], device=model.device) < counts[:, None]
    return Classifier(model, tuple(examples), model.head.fit(padded, present))


def _beside(
    model: Model, known: Sequence[str], examples: Mapping[str, Float[Tensor, "_ d"]]
) -> Classifier:
    """Each known class has an example, too: its place."""
    places = model.places_of(known)
    if places is None and examples:
        raise KedgeError(
            "The file of this model does not say where its classes are, so they cannot be "
            "compared with examples: leave out the known ones, or give examples of them alone."
        )
    if places is None:
        return Classifier(model, tuple(known), model.anchors_of(known))
    place = dict(zip(known, places, strict=True))
    together = {name: place[name][None] for name in known if name not in examples}
    if in_both := len(known) - len(together):
        progress.note(
            f"of {in_both} of the known classes there are examples: these add to what is remembered"
        )
    for name, some in examples.items():
        together[name] = pool_with_mean(some, place.get(name))
    # Not `fit`, which is for small tasks: of known classes there may be thousands.
    points = model.head.from_images(list(together.values()))
    return Classifier(model, tuple(together), points)


def _examples(model: Model, support: Any) -> ImageTable:
    """Every class that is meant must have an example: images of others would be named wrong."""
    table = model.open(support)
    empty = [name for name, n in zip(table.classes, table.counts.tolist(), strict=True) if n == 0]
    if isinstance(support, Mapping):  # what has no image is not among the classes
        empty += [str(name) for name, images in support.items() if len(images) == 0]
    if empty:
        raise KedgeError(f"{table.source}: class '{empty[0]}' has no example.")
    if isinstance(support, str | Path) and Path(support).is_dir():
        inside = [path for path in Path(support).iterdir() if path.is_dir()]
        folders = {plain_name(path.name) for path in inside}
        lost = sorted(name for name in folders - set(table.classes) if not is_hidden(name))
        if lost and folders & set(table.classes):  # and not "train" and "test", say
            raise KedgeError(
                f"{Path(support) / lost[0]}: this class has no example that can be read: add "
                "some, or take it away."
            )
    return table
