"""How unusual an image is for a set of classes, so that a classifier can say "none of these".

The novelty of an image is its squared distance to the nearest class mean, relative to the mean of
those to the next ones: near 0 in the middle of a class, 1 where no class is nearer than others.
Mendes Júnior et al. (Nearest neighbors distance ratio open-set classifier, Machine Learning, 2017)
use such ratios. Of the scores that were tried it was among the best, for photographs and for
drawings (LOG.md). It has no unit, so one threshold serves every class; thresholds for each class,
from the few images that are held back of it, refused fewer unseen classes.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from kedge.models.heads.base import neg_sq_dist

NEIGHBOURS = 20  # class means that the nearest one is compared with
MOST_REFERENCES = 200  # scores of known images that a model keeps


def novelty(
    features: Float[Tensor, "n d"],
    means: Float[Tensor, "k d"],
    errors: Float[Tensor, " k"],
    own: tuple[Tensor, Tensor] | None = None,
) -> Float[Tensor, " n"]:
    """The novelty of each image among at least two classes.

    Args:
        errors: how much the squared distance to a mean exceeds that to the true mean, on average
            (`mean_error`).
        own: for images that are a part of their class's mean, the number of the class and how many
            images its mean comes from (infinite: the image is no part of it). The distance is then
            that to the mean of the others, ‖z − m₋‖ = n/(n − 1) · ‖z − m‖.
    """
    distances = -neg_sq_dist(features, means)
    if own is not None:
        classes, n = own
        rows = torch.arange(len(features), device=features.device)
        distances[rows, classes] *= (1 + 1 / (n - 1).clamp_min(1)).square()
    distances = (distances - errors).clamp_min(0)
    nearest = distances.topk(min(NEIGHBOURS + 1, len(means)), 1, largest=False).values
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
