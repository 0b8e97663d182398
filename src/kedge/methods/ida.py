"""Indirect discriminant alignment: a new image keeps its discriminant relative to old anchors.

Liu, Majumder, Achille, Ravichandran, Bhotika, Soatto: Incremental Meta-Learning via Indirect
Discriminant Alignment, 2020. Only what the anchors can tell apart is held; every direction that
does not change the discriminant stays free for the new classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

from jaxtyping import Float
from torch import Tensor

from kedge.config import require
from kedge.methods.base import Alignment, AlignmentInputs
from kedge.methods.divergence import (
    check_divergence,
    divergence,
    temperature_ratio,
)


@final
@dataclass(frozen=True)
class IndirectDiscriminantAlignment(Alignment):
    """mean_x KL( p(·|φ_old(x); anchors) ‖ p(·|φ_new(x); anchors) )"""

    anchors: int | Literal["ways", "all"] = "ways"  # per step: as many as an episode has ways
    divergence: str = "kl"
    temperature: float | None = None  # of the two softmaxes; None: the head's own

    def __post_init__(self) -> None:
        check_divergence("IDA", self.divergence, self.temperature)
        fits = self.anchors in ("ways", "all") or (
            isinstance(self.anchors, int) and self.anchors >= 2
        )
        require(fits, "IDA: anchors must be 'ways', 'all' or a number of at least 2.")

    def anchors_per_step(self, n_way: int, n_anchors: int) -> int:
        wanted = {"ways": n_way, "all": n_anchors}
        number = self.anchors if isinstance(self.anchors, int) else wanted[self.anchors]
        return min(number, n_anchors)

    def penalty(self, sight: AlignmentInputs) -> Float[Tensor, ""]:
        require(sight.anchors is not None, "IDA needs anchors, and this model has none.")
        assert sight.anchors is not None
        old, new = (sight.head.logits(z, sight.anchors) for z in (sight.old, sight.new))
        return divergence(
            self.divergence, old, new, temperature_ratio(sight.head, self.temperature)
        )
