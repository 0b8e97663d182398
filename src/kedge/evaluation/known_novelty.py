"""The novelty of images of known classes that were held back from training, with which a classifier
compares that of other images (`kedge.models.novelty`).

Class means and the spread may come from the images held back, too, and are nearer to them than to
new images. So each image is compared with means and a spread that are computed without it: a fifth
of the images at a time is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from kedge.models.classifier import Classifier
from kedge.models.drift_compensation import DeliveredFeatures
from kedge.models.model import Model
from kedge.models.novelty import ClassSpace
from kedge.models.spread import deviations, pooled_spread

FOLDS = 5


@dataclass(frozen=True)
class RoundSpread:
    """What the spread of a model comes from when a round has ended."""

    before: Float[Tensor, "q r"] | None
    share: float  # of this round's classes among all
    rows: Int64[Tensor, " n"]  # of the delivered table
    features: Float[Tensor, "n r"]
    labels: Int64[Tensor, " n"]

    @classmethod
    @torch.no_grad()
    def of(cls, start: Model, model: Model, features: DeliveredFeatures) -> RoundSpread:
        n_before = 0 if start.spread is None else len(start.classes)
        n = max(1, len(features.labels.unique()))
        z = model.head.distance_features(features.after)
        return cls(start.spread, n / (n + n_before), features.rows, z, features.labels)

    def spread(self, without: Int64[Tensor, " _"] | None = None) -> Float[Tensor, "q r"] | None:
        """The spread after the round, or what it would be without some rows of the table."""
        z, labels = self.features, self.labels
        if without is not None:
            kept = ~torch.isin(self.rows, without).to(z.device)
            z, labels = z[kept], labels[kept]
        return pooled_spread(self.before, self.share, deviations(z, labels))


@torch.no_grad()
def known_novelty(
    classifier: Classifier,
    features: Float[Tensor, "n d"],
    targets: Int64[Tensor, " n"],
    counts: Float[Tensor, " n"],
    spread: RoundSpread | None,
    rows: Int64[Tensor, " n"] | None,
) -> list[float]:
    """The novelty of images held back; empty if it cannot be measured.

    Args:
        targets: the number of each image's class.
        counts: how many images the mean of this class comes from; infinite if the image is not one
            of them.
        spread: None if the model has none.
        rows: of the images in the table that the spread comes from; None if they are not in it.
    """
    model, means = classifier.model, classifier.distance_means
    if means is None or len(classifier.classes) < 2:
        return []
    z = model.head.distance_features(features)
    scores, folds = z.new_empty(len(z)), _position_in_class(targets) % FOLDS
    for fold in folds.unique().tolist():
        chosen = folds == fold
        without = None if rows is None else rows[chosen.to(rows.device)]
        space = ClassSpace.of(
            *_without(means.means, means.counts, z, targets, chosen & counts.isfinite()),
            model.calibration.variance,
            None if spread is None else spread.spread(without),
        )
        scores[chosen] = space.novelty(z[chosen])
    return scores.tolist() if bool(scores.isfinite().all()) else []


def _without(
    means: Float[Tensor, "k r"],
    counts: Float[Tensor, " k"],
    features: Float[Tensor, "n r"],
    targets: Int64[Tensor, " n"],
    left_out: Bool[Tensor, " n"],
) -> tuple[Float[Tensor, "k r"], Float[Tensor, " k"]]:
    """Class means, and how many images they come from, without some images that they contain."""
    z, targets = features[left_out], targets[left_out]
    n_out = targets.bincount(minlength=len(means)).to(means)
    n_left = (counts - n_out).clamp_min(1)
    sums = torch.zeros_like(means).index_add_(0, targets, z - means[targets])
    return means - sums / n_left[:, None], n_left


def _position_in_class(targets: Int64[Tensor, " n"]) -> Int64[Tensor, " n"]:
    """0 for the first image of each class, 1 for its second, and so on."""
    order = targets.argsort(stable=True)
    counts = targets.bincount()
    first = (counts.cumsum(0) - counts)[targets[order]]
    positions = torch.empty_like(targets)
    positions[order] = torch.arange(len(targets), device=targets.device) - first
    return positions
