"""What every head provides. Shapes are explained in the package's docstring."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn


class Head(nn.Module, ABC):
    """A discriminant. It may have parameters of its own, which train with the backbone."""

    def __init__(self, n_features: int, temperature: float) -> None:
        super().__init__()
        self.n_features, self.temperature = n_features, temperature

    @abstractmethod
    def fit(
        self, support: Float[Tensor, "*e k s d"], present: Bool[Tensor, "*e k s"] | None = None
    ) -> Float[Tensor, "*e k r"]:
        """One representative for each class of a task, from its examples.

        Where classes have different numbers of examples, `present` marks the real ones.
        """

    @abstractmethod
    def logits(
        self, features: Float[Tensor, "*e n d"], representatives: Float[Tensor, "*e k r"]
    ) -> Float[Tensor, "*e n k"]:
        """The discriminant of each feature, temperature included: softmax gives p(class)."""

    @abstractmethod
    def loss(
        self, episode: Float[Tensor, "k s_plus_q d"], n_shot: int, classes: Int64[Tensor, " k"]
    ) -> Float[Tensor, ""]:
        """What meta-training minimises on one episode, `classes` being places in the pool."""

    @abstractmethod
    def anchors(self, features: Sequence[Float[Tensor, "_ d"]]) -> Float[Tensor, "k r"]:
        """What is kept of each class of a finished round, from all its training images."""
