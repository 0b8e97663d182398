"""Direct feature alignment: a new image keeps its very feature (the paper's DFA baseline)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

from jaxtyping import Float
from torch import Tensor

from kedge.config import require
from kedge.methods.base import Alignment, AlignmentInputs


@final
@dataclass(frozen=True)
class DirectFeatureAlignment(Alignment):
    """mean_x ‖φ_new(x) − φ_old(x)‖²"""

    dimensions: Literal["sum", "mean"] = "sum"

    def __post_init__(self) -> None:
        require(self.dimensions in ("sum", "mean"), "DFA: dimensions must be 'sum' or 'mean'.")

    def penalty(self, sight: AlignmentInputs) -> Float[Tensor, ""]:
        squares = (sight.new - sight.old).square()
        return (squares.sum(1) if self.dimensions == "sum" else squares.mean(1)).mean()
