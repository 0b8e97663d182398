"""Where classes are now, so that a model can name them long after their images are gone.

An anchor stays as it was made, for that is what later rounds are held to. The network goes on
moving, though. IDA keeps the verdicts among old classes, but images as a whole leave their anchors
behind, and fresh anchors of new classes, right among the images, then win them all: of 20 kinds of
drawings at 84 px, 70% were named right, and after one update with 6 more kinds 2% (LOG.md).

But the new images are seen by both networks. An affine map from where they were to where they are,
by ridge regression, takes the places of old classes along: 59% then, and 64% if their images were
still there. Yu et al. (Semantic Drift Compensation, CVPR 2020) move prototypes by the mean drift
around them; Gomez-Villa et al. (Learnable Drift Compensation, ECCV 2024) learn a map as here.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from kedge.images.table import ImageTable
from kedge.model import Model
from kedge.pools import Pool, union, whole

SEEN = 2000  # images that the map is fitted to
OF_A_CLASS = 50  # images whose mean is its place, where the anchor is not
PULL = 1.0  # of the map to a mere shift, beside the mean variance of the images


@torch.no_grad()
def places(
    before: Model, after: Model, trained: Pool, table: ImageTable
) -> Float[Tensor, "classes r"] | None:
    """Of all classes of a model that has just learned a delivery; None: where the anchors are."""
    delivered = set(table.classes)
    old = [name for name in after.classes if name not in delivered]
    rows = torch.arange(len(table))[:: -(-len(table) // SEEN)]
    now = after.head.points(after.embed_rows(table, rows))
    if now is None or not (old or after.head.learns_rows):
        return None
    known = dict(zip(after.classes, after.anchors, strict=True))
    if after.head.learns_rows:  # a learned anchor is not where the images are
        known |= _means(after, trained, table)
    if old:
        then = before.head.points(before.embed_rows(table, rows))
        assert then is not None
        known |= dict(zip(old, follow(before.places_of(old), then, now), strict=True))
    return torch.stack([known[name] for name in after.classes])


def follow(
    places: Float[Tensor, "k r"], then: Float[Tensor, "n r"], now: Float[Tensor, "n r"]
) -> Float[Tensor, "k r"]:
    """Places that went the way of the images."""
    x, y, p = (each.double() for each in (then, now, places))
    from_, to = x.mean(0), y.mean(0)
    x, y, p = x - from_, y - to, p - from_
    gram = x.mT @ x
    gram.diagonal().add_(PULL * gram.diagonal().mean() + 1e-12)
    return (p + p @ torch.linalg.solve(gram, x.mT @ (y - x)) + to).to(places.dtype)


def _means(model: Model, trained: Pool, table: ImageTable) -> dict[str, Tensor]:
    done = set(trained.classes)
    rest = [name for name in table.classes if name not in done]
    pool = union("delivered", [trained, whole("rest", table, rest)])
    some = Pool(pool.name, table, pool.classes, tuple(r[:OF_A_CLASS] for r in pool.class_rows))
    means = torch.stack([features.mean(0) for features in model.class_features(some)])
    found = model.head.points(means)
    assert found is not None
    return dict(zip(some.classes, found, strict=True))
