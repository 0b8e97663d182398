"""How unusual an image is for a set of classes, so that a classifier can say "none of these".

The novelty of an image is its squared distance to the nearest class mean, relative to the mean of
those to the next ones: near 0 in the middle of a class, 1 where no class is nearer than others.
Mendes Júnior et al. (Nearest neighbors distance ratio open-set classifier, Machine Learning, 2017)
use such ratios. It has no unit, so one threshold serves every class; thresholds for each class,
from the few images that are held back of it, refused fewer unseen classes (LOG.md).

Distances allow for the spread of images within a class (`kedge.models.spread`), and count less
across the directions in which class means differ than along them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from kedge.models.heads.base import mean_error, neg_sq_dist
from kedge.models.spread import Whitening

NEIGHBOURS = 20  # class means that the nearest one is compared with
ACROSS = 0.1  # weight of what a squared distance has across the space of the class means


@dataclass(frozen=True)
class ClassSpace:
    """The means of at least one class, and the space in which images are compared with them."""

    means: Float[Tensor, "k q"]  # from the origin, in the coordinates of the basis
    errors: Float[Tensor, " k"]  # by how much squared distances are too large (`mean_error`)
    origin: Float[Tensor, " d"]
    whitening: Whitening | None = None
    basis: Float[Tensor, "d q"] | None = None  # of differences of the means; None: of everything

    @classmethod
    def of(
        cls,
        means: Float[Tensor, "k d"],
        counts: Float[Tensor, " k"],
        variance: float,
        spread: Float[Tensor, "r d"] | None,
    ) -> ClassSpace:
        """The space of these class means, which come from so many images each. Without a spread,
        distances are those of the features, as in files of early versions."""
        if spread is None:
            errors = mean_error(counts, variance)
            return cls(means - means.mean(0), errors, means.mean(0))
        whitening = Whitening.of(spread, variance)
        points = whitening(means)
        origin, basis = points.mean(0), None
        if len(points) <= points.shape[1]:
            basis = torch.linalg.qr((points[1:] - points[0]).mT).Q
        points = points - origin
        points = points if basis is None else points @ basis
        return cls(points, mean_error(counts, whitening.variance), origin, whitening, basis)

    def distances(self, features: Float[Tensor, "n d"]) -> Float[Tensor, "n k"]:
        """Squared distances to the true class means, estimated without bias."""
        z = features if self.whitening is None else self.whitening(features)
        z = z - self.origin
        if self.basis is None:
            return -neg_sq_dist(z, self.means) - self.errors
        along = z @ self.basis
        across = (z.square().sum(1) - along.square().sum(1)).clamp_min(0)
        return ACROSS * across[:, None] - neg_sq_dist(along, self.means) - self.errors

    def novelty(self, features: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        """The novelty of each image; there must be at least two classes."""
        distances = self.distances(features).clamp_min(0)
        n = min(NEIGHBOURS + 1, distances.shape[1])
        nearest = distances.topk(n, 1, largest=False).values
        return nearest[:, 0] / nearest[:, 1:].mean(1).clamp_min(torch.finfo(nearest.dtype).tiny)


def typicality(
    scores: Float[Tensor, " n"], references: Float64[Tensor, " m"]
) -> Float64[Tensor, " n"]:
    """The share of known images that are at least as unusual: a conformal p-value (Bates et al.,
    Testing for outliers with conformal p-values, Annals of Statistics, 2023). Of new images of
    known classes, a share p has a typicality of p or less."""
    ordered = references.sort().values
    below = torch.searchsorted(ordered, scores.double().cpu().contiguous())
    return (len(ordered) - below + 1).double() / (len(ordered) + 1)
