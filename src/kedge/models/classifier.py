"""Classification of images among the classes that `Model.classifier` was given."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from operator import eq
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kedge.data.delivery import Delivery
from kedge.data.in_memory.objects import to_labels
from kedge.data.in_memory.unlabelled import ready_pixels, unlabelled_images
from kedge.data.index import names_of_numbers
from kedge.data.packed_file import LazyImages
from kedge.data.table import ImageTable
from kedge.errors import KedgeError, require
from kedge.utils import progress
from kedge.utils.config_io import validated
from kedge.utils.progress import no_tick, task
from kedge.utils.text import list_some, normalize_name, pluralize

N_NAMES = 6  # of classes that are shown


@dataclass(frozen=True, eq=False)
class Classifier:
    """Assigns images to one of a fixed list of classes; made by `Model.classifier`."""

    model: Any  # a `Model`, whose module imports this one
    classes: tuple[str, ...]
    representatives: Float[Tensor, "k r"]
    offsets: Float[Tensor, " k"] | None = None  # added to the logits; see `Head.offsets`

    def __repr__(self) -> str:
        n_classes = pluralize(len(self.classes), "class", "classes")
        return f"kedge.Classifier: {n_classes}: {list_some(self.classes, N_NAMES)}"

    @progress.display(python=True)
    def predict(self, images: Any) -> list[str]:
        """The name of the most probable class of each image.

        Images are one or several, in any form that training takes and of any size: paths, Pillow
        images, arrays or tensors (uint8, or floats from 0 to 1), lists of these, a data set or a
        DataLoader, whose labels are ignored.
        """
        return [best[0][0] for best in self.top(images, 1)]

    @progress.display(python=True)
    def predict_proba(self, images: Any) -> Float[Tensor, "n k"]:
        """The probability of each class for each image; columns are in the order of `classes`."""
        return torch.cat(list(self._batches(images)))

    @progress.display(python=True)
    def score(self, images: Any, labels: Any) -> float:
        """The share of images that get the right name, from 0 to 1.

        Labels are names of classes, or numbers if the model was trained with numbers.
        """
        names = [*map(normalize_name, names_of_numbers(to_labels(labels)))]
        if unknown := set(names) - set(self.classes):
            raise KedgeError(f"The label '{min(unknown)}' is no class of this classifier.")
        predicted = self.predict(images)
        counts = f"{pluralize(len(predicted), 'image')} but {pluralize(len(names), 'label')}"
        require(len(predicted) == len(names) > 0, f"{counts}.")
        return sum(map(eq, predicted, names)) / len(names)

    @progress.display(python=True)
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

    def logits(self, features: Float[Tensor, "n d"]) -> Float[Tensor, "n k"]:
        """Scores of features, as `Model.embed` gives them; their softmax is `predict_proba`."""
        logits: Tensor = self.model.head.logits(features, self.representatives)
        return logits if self.offsets is None else logits + self.offsets.to(logits)

    @torch.no_grad()
    def _batches(self, images: Any) -> Iterator[Float[Tensor, "b k"]]:
        """Probabilities batch by batch: for thousands of classes, all of them may be too large."""
        images = self._pixels(images)
        n, size = len(images), self.model.embed_batch_size
        with task("classifying images", n) if n > size else nullcontext(no_tick) as tick:
            for batch in images.split(size):
                features = self.model.embed(batch, tick)
                yield self.logits(features).softmax(-1)

    def _pixels(self, images: Any) -> Tensor | LazyImages:
        """The images as the model takes them, in the same order."""
        if isinstance(images, ImageTable):
            images = self.model.open(Delivery(images, labelled=False)).images
        if isinstance(images, LazyImages):
            return images
        spec = self.model.image_spec
        if (ready := ready_pixels(images, spec)) is not None:
            return ImageTable.build(ready, [0] * len(ready), ["?"], "images").images
        source = unlabelled_images(images, spec.n_channels)
        require(len(source) > 0, "There is no image to classify.")
        listed = source.items if isinstance(source.items, list | tuple) else []
        for path in (Path(item) for item in listed if isinstance(item, str | Path)):
            require(not path.is_dir(), f"{path}: this is a folder; give the paths of its images.")
            require(path.exists(), f"{path}: there is no such image.")
        table = self.model.open(Delivery({"?": source}, labelled=False))
        n_failed = len(source) - len(table)
        require(
            n_failed == 0,
            f"{n_failed} of {len(source)} images cannot be read. Classify them one by one to see "
            "which, or use 'kedge predict', which skips them.",
        )
        return table.images
