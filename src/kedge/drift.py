"""How far classes have moved away from their anchors: an oracle, for evaluation only.

An anchor is made when its round ends and is never made again, for the images are gone. The
backbone goes on moving. A benchmark still has the images and can look where each class is now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from kedge.model import Model
from kedge.pools import Pool
from kedge.records import AnchorMove

SHOWN = 12  # classes whose way is kept for the figure


@torch.no_grad()
def anchor_drift(
    model: Model, rounds: Sequence[Pool], base_anchors: Float[Tensor, "classes r"]
) -> tuple[dict[str, float], tuple[AnchorMove, ...]]:
    """`rounds` are the training images of each earlier round; see `records.MEASURES`."""
    known = [_only(pool, set(model.classes)) for pool in rounds]
    known = [pool for pool in known if pool.classes]
    names = [name for pool in known for name in pool.classes]
    # A linear classifier is made against the other classes of its round, so round by round.
    now = torch.cat([model.head.anchors(model.class_features(pool)) for pool in known])
    stored = model.anchors_of(names)
    spread = torch.pdist(now.double()).mean() if len(now) > 1 else torch.tensor(0.0)
    plane, share = _plane(base_anchors.to(stored.device))
    measures = {
        "anchor_drift": float((stored - now).norm(dim=1).mean()),
        "anchor_spread": float(spread),
        "anchor_plane": share,
    }
    centre = base_anchors.to(stored.device).mean(0)
    places = (((points - centre) @ plane)[:SHOWN].tolist() for points in (stored, now))
    moves = tuple(
        AnchorMove(name, (a[0], a[1]), (b[0], b[1]))
        for name, a, b in zip(names, *places, strict=False)
    )
    return measures, moves


def _only(pool: Pool, names: set[str]) -> Pool:
    chosen = [i for i, name in enumerate(pool.classes) if name in names]
    return replace(
        pool,
        classes=tuple(pool.classes[i] for i in chosen),
        class_rows=tuple(pool.class_rows[i] for i in chosen),
    )


def _plane(points: Float[Tensor, "n r"]) -> tuple[Float[Tensor, "r 2"], float]:
    """The two directions in which the points differ most, and their share of the variance."""
    _, sizes, directions = torch.linalg.svd(points - points.mean(0), full_matrices=False)
    plane = directions[:2].T
    largest = plane.abs().argmax(0, keepdim=True)  # either sign would do; always take the same
    plane = plane * plane.gather(0, largest).sign()
    variances = sizes.square()
    return plane, float(variances[:2].sum() / variances.sum().clamp(min=1e-12))
