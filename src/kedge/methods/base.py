"""The interface of an alignment: the penalty of a method, and what it is allowed to see.

Shapes: n images of the episode, d features, a anchors of r numbers, k ways, s shots, q queries.
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

Memory = dict[str, Tensor]  # what a method keeps from round to round besides the model


@dataclass(frozen=True)
class Rehearsal:
    """An episode of old classes, made of stored exemplars, as features under both models."""

    new: Float[Tensor, "k s_plus_q d"]  # under the backbone that is being trained
    old: Float[Tensor, "k s_plus_q d"]  # under the teacher, without gradient
    n_shot: int


@dataclass(frozen=True)
class AlignmentInputs:
    """All that a penalty sees of a step. Images of earlier rounds cannot be reached from here."""

    new: Float[Tensor, "n d"]  # features of the new images under the backbone being trained
    old: Float[Tensor, "n d"]  # the same images under the teacher, without gradient
    head: Head  # the teacher's
    anchors: Float[Tensor, "a r"] | None = None  # sampled for this step, if the method uses them
    memory: Mapping[str, Tensor] = field(default_factory=dict)  # what the method has stored
    new_weights: Mapping[str, Tensor] = field(default_factory=dict)  # those that train, by name
    old_weights: Mapping[str, Tensor] = field(default_factory=dict)  # the teacher's, by same names
    rehearsal: Rehearsal | None = None  # if the method rehearses


class Alignment(ABC):
    """A penalty that is 0 as long as nothing has changed. Its options are its dataclass fields.
    By default a method uses no anchors, rehearses nothing and stores nothing."""

    default_weight: ClassVar[float] = 1.0  # λ, if the user gives none

    @abstractmethod
    def penalty(self, inputs: AlignmentInputs) -> Float[Tensor, ""]:
        """The loss to add to the cross-entropy; the caller multiplies it by λ."""

    def check(self, shape: EpisodeShape) -> None:
        """Raise, before training starts, if the options do not allow episodes of this shape."""
        return

    def anchors_per_step(self, n_way: int, n_anchors: int) -> int:
        """How many anchors to sample for a step; 0 if the method uses none."""
        return 0

    def rehearsal_pool(
        self, memory: Memory, shape: EpisodeShape
    ) -> tuple[Pool, EpisodeShape] | None:
        """The stored exemplars and the shape of their episodes, beside new ones of `shape`.
        Raises, before training starts, if the memory lacks what the method needs."""
        return None

    def check_memory(self, memory: Memory, model: Model) -> None:
        """Raise if the content of a memory file does not fit the model."""
        return

    def remember(self, model: Model, pool: Pool, before: Memory, seed: int) -> Memory:
        """The memory after a round that made `model` from the images of `pool`, which are gone
        afterwards. `before` is the memory before that round."""
        return {}
