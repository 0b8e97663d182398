"""Indirect discriminant alignment (Liu, Majumder, Achille, Ravichandran, Bhotika, Soatto:
Incremental Meta-Learning via Indirect Discriminant Alignment, 2020):

mean_x KL( p(·|φ_old(x); anchors) ‖ p(·|φ_new(x); anchors) )   over the new images x.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

from jaxtyping import Float
from torch import Tensor

from kedge.errors import require
from kedge.methods.base import Alignment, AlignmentInputs
from kedge.methods.divergence import check_divergence, divergence


@final
@dataclass(frozen=True)
class IndirectDiscriminantAlignment(Alignment):
    """Every new image keeps its softmax over the old anchors; its features may move freely in
    every direction that does not change this softmax."""

    anchors: int | Literal["ways", "all"] = "ways"  # per step: as many as an episode has ways
    divergence: str = "kl"
    temperature: float | None = None  # of the two softmaxes; None: the head's own

    def __post_init__(self) -> None:
        check_divergence("IDA", self.divergence, self.temperature)
        number = isinstance(self.anchors, int) and self.anchors >= 2
        valid = number or self.anchors in ("ways", "all")
        require(valid, "IDA: anchors must be 'ways', 'all' or a number of at least 2.")

    def anchors_per_step(self, n_way: int, n_anchors: int) -> int:
        if isinstance(self.anchors, int):
            return min(self.anchors, n_anchors)
        return n_anchors if self.anchors == "all" else min(n_way, n_anchors)

    def penalty(self, inputs: AlignmentInputs) -> Float[Tensor, ""]:
        require(inputs.anchors is not None, "IDA needs anchors, and this model has none.")
        assert inputs.anchors is not None
        old, new = (inputs.head.logits(z, inputs.anchors) for z in (inputs.old, inputs.new))
        return divergence(self.divergence, old, new, inputs.head, self.temperature)
