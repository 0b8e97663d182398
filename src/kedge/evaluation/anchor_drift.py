"""How far classes have moved since their anchors were made. Only a benchmark, which still has the
images of earlier rounds, can compute it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from kedge.data.pools import Pool
from kedge.evaluation.results import AnchorMove
from kedge.models.model import Model

MAX_MOVES = 12  # classes whose move is stored for the figure


@torch.no_grad()
def true_anchors(model: Model, pool: Pool) -> Float[Tensor, "classes r"]:
    """The anchor of each class of a pool, made anew from its images under this model; the initial
    class embedding if the head learns them, so that the drift is 0 if the model has not changed."""
    return model.head.representatives_from(model.class_features(pool)).cpu()


def anchor_drift(
    names: Sequence[str],
    then: Float[Tensor, "classes r"],
    now: Float[Tensor, "classes r"],
    base: Float[Tensor, "base r"],
) -> tuple[dict[str, float], tuple[AnchorMove, ...]]:
    """Measures of drift (see `records.MEASURES`), and the moves of the first classes on a plane.

    Args:
        then, now: true anchors of the classes under the model of their own round and the current.
        base: true anchors of the base classes, whose principal components span the plane.
    """
    spread = torch.pdist(now.double()).mean() if len(now) > 1 else torch.tensor(0.0)
    plane, share = _plane(base)
    measures = {
        "anchor_drift": float((then - now).norm(dim=1).mean()),
        "anchor_spread": float(spread),
        "anchor_plane": share,
    }
    flat = (((points - base.mean(0)) @ plane)[:MAX_MOVES].tolist() for points in (then, now))
    moves = tuple(
        AnchorMove(name, (a[0], a[1]), (b[0], b[1]))
        for name, a, b in zip(names, *flat, strict=False)
    )
    return measures, moves


def _plane(points: Float[Tensor, "n r"]) -> tuple[Float[Tensor, "r 2"], float]:
    """The first two principal components, and their share of the variance."""
    _, sizes, directions = torch.linalg.svd(points - points.mean(0), full_matrices=False)
    plane = F.pad(directions[:2], (0, 0, 0, max(0, 2 - len(directions)))).T  # of a line: 0 across
    largest = plane.abs().argmax(0, keepdim=True)  # fixes the sign, which is arbitrary
    plane = plane * plane.gather(0, largest).sign()
    variances = sizes.square()
    return plane, float(variances[:2].sum() / variances.sum().clamp(min=1e-12))
