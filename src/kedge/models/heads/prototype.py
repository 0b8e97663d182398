"""Prototypical networks (Snell, Swersky, Zemel, 2017): a class is the mean of its examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from kedge.models.heads.base import (
    Head,
    flatten_with_targets,
    neg_sq_dist,
)


@final
class PrototypeHead(Head):
    """Scores are negative squared distances, not divided by the dimension."""

    anchors_are_means = True

    def fit(
        self, support: Float[Tensor, "*e k s d"], present: Bool[Tensor, "*e k s"] | None = None
    ) -> Float[Tensor, "*e k d"]:
        if present is None:
            return support.mean(-2)
        counts = present.sum(-1, keepdim=True).to(support.dtype)
        return support.masked_fill(~present[..., None], 0).sum(-2) / counts

    def logits(
        self, features: Float[Tensor, "*e n d"], representatives: Float[Tensor, "*e k d"]
    ) -> Float[Tensor, "*e n k"]:
        return neg_sq_dist(features, representatives) / self.temperature

    def episode_logits(
        self,
        episode: Float[Tensor, "k s_plus_q d"],
        n_shot: int,
        rows: Float[Tensor, "k d"] | None,
    ) -> tuple[Float[Tensor, "n k"], Int64[Tensor, " n"]]:
        queries, targets = flatten_with_targets(episode[:, n_shot:])
        return self.logits(queries, self.fit(episode[:, :n_shot])), targets

    def anchors(
        self, features: Sequence[Float[Tensor, "_ d"]], rows: Float[Tensor, "k d"] | None = None
    ) -> Float[Tensor, "k d"]:
        return torch.stack([of_class.mean(0) for of_class in features])
