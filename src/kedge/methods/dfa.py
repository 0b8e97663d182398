"""Direct feature alignment (the DFA baseline of Liu et al., 2020; see ida.py):

mean_x ‖φ_new(x) − φ_old(x)‖² / d   over the new images x, with d features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

from jaxtyping import Float
from torch import Tensor

from kedge.errors import require
from kedge.methods.base import Alignment, AlignmentInputs


@final
@dataclass(frozen=True)
class DirectFeatureAlignment(Alignment):
    """Every new image keeps its feature. The squared distance is divided by the number of features,
    since a sum over many of them hardly lets the network learn (LOG.md)."""

    reduction: Literal["sum", "mean"] = "mean"  # over the dimensions of a feature

    def __post_init__(self) -> None:
        require(self.reduction in ("sum", "mean"), "DFA: reduction must be 'sum' or 'mean'.")

    def penalty(self, inputs: AlignmentInputs) -> Float[Tensor, ""]:
        squares = (inputs.new - inputs.old).square()
        return (squares.sum(1) if self.reduction == "sum" else squares.mean(1)).mean()
