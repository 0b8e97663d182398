"""The spread of images around their class means, and distances that allow for it.

Images of all classes differ from their means in some directions more than in others. If distances
count less along these directions, images of unseen classes stand out better (LOG.md). The spread is
the strongest directions of the within-class covariance, as in linear discriminant analysis (Fisher,
1936), each with the standard deviation along it as its length.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

MOST_DIRECTIONS = 128
IMAGES_PER_DIRECTION = 4  # at least, so that no direction is that of a single image
SHRINKAGE = 3.0  # of the covariance, in units of its mean eigenvalue


def class_means(
    features: Float[Tensor, "n d"], labels: Int64[Tensor, " n"]
) -> tuple[Float[Tensor, "k d"], Int64[Tensor, " k"]]:
    """The mean of each class, and its number of images."""
    counts = labels.bincount()
    sums = features.new_zeros(len(counts), features.shape[1]).index_add_(0, labels, features)
    return sums / counts.clamp_min(1)[:, None], counts


def deviations(features: Float[Tensor, "n d"], labels: Int64[Tensor, " n"]) -> Float[Tensor, "m d"]:
    """Differences of images from their class means, of classes with several images; scaled so that
    their variance is not too small."""
    means, counts = class_means(features, labels)
    n = counts[labels]
    scale = (n / (n - 1).clamp_min(1)).sqrt()[:, None]
    return ((features - means[labels]) * scale)[n > 1]


def pooled_spread(
    before: Float[Tensor, "q d"] | None, share: float, around: Float[Tensor, "n d"]
) -> Float[Tensor, "r d"] | None:
    """The spread of one more round, whose images have these deviations; None if it is not known.

    Args:
        before: that of earlier rounds.
        share: the weight of this round, if there is a spread of earlier ones.
    """
    n_directions = len(around) // IMAGES_PER_DIRECTION
    if n_directions == 0 or not bool(around.isfinite().all()):
        return before
    x = around.double() / len(around) ** 0.5
    if before is not None:
        x = torch.cat([share**0.5 * x, (1 - share) ** 0.5 * before.double()])
        n_directions += len(before)
    r = min(MOST_DIRECTIONS, n_directions, x.shape[1])
    if len(x) < x.shape[1]:  # the smaller of two matrices with the same eigenvalues
        directions = torch.linalg.eigh(x @ x.mT).eigenvectors[:, -r:].mT @ x
    else:
        values, vectors = torch.linalg.eigh(x.mT @ x)
        directions = (vectors[:, -r:] * values[-r:].clamp_min(0).sqrt()).mT
    return directions.to(around)


@dataclass(frozen=True)
class Whitening:
    """A linear map that shortens features along the directions of the spread, so that images differ
    from their class means by about as much in all directions."""

    axes: Float[Tensor, "r d"]
    factors: Float[Tensor, " r"]
    variance: float  # E‖z − class mean‖² after the map

    @classmethod
    def of(cls, spread: Float[Tensor, "r d"], variance: float) -> Whitening:
        """The map (W + SHRINKAGE · w · I)^(−½) for a covariance W with the mean eigenvalue w, up to
        a factor that leaves all other directions as they are. `variance` is that before the map;
        the part that is not in the spread is taken to be the same in all directions."""
        lengths, d = spread.norm(dim=1), spread.shape[1]
        squared, tiny = lengths.square(), torch.finfo(spread.dtype).tiny
        rest = max(variance - float(squared.sum()), 0.0) / d
        floor = rest + SHRINKAGE * variance / d + tiny
        factors = (floor / (squared + floor)).sqrt()
        after = float((squared * factors.square()).sum()) + rest * d
        return cls(spread / lengths.clamp_min(tiny)[:, None], factors, after)

    def __call__(self, features: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        return features - (features @ self.axes.mT) * (1 - self.factors) @ self.axes
