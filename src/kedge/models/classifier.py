"""Classification of images among the classes that `Model.classifier` was given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from kedge.data.delivery import Delivery
from kedge.data.packed_file import LazyImages
from kedge.data.table import ImageTable
from kedge.errors import require
from kedge.utils.config_io import validated
from kedge.utils.progress import no_tick, task


@dataclass(frozen=True, eq=False)
class Classifier:
    """Assigns images to one of a fixed list of classes; made by `Model.classifier`."""

    model: Any  # a `Model`, whose module imports this one
    classes: tuple[str, ...]
    representatives: Float[Tensor, "k r"]
    offsets: Float[Tensor, " k"] | None = None  # added to the logits; see `Head.offsets`

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

    def logits(self, features: Float[Tensor, "n d"]) -> Float[Tensor, "n k"]:
        """Scores of features, as `Model.embed` gives them; their softmax is `probabilities`."""
        logits: Tensor = self.model.head.logits(features, self.representatives)
        return logits if self.offsets is None else logits + self.offsets.to(logits)

    @torch.no_grad()
    def _batches(self, images: Any) -> Iterator[Float[Tensor, "b k"]]:
        """Probabilities batch by batch: for thousands of classes, all of them may be too large."""
        if not isinstance(images, Tensor | np.ndarray | LazyImages):
            images = self._load(images if isinstance(images, list | tuple) else [images])
        if not isinstance(images, LazyImages):  # brings every layout to N×C×H×W
            images = ImageTable.build(images, [0] * len(images), ["?"], "images").images
        n, size = len(images), self.model.embed_batch_size
        with task("classifying images", n) if n > size else nullcontext(no_tick) as tick:
            for batch in images.split(size):
                features = self.model.embed(batch, tick)
                yield self.logits(features).softmax(-1)

    def _load(self, images: Sequence[Any]) -> Tensor | LazyImages:
        """Images from paths, Pillow images or arrays, in the same order."""
        require(len(images) > 0, "There is no image to classify.")
        for path in (Path(image) for image in images if isinstance(image, str | Path)):
            require(not path.is_dir(), f"{path}: this is a folder; give the paths of its images.")
            require(path.exists(), f"{path}: there is no such image.")
        table = self.model.open(Delivery({"?": images}, labelled=False))
        n_failed = len(images) - len(table)
        require(
            n_failed == 0,
            f"{n_failed} of {len(images)} images cannot be read. Classify them one by one to see "
            "which, or use 'kedge predict', which skips them.",
        )
        return table.images
