"""Classification of images among the classes that `Model.classifier` was given."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from operator import eq
from pathlib import Path
from typing import Any, NamedTuple, overload

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from kedge.data.delivery import Delivery
from kedge.data.in_memory.objects import to_labels
from kedge.data.in_memory.unlabelled import ready_pixels, unlabelled_images
from kedge.data.index import names_of_numbers
from kedge.data.packed_file import LazyImages
from kedge.data.table import ImageTable
from kedge.errors import KedgeError, require
from kedge.models.heads.base import require_finite
from kedge.models.novelty import ClassSpace, typicality
from kedge.utils import progress
from kedge.utils.config_io import validated
from kedge.utils.progress import no_tick, task
from kedge.utils.text import list_some, normalize_name, pluralize

N_NAMES = 6  # of classes that are shown


class Prediction(NamedTuple):
    """What a classifier says of an image."""

    ranking: list[tuple[str, float]]  # the most probable classes with their probabilities
    typicality: float | None  # share of known images that are as unusual, or more; None: not known


class DistanceMeans(NamedTuple):
    """Class means that the distances of images are measured to (see `kedge.models.novelty`)."""

    means: Float[Tensor, "k r"]
    counts: Float[Tensor, " k"]  # images that each comes from


@dataclass(frozen=True, eq=False)
class Classifier:
    """Assigns images to one of a fixed list of classes; made by `Model.classifier`."""

    model: Any  # a `Model`, whose module imports this one
    classes: tuple[str, ...]
    representatives: Float[Tensor, "k r"]
    offsets: Float[Tensor, " k"] | None = None  # added to the logits; see `Head.offsets`
    distance_means: DistanceMeans | None = None  # None: it cannot say "none of these"

    def __repr__(self) -> str:
        n_classes = pluralize(len(self.classes), "class", "classes")
        return f"kedge.Classifier: {n_classes}: {list_some(self.classes, N_NAMES)}"

    @overload
    def predict(self, images: Any) -> list[str]: ...

    @overload
    def predict(self, images: Any, *, reject: float) -> list[str | None]: ...

    @progress.shown
    def predict(self, images: Any, *, reject: float | None = None) -> Any:
        """The name of the most probable class of each image.

        Args:
            images: one or several, in any form that training takes and of any size: paths, Pillow
                images, arrays or tensors (uint8, or floats from 0 to 1), lists of these, a data set
                or a DataLoader, whose labels are ignored.
            reject: give None in place of a name for images that look like none of the classes. Of
                images of known classes about this share, such as 0.05, is refused too.
        """
        if reject is not None:
            self.check_reject(reject)
        return [
            None if reject is not None and (typical or 0) <= reject else ranking[0][0]
            for ranking, typical in self.answers(images, 1)
        ]

    @progress.shown
    def predict_proba(self, images: Any) -> Float[Tensor, "n k"]:
        """The probability of each class for each image; columns are in the order of `classes`."""
        return torch.cat([self._probabilities(z) for z in self._features(images)])

    @progress.shown
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

    @progress.shown
    def top(self, images: Any, n: int = 3) -> list[list[tuple[str, float]]]:
        """The n most probable classes of each image (at most all) with their probabilities, the
        most probable first."""
        return [prediction.ranking for prediction in self.answers(images, n)]

    @progress.shown
    def answers(self, images: Any, n: int = 3) -> list[Prediction]:
        """The n most probable classes of each image, and how typical it is of known images."""
        n = validated("n", int, n)
        require(n >= 1, f"n is {n}: it must be at least 1.")
        return [p for z in self._features(images) for p in self.answers_from_features(z, n)]

    def answers_from_features(self, features: Float[Tensor, "b d"], n: int = 3) -> list[Prediction]:
        """The same from features, as `Model.embed` gives them."""
        best = self._probabilities(features).topk(min(n, len(self.classes)), 1)
        typical = self.typicality(features)
        typicalities = [None] * len(features) if typical is None else typical.tolist()
        predictions = []
        for indices, values, each in zip(
            best.indices.tolist(), best.values.tolist(), typicalities, strict=True
        ):
            names = (self.classes[i] for i in indices)
            predictions.append(Prediction(list(zip(names, values, strict=True)), each))
        return predictions

    def check_reject(self, share: float) -> None:
        """Raise KedgeError unless images can be refused at this share of known images."""
        share = validated("reject", float, share)
        ok = 0 < share < 1
        require(ok, f"reject is {share:g}: it must be between 0 and 1, such as 0.05 for 5%.")
        require(
            len(self.classes) > 1,
            "reject needs at least two classes to compare an image with; give examples of another.",
        )
        n = len(self._references)
        require(
            n > 0 and self.distance_means is not None,
            "reject: this model does not know how unusual its own images are, since none were held "
            "back or its file is of an early version; update it with classes of 10 images or more.",
        )
        least = 1 / (n + 1)
        require(
            share >= least,
            f"reject is {share:g}: the model was calibrated with {n} images, which allow "
            f"{least:.2g} or more.",
        )

    @property
    def _references(self) -> tuple[float, ...]:
        calibration = self.model.calibration
        return () if calibration is None else calibration.novelty

    @cached_property
    def class_space(self) -> ClassSpace:
        """Where the novelty of images is measured; only if there are `distance_means`."""
        model, means = self.model, self.distance_means
        assert means is not None
        return ClassSpace.of(*means, model.calibration.variance, model.spread)

    @torch.no_grad()
    def typicality(self, features: Float[Tensor, "n d"]) -> Float64[Tensor, " n"] | None:
        """The share of known images that are at least as unusual; None if that is not known."""
        if self.distance_means is None or not self._references or len(self.classes) < 2:
            return None
        scores = self.class_space.novelty(self.model.head.distance_features(features))
        return typicality(scores, torch.tensor(self._references, dtype=torch.float64))

    def logits(self, features: Float[Tensor, "n d"]) -> Float[Tensor, "n k"]:
        """Scores of features, as `Model.embed` gives them; their softmax is `predict_proba`."""
        logits: Tensor = self.model.head.logits(features, self.representatives)
        return logits if self.offsets is None else logits + self.offsets.to(logits)

    def _probabilities(self, features: Float[Tensor, "n d"]) -> Float[Tensor, "n k"]:
        return require_finite(self.logits(features)).softmax(-1)

    @torch.no_grad()
    def _features(self, images: Any) -> Iterator[Float[Tensor, "b d"]]:
        """Features batch by batch: for thousands of classes, all scores may be too large."""
        images = self._pixels(images)
        n, size = len(images), self.model.embed_batch_size
        with task("classifying images", n) if n > size else nullcontext(no_tick) as tick:
            for batch in images.split(size):
                yield self.model.embed(batch, tick)

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
