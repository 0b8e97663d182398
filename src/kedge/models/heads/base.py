"""What every head provides. Shapes are explained in the package's docstring."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn


class Head(nn.Module, ABC):
    """A discriminant. It may have parameters of its own, which train with the backbone.

    Options are keyword-only arguments of the constructor, with defaults.
    """

    learns_class_embeddings: bool = (
        False  # whether a round learns a representative for each of its classes
    )
    class_lr_scale: float = 1.0  # how much faster than the network they learn
    anchors_are_means: bool = False  # of the features; otherwise a model keeps these, too

    def __init__(self, n_features: int, temperature: float) -> None:
        super().__init__()
        self.n_features, self.temperature = n_features, temperature

    @abstractmethod
    def fit(
        self, support: Float[Tensor, "*e k s d"], present: Bool[Tensor, "*e k s"] | None = None
    ) -> Float[Tensor, "*e k r"]:
        """One representative for each class of a task, from its examples; differentiable.

        Where classes have different numbers of examples, `present` marks the real ones.
        """

    @abstractmethod
    def logits(
        self, features: Float[Tensor, "*e n d"], representatives: Float[Tensor, "*e k r"]
    ) -> Float[Tensor, "*e n k"]:
        """The discriminant of each feature, temperature included: softmax gives p(class)."""

    @abstractmethod
    def episode_logits(
        self,
        episode: Float[Tensor, "k s_plus_q d"],
        n_shot: int,
        rows: Float[Tensor, "k r"] | None,
    ) -> tuple[Float[Tensor, "n k"], Int64[Tensor, " n"]]:
        """What meta-training practises on one episode: the logits of some of its images, and the
        right answers. `rows` are those of the episode's classes, if the head learns such."""

    def rows(self, features: Sequence[Float[Tensor, "_ d"]]) -> Float[Tensor, "k r"]:
        """The representatives that a round learns, as they start: one for each class that it
        trains on, from all its images. Asked for only if the head `learns_rows`."""
        raise NotImplementedError(f"{type(self).__name__} does not say how its rows start.")

    @abstractmethod
    def anchors(
        self, features: Sequence[Float[Tensor, "_ d"]], rows: Float[Tensor, "k r"] | None = None
    ) -> Float[Tensor, "k r"]:
        """What is kept of each class of a finished round, from all its training images, or from
        the rows that were learned."""

    def from_images(self, features: Sequence[Float[Tensor, "_ d"]]) -> Float[Tensor, "k r"]:
        """Representatives of classes from images alone, also where a round would learn them."""
        return self.rows(features) if self.learns_class_embeddings else self.anchors(features)

    def loss(
        self, episode: Float[Tensor, "k s_plus_q d"], n_shot: int, rows: Float[Tensor, "k r"] | None
    ) -> Float[Tensor, ""]:
        """What meta-training minimises on one episode."""
        return F.cross_entropy(*self.episode_logits(episode, n_shot, rows))


def neg_sq_dist(
    features: Float[Tensor, "*e n d"], points: Float[Tensor, "*e k d"]
) -> Float[Tensor, "*e n k"]:
    """−‖z−c‖² by one matrix product. Distances do not change when all points move together, so
    they are first moved to the origin, where the expansion loses fewest digits."""
    centre = points.mean(-2, keepdim=True).detach()
    z, c = features - centre, points - centre
    z2, c2 = z.square().sum(-1, keepdim=True), c.square().sum(-1)[..., None, :]
    return 2 * z @ c.mT - z2 - c2


def flatten_with_targets(
    episode: Float[Tensor, "k n d"],
) -> tuple[Float[Tensor, "kn d"], Int64[Tensor, " kn"]]:
    """The features of each class one after the other, and the right answers."""
    k, n, _ = episode.shape
    return episode.flatten(0, 1), torch.arange(k, device=episode.device).repeat_interleave(n)
