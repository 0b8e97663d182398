"""What every alignment provides, and all that it is shown.

Shapes: n images of the episode, d features, a anchors of r numbers each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from kedge.heads import Head


@dataclass(frozen=True)
class Sight:
    """One step, as an alignment sees it: no image of an earlier round can be reached from here."""

    new: Float[Tensor, "n d"]  # features of the new images under the backbone that is training
    old: Float[Tensor, "n d"]  # the same images under the teacher; carries no gradient
    head: Head  # the teacher's
    anchors: Float[Tensor, "a r"] | None  # drawn for this step; None if it asks for none


class Alignment(ABC):
    """A penalty that is 0 while nothing has changed. Options are the fields of a dataclass."""

    @abstractmethod
    def anchors_per_step(self, n_way: int, n_anchors: int) -> int:
        """How many anchors a step is held against; 0 if it does not use them."""

    @abstractmethod
    def penalty(self, sight: Sight) -> Float[Tensor, ""]:
        """Mean over the images; the method's λ is applied by the caller."""
