"""Prototypes of features scaled to length 1, the usual choice for a pretrained network (Chen, Liu,
Xu, Darrell, Wang: Meta-Baseline, ICCV 2021; Gidaris and Komodakis, CVPR 2018)."""

from __future__ import annotations

from typing import final

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from kedge.errors import require
from kedge.models.heads.base import (
    ClassFeatures,
    Head,
    masked_mean,
    mean_error,
    mean_features,
    neg_sq_dist,
)


@final
class UnitHead(Head):
    """Scores are negative squared distances to class means, or twice the cosines with them, which
    differ by the length of the mean only. `Embedding` scales the features, so that everything else
    (anchors, class means, alignment) sees the same features as the head."""

    anchors_are_means = True
    unit_features = True

    def __init__(
        self,
        n_features: int,
        temperature: float,
        *,
        distance: str = "squared",
        scale: str = "fixed",
    ) -> None:
        """`scale=learned` multiplies the scores by a learned number, which starts at 1."""
        super().__init__(n_features, temperature)
        ok = distance in ("squared", "cosine")
        require(ok, f"Head unit: distance is '{distance}': it must be squared or cosine.")
        ok = scale in ("fixed", "learned")
        require(ok, f"Head unit: scale is '{scale}': it must be fixed or learned.")
        self.distance = distance
        self.log_scale = nn.Parameter(torch.zeros(())) if scale == "learned" else None

    def fit(
        self, support: Float[Tensor, "*e k s d"], mask: Bool[Tensor, "*e k s"] | None = None
    ) -> Float[Tensor, "*e k d"]:
        return masked_mean(support, mask)

    def logits(
        self, features: Float[Tensor, "*e n d"], representatives: Float[Tensor, "*e k d"]
    ) -> Float[Tensor, "*e n k"]:
        if self.distance == "cosine":
            scores = 2 * features @ F.normalize(representatives, dim=-1).mT
        else:
            scores = neg_sq_dist(features, representatives)
        return self._scaled(scores)

    def offsets(self, counts: Float[Tensor, " k"], variance: float) -> Float[Tensor, " k"]:
        error = mean_error(counts, variance)
        if self.distance == "cosine":
            # The length of the true mean is √(1 − variance), and noise makes that of n examples
            # longer, but not the product with an image: its cosine is smaller by this factor.
            squared_length = max(1 - variance, 0.01)
            shrunk = (1 + error / squared_length).rsqrt()
            error = 2 * squared_length**0.5 * (1 - shrunk)
        return self._scaled(error)

    def _scaled(self, scores: Tensor) -> Tensor:
        scores = scores if self.log_scale is None else scores * self.log_scale.exp()
        return scores / self.temperature

    def anchors(
        self, features: ClassFeatures, class_embeddings: Float[Tensor, "k d"] | None = None
    ) -> Float[Tensor, "k d"]:
        return mean_features(features)
