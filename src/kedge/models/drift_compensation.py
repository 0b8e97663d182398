"""Current means of classes whose images are gone, so that a model can still predict these classes.

An anchor stays as it was made, since later rounds are aligned to it, but the features move on, and
images of old classes would be assigned to new ones: in one experiment the accuracy on 20 old
classes fell from 70% to 2% (LOG.md). An affine map from the old to the new features of the new
images, fitted by ridge regression, moves the means of the old classes: 59%, where 64% is possible
with the old images. Yu et al. (Semantic Drift Compensation, CVPR 2020) move prototypes by the mean
drift nearby; Gomez-Villa et al. (Learnable Drift Compensation, ECCV 2024) learn a map, as here.

If a known class is delivered again, its stored mean is pooled with the new images as 10 virtual
samples; otherwise one new image would replace all earlier ones (LOG.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from kedge.data.pools import Pool
from kedge.data.table import ImageTable
from kedge.models.model import Model, pool_with_mean

MAX_IMAGES, MIN_PER_CLASS = 2000, 20  # to fit the map to; more than the former for many classes
IMAGES_PER_CLASS = 50  # to compute a mean from, if the anchor is not the mean
RIDGE = 1.0  # of the map towards a mere shift, relative to the mean variance of the features


@dataclass(frozen=True)
class DeliveredFeatures:
    """Features of delivered images, evenly chosen, under the model before a round and after it."""

    rows: Int64[Tensor, " n"]  # of the table
    labels: Int64[Tensor, " n"]
    before: Float[Tensor, "n d"]
    after: Float[Tensor, "n d"]

    @classmethod
    def of(cls, before: Model, after: Model, table: ImageTable) -> DeliveredFeatures:
        n = max(MAX_IMAGES, MIN_PER_CLASS * len(table.classes))
        rows = torch.arange(len(table))[:: -(-len(table) // n)]
        features = (model.embed_rows(table, rows) for model in (before, after))
        return cls(rows, table.labels[rows].to(after.device), *features)

    def before_by_class(self, n_classes: int) -> tuple[Float[Tensor, "_ d"], ...]:
        """The features before the round of each class's images; labels ascend as in the table."""
        return self.before.split(self.labels.bincount(minlength=n_classes).tolist())


@torch.no_grad()
def compensated_means(
    before: Model, after: Model, table: ImageTable, features: DeliveredFeatures
) -> Float[Tensor, "classes d"] | None:
    """The class means of `after`, which was trained from `before` on the images of the table. None
    if they are the anchors, or if `before` is of an early version and does not know its own."""
    anchors_are_means = after.head.anchors_are_means
    if anchors_are_means and not before.classes:
        return None
    old: dict[str, Tensor] = {}
    if before.classes:
        old_means = before.class_means_of(before.classes)
        if old_means is None:
            return None
        moved = compensate_drift(old_means, features.before, features.after)
        old = dict(zip(before.classes, moved, strict=True))
    means = dict(zip(after.classes, after.anchors, strict=True)) if anchors_are_means else {}
    means |= old
    delivered = tuple(name for name in table.classes if not anchors_are_means or name in old)
    class_rows = tuple(table.rows_of(name)[:IMAGES_PER_CLASS] for name in delivered)
    class_features = after.class_features(Pool("delivered", table, delivered, class_rows))
    for name, of_class in zip(delivered, class_features, strict=True):
        means[name] = pool_with_mean(of_class, old.get(name)).mean(0)
    return torch.stack([means[name] for name in after.classes])


@dataclass(frozen=True)
class DriftMap:
    """The affine map from the features of an old network to those of a new one that ridge
    regression fits to the same images under both."""

    origin: Float64[Tensor, " d"]
    weights: Float64[Tensor, "d d"]  # of what is added to a feature's distance from the origin
    target: Float64[Tensor, " d"]  # where the origin goes

    @classmethod
    def fit(cls, before: Float[Tensor, "n d"], after: Float[Tensor, "n d"]) -> DriftMap:
        x, y = before.double(), after.double()
        x_mean, y_mean = x.mean(0), y.mean(0)
        x, y = x - x_mean, y - y_mean
        gram = x.mT @ x
        gram.diagonal().add_(RIDGE * gram.diagonal().mean() + 1e-12)
        return cls(x_mean, torch.linalg.solve(gram, x.mT @ (y - x)), y_mean)

    def __call__(self, features: Float[Tensor, "*n d"]) -> Float[Tensor, "*n d"]:
        p = features.double() - self.origin
        return (p + p @ self.weights + self.target).to(features.dtype)


def compensate_drift(
    means: Float[Tensor, "k d"], before: Float[Tensor, "n d"], after: Float[Tensor, "n d"]
) -> Float[Tensor, "k d"]:
    """Class means under the new network, from features of the same n images under both."""
    return DriftMap.fit(before, after)(means)


def drift_residuals(
    before: Float[Tensor, "n d"], after: Float[Tensor, "n d"], labels: Int64[Tensor, " n"]
) -> Float[Tensor, "n d"]:
    """What the map of `compensate_drift` misses of each image's features if it is fitted without
    the images of its class; in closed form, from one fit to all images. Takes memory and time for
    n × n numbers, so n should not be far above MAX_IMAGES."""
    x, y = before.double(), after.double()
    x = x - x.mean(0)
    drift = y - y.mean(0) - x
    gram = x @ x.mT
    ridge = RIDGE * gram.diagonal().sum() / x.shape[1] + 1e-12
    identity = torch.eye(len(x), dtype=x.dtype, device=x.device)
    left = ridge * torch.linalg.inv(gram + ridge * identity)  # I − hat matrix
    residuals = left @ drift
    for label in labels.unique():
        own = (labels == label).nonzero().flatten()
        residuals[own] = torch.linalg.solve(left[own][:, own], residuals[own])
    return residuals.to(before.dtype)
