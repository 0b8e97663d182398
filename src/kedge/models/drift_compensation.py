"""Where classes are by now, so that a model can name them long after their images are gone.

An anchor stays as it was made, for that is what later rounds are held to. The network goes on
moving, though. IDA keeps the verdicts among old classes, but images as a whole leave their anchors
behind, and fresh anchors of new classes, right among the images, then win them all: of 20 kinds of
drawings at 84 px, 70% were named right, and after one update with 6 more kinds 2% (LOG.md).

But the new images are seen by both networks. An affine map from where they were to where they are,
by ridge regression, takes the means of old classes along: 59% then, and 64% if their images were
still there. Yu et al. (Semantic Drift Compensation, CVPR 2020) move prototypes by the mean drift
around them; Gomez-Villa et al. (Learnable Drift Compensation, ECCV 2024) learn a map as here.

A place is a mean of features, whatever the head: to name classes, the head learns them from their
places, as from an example of each. Of a class of which there are images again, what is remembered
counts beside them: were it forgotten, one picture would take the place of all that were there
before (LOG.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from kedge.data.pools import Pool
from kedge.data.table import ImageTable
from kedge.models.model import Model

SEEN = 2000  # images that the map is fitted to
OF_A_CLASS = 50  # images whose mean is its place, where that is not the anchor
COUNTS = 10  # images, as which the place of a class counts beside new ones of it
PULL = 1.0  # of the map to a mere shift, beside the mean variance of the images


@torch.no_grad()
def compensated_means(
    before: Model, after: Model, table: ImageTable
) -> Float[Tensor, "classes d"] | None:
    """Of all classes of a model that has just learned a delivery; None: where the anchors are."""
    known, means = before.classes, after.head.anchors_are_means
    if means and not known:
        return None
    remembered = {}
    if known:
        was = before.places_of(known)
        if was is None:  # its file is of an early version
            return None
        rows = torch.arange(len(table))[:: -(-len(table) // SEEN)]
        then, now = (model.embed_rows(table, rows) for model in (before, after))
        remembered = dict(zip(known, compensate_drift(was, then, now), strict=True))
    there = dict(zip(after.classes, after.anchors, strict=True)) if means else {}
    unlike = [name for name in table.classes if not means or name in remembered]
    there |= remembered | _places(after, table, unlike, remembered)
    return torch.stack([there[name] for name in after.classes])


def compensate_drift(
    compensated_means: Float[Tensor, "k d"], then: Float[Tensor, "n d"], now: Float[Tensor, "n d"]
) -> Float[Tensor, "k d"]:
    """Places that went the way of the images."""
    x, y, p = (each.double() for each in (then, now, compensated_means))
    from_, to = x.mean(0), y.mean(0)
    x, y, p = x - from_, y - to, p - from_
    gram = x.mT @ x
    gram.diagonal().add_(PULL * gram.diagonal().mean() + 1e-12)
    return (p + p @ torch.linalg.solve(gram, x.mT @ (y - x)) + to).to(compensated_means.dtype)


def _places(
    model: Model,
    table: ImageTable,
    classes: Sequence[str],
    remembered: Mapping[str, Float[Tensor, " d"]],
) -> dict[str, Float[Tensor, " d"]]:
    """Means of images, and of what is remembered of their classes."""
    rows = tuple(table.rows_of(name)[:OF_A_CLASS] for name in classes)
    features = model.class_features(Pool("delivered", table, tuple(classes), rows))
    return {
        name: pool_with_mean(some, remembered.get(name)).mean(0)
        for name, some in zip(classes, features, strict=True)
    }


def pool_with_mean(
    images: Float[Tensor, "n d"], place: Float[Tensor, " d"] | None
) -> Float[Tensor, "m d"]:
    """Images of a class, and its place as if it were some more."""
    return images if place is None else torch.cat([images, place.expand(COUNTS, -1)])
