"""How far classes have moved away from their anchors: an oracle, for evaluation only.

An anchor is made when its round ends and is never made again, for the images are gone. The
backbone goes on moving. A benchmark still has the images and can look where each class is now.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from kedge.data.pools import Pool
from kedge.evaluation.results import AnchorMove
from kedge.models.model import Model

SHOWN = 12  # classes whose way is kept for the figure


@torch.no_grad()
def true_anchors(model: Model, pool: Pool) -> Float[Tensor, "classes r"]:
    """Where each class of a pool is under a model: its anchor, made from its images.

    A head that learns its anchors does not make them from images. Then a class is where its row
    would start, so that a model which has not moved has not moved its classes either.
    """
    return model.head.from_images(model.class_features(pool)).cpu()


def anchor_drift(
    names: Sequence[str],
    then: Float[Tensor, "classes r"],
    now: Float[Tensor, "classes r"],
    base: Float[Tensor, "base r"],
) -> tuple[dict[str, float], tuple[AnchorMove, ...]]:
    """From where some classes are under the model of their own round and under today's; `base`
    holds those of the base classes, which span the plane. See `records.MEASURES`."""
    spread = torch.pdist(now.double()).mean() if len(now) > 1 else torch.tensor(0.0)
    plane, share = _plane(base)
    measures = {
        "anchor_drift": float((then - now).norm(dim=1).mean()),
        "anchor_spread": float(spread),
        "anchor_plane": share,
    }
    flat = (((points - base.mean(0)) @ plane)[:SHOWN].tolist() for points in (then, now))
    moves = tuple(
        AnchorMove(name, (a[0], a[1]), (b[0], b[1]))
        for name, a, b in zip(names, *flat, strict=False)
    )
    return measures, moves


def _plane(points: Float[Tensor, "n r"]) -> tuple[Float[Tensor, "r 2"], float]:
    """The two directions in which the points differ most, and their share of the variance."""
    _, sizes, directions = torch.linalg.svd(points - points.mean(0), full_matrices=False)
    plane = F.pad(directions[:2], (0, 0, 0, max(0, 2 - len(directions)))).T  # of a line: 0 across
    largest = plane.abs().argmax(0, keepdim=True)  # either sign would do; always take the same
    plane = plane * plane.gather(0, largest).sign()
    variances = sizes.square()
    return plane, float(variances[:2].sum() / variances.sum().clamp(min=1e-12))
