"""Classification of images: among classes that a model knows and classes given by examples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from kedge.data.decode import ImageSpec
from kedge.data.files.archives import is_hidden
from kedge.data.lazy_images import LazyImages
from kedge.data.table import ImageTable
from kedge.errors import KedgeError, require
from kedge.models.heads import Head
from kedge.utils import progress
from kedge.utils.config_io import validated
from kedge.utils.progress import Tick, no_tick, task
from kedge.utils.text import normalize_name

VIRTUAL_SAMPLES = 10  # images, as which a stored class mean counts beside new examples


@runtime_checkable
class ClassifierModel(Protocol):
    """The part of a `Model` that a classifier needs."""

    @property
    def head(self) -> Head: ...
    @property
    def classes(self) -> tuple[str, ...]: ...
    @property
    def image_spec(self) -> ImageSpec: ...
    @property
    def embed_batch_size(self) -> int: ...
    def embed(self, images: Any, tick: Tick = ...) -> Float[Tensor, "n d"]: ...
    def open(self, source: Any) -> ImageTable: ...
    def check_images(self, table: ImageTable) -> None: ...
    def anchors_of(self, classes: Sequence[str]) -> Float[Tensor, "k r"]: ...
    def class_means_of(self, classes: Sequence[str]) -> Float[Tensor, "k d"] | None: ...


@dataclass(frozen=True, eq=False)
class Classifier:
    """Assigns images to one of a fixed list of classes; made by `Model.classifier`."""

    model: ClassifierModel
    classes: tuple[str, ...]
    representatives: Float[Tensor, "k r"]

    def probabilities(self, images: Any) -> Float[Tensor, "n k"]:
        """The probability of each class for each image.

        Images are an array of the size that the model takes (uint8, N×C×H×W, N×H×W×C or N×H×W),
        or paths, Pillow images or arrays of any size.
        """
        return torch.cat(list(self._batches(images)))

    def predict(self, images: Any) -> list[str]:
        """The name of the most probable class of each image."""
        return [best[0][0] for best in self.top(images, 1)]

    def top(self, images: Any, n: int = 3) -> list[list[tuple[str, float]]]:
        """The n most probable classes of each image (at most all) with their probabilities, the
        most probable first."""
        n = validated("n", int, n)
        require(n >= 1, f"n is {n}: it must be at least 1.")
        predictions = []
        for probabilities in self._batches(images):
            best = probabilities.topk(min(n, len(self.classes)), 1)
            for indices, values in zip(best.indices.tolist(), best.values.tolist(), strict=True):
                names = (self.classes[i] for i in indices)
                predictions.append(list(zip(names, values, strict=True)))
        return predictions

    @torch.no_grad()
    def _batches(self, images: Any) -> Iterator[Float[Tensor, "b k"]]:
        """Probabilities batch by batch: for thousands of classes, all of them may be too large."""
        if not isinstance(images, Tensor | np.ndarray | LazyImages):
            images = self._load(images if isinstance(images, list | tuple) else [images])
        # The images of a packed file all have the same size: checking one is enough.
        sample = images[:1] if isinstance(images, LazyImages) else images
        table = ImageTable.build(sample, [0] * len(sample), ["?"], "images")
        self.model.check_images(table)
        pixels = images if isinstance(images, LazyImages) else table.images
        n, size = len(images), self.model.embed_batch_size
        with task("classifying images", n) if n > size else nullcontext(no_tick) as tick:
            for batch in pixels.split(size):
                features = self.model.embed(batch, tick)
                yield self.model.head.logits(features, self.representatives).softmax(-1)

    def _load(self, images: Sequence[Any]) -> Tensor | LazyImages:
        """Images from paths, Pillow images or arrays, in the same order."""
        require(len(images) > 0, "There is no image to classify.")
        for path in (Path(image) for image in images if isinstance(image, str | Path)):
            require(not path.is_dir(), f"{path}: this is a folder; give the paths of its images.")
            require(path.exists(), f"{path}: there is no such image.")
        table = self.model.open({"?": images})
        n_failed = len(images) - len(table)
        require(
            n_failed == 0,
            f"{n_failed} of {len(images)} images cannot be read. Classify them one by one to see "
            "which, or use 'kedge predict', which skips them.",
        )
        return table.images


def build_classifier(
    model: ClassifierModel, support: Any, known: bool | Sequence[str] | None
) -> Classifier:
    """See `Model.classifier`."""
    known = support is None if known is None else known
    if isinstance(known, str):
        raise KedgeError(f"known='{known}': give the names of classes as a list.")
    names = model.classes if known is True else tuple(dict.fromkeys(known or ()))
    if unknown := set(names) - set(model.classes):
        raise KedgeError(f"The model does not know a class named '{min(unknown)}'.")
    examples: dict[str, Tensor] = {}
    if support is not None:
        table = _open_support(model, support)
        features = model.embed(table.images).split(table.counts.tolist())
        examples = dict(zip(table.classes, features, strict=True))
    if not names and not examples:
        reason = "knows no class yet" if known is True else "was given no class to choose from"
        raise KedgeError(f"The model {reason}: give examples of some classes.")
    with torch.no_grad():
        return _with_known(model, names, examples) if names else _few_shot(model, examples)


def _few_shot(model: ClassifierModel, examples: Mapping[str, Float[Tensor, "_ d"]]) -> Classifier:
    """A classifier among classes that are given by examples only."""
    padded = nn.utils.rnn.pad_sequence(list(examples.values()), batch_first=True)
    counts = torch.tensor([len(features) for features in examples.values()], device=padded.device)
    mask = torch.arange(padded.shape[1], device=padded.device) < counts[:, None]
    return Classifier(model, tuple(examples), model.head.fit(padded, mask))


def _with_known(
    model: ClassifierModel, known: Sequence[str], examples: Mapping[str, Float[Tensor, "_ d"]]
) -> Classifier:
    """A classifier in which the stored mean of each known class is one more example of it."""
    means = model.class_means_of(known)
    if means is None and examples:
        raise KedgeError(
            "This model's file is of an early version without class means, so known classes cannot "
            "be compared with examples. Leave out the known classes, or give examples of them."
        )
    if means is None:
        return Classifier(model, tuple(known), model.anchors_of(known))
    mean_of = dict(zip(known, means, strict=True))
    features = {name: mean_of[name][None] for name in known if name not in examples}
    if n_both := len(known) - len(features):
        progress.note(f"{n_both} known classes have examples too: these are added to their means")
    for name, of_class in examples.items():
        features[name] = pool_with_mean(of_class, mean_of.get(name))
    # Not `fit`, which is for episodes: there may be thousands of known classes.
    representatives = model.head.representatives_from(list(features.values()))
    return Classifier(model, tuple(features), representatives)


def pool_with_mean(
    features: Float[Tensor, "n d"], mean: Float[Tensor, " d"] | None
) -> Float[Tensor, "m d"]:
    """Features of a class, with its stored mean added as virtual samples if there is one."""
    return features if mean is None else torch.cat([features, mean.expand(VIRTUAL_SAMPLES, -1)])


def _open_support(model: ClassifierModel, support: Any) -> ImageTable:
    """The examples. Every class must have one: otherwise its images would get a wrong class."""
    table = model.open(support)
    empty = [name for name, n in zip(table.classes, table.counts.tolist(), strict=True) if n == 0]
    if isinstance(support, Mapping):  # the table leaves out classes without images
        empty += [str(name) for name, images in support.items() if len(images) == 0]
    if empty:
        raise KedgeError(f"{table.source}: class '{empty[0]}' has no example.")
    if isinstance(support, str | Path) and Path(support).is_dir():
        folders = {normalize_name(path.name) for path in Path(support).iterdir() if path.is_dir()}
        lost = sorted(name for name in folders - set(table.classes) if not is_hidden(name))
        # If no folder is a class, the folders are splits such as "train" and "test".
        if lost and folders & set(table.classes):
            raise KedgeError(
                f"{Path(support) / lost[0]}: this class has no readable example; add some, or "
                "remove the folder."
            )
    return table
