"""What every alignment provides, and all that it is shown.

Shapes: n images of the episode, d features, a anchors of r numbers each, k ways, s shots,
q queries.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from kedge.config import EpisodeShape
from kedge.data.pools import Pool
from kedge.models.heads import Head
from kedge.models.model import Model

Memory = dict[str, Tensor]  # what a method keeps from round to round beside the model's anchors


@dataclass(frozen=True)
class Rehearsal:
    """An old task, made of images that were kept, as both models see it."""

    new: Float[Tensor, "k s_plus_q d"]  # under the backbone that is training
    old: Float[Tensor, "k s_plus_q d"]  # under the teacher; carries no gradient
    n_shot: int


@dataclass(frozen=True)
class AlignmentInputs:
    """One step, as an alignment sees it: no image of an earlier round can be reached from here."""

    new: Float[Tensor, "n d"]  # features of the new images under the backbone that is training
    old: Float[Tensor, "n d"]  # the same images under the teacher; carries no gradient
    head: Head  # the teacher's
    anchors: Float[Tensor, "a r"] | None = None  # drawn for this step; None if it asks for none
    memory: Mapping[str, Tensor] = field(default_factory=dict)  # what the method has kept
    new_weights: Mapping[str, Tensor] = field(default_factory=dict)  # of backbone and head, by name
    old_weights: Mapping[str, Tensor] = field(default_factory=dict)  # the teacher's, same names
    rehearsal: Rehearsal | None = None  # None if it asks for none


class Alignment(ABC):
    """A penalty that is 0 while nothing has changed. Options are the fields of a dataclass.

    Only `penalty` has to be written. The rest says what a step needs besides the new images, and
    what is kept after a round; by default nothing.
    """

    default_weight: ClassVar[float] = 1.0  # λ, where the user gives none

    @abstractmethod
    def penalty(self, sight: AlignmentInputs) -> Float[Tensor, ""]:
        """Mean over the images; the method's λ is applied by the caller."""

    def check(self, shape: EpisodeShape) -> None:
        """Refuse what cannot work with episodes of this shape, before anything is trained."""
        return

    def anchors_per_step(self, n_way: int, n_anchors: int) -> int:
        """How many anchors a step is held against; 0 if it does not use them."""
        return 0

    def rehearse(self, memory: Memory, shape: EpisodeShape) -> tuple[Pool, EpisodeShape] | None:
        """Where old tasks come from and how large they are, beside new ones of this shape.

        Refuses, before anything is trained, where what is needed was not kept."""
        return None

    def check_memory(self, memory: Memory, model: Model) -> None:
        """Refuse, as soon as it is read, what `remember` cannot have kept beside this model."""
        return

    def remember(self, model: Model, pool: Pool, before: Memory, seed: int) -> Memory:
        """What to keep when a round has ended, besides what was kept before it: `model` is what
        the round made, `pool` holds the images it trained on, which are gone afterwards."""
        return {}
