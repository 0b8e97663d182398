"""Prototypical networks (Snell, Swersky, Zemel, 2017): a class is the mean of its examples."""

from __future__ import annotations

from typing import final

from jaxtyping import Bool, Float
from torch import Tensor

from kedge.models.heads.base import (
    ClassFeatures,
    Head,
    masked_mean,
    mean_error,
    mean_features,
    neg_sq_dist,
)


@final
class PrototypeHead(Head):
    """Scores are negative squared distances, not divided by the number of features."""

    anchors_are_means = True

    def fit(
        self, support: Float[Tensor, "*e k s d"], mask: Bool[Tensor, "*e k s"] | None = None
    ) -> Float[Tensor, "*e k d"]:
        return masked_mean(support, mask)

    def logits(
        self, features: Float[Tensor, "*e n d"], representatives: Float[Tensor, "*e k d"]
    ) -> Float[Tensor, "*e n k"]:
        return neg_sq_dist(features, representatives) / self.temperature

    def offsets(self, counts: Float[Tensor, " k"], variance: float) -> Float[Tensor, " k"]:
        return mean_error(counts, variance) / self.temperature

    def anchors(
        self, features: ClassFeatures, class_embeddings: Float[Tensor, "k d"] | None = None
    ) -> Float[Tensor, "k d"]:
        return mean_features(features)
