"""Ridge regression (Bertinetto, Henriques, Torr, Vedaldi: Meta-learning with differentiable
closed-form solvers, 2019; related to MetaOptNet: Lee, Maji, Ravichandran, Soatto, 2019).

Unlike there, each class is separated from all others with the same total weight on both sides. So
the scale of its weight vector depends neither on ways nor on shots, and an anchor that was made
among 64 classes can be used in a task of 5.
"""

from __future__ import annotations

import math
from typing import final

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from kedge.models.heads.base import ClassFeatures, Head

MIN_STRENGTH = 1e-4  # below it, the systems might be singular in float32


@final
class RidgeHead(Head):
    """The weight vector v of a class (d weights and a bias) minimizes, over images x = (z, 1),

        ½ mean over the class of (v·x − 1)² + ½ mean over the others of (v·x + 1)² + λ‖v‖².

    λ is a learned strength times the weighted mean of ‖x‖², so that it does not depend on the
    scale of the features and every system is well conditioned. With a single class the second
    term is missing.
    """

    def __init__(self, n_features: int, temperature: float) -> None:
        super().__init__(n_features, temperature)
        self.log_strength = nn.Parameter(torch.tensor(math.log(0.03)))
        # v·x is roughly within ±1. At T=2, scores of 0.5 and −0.5 differ by 4 in the logits.
        self.log_scale = nn.Parameter(torch.tensor(math.log(8.0)))

    def fit(
        self, support: Float[Tensor, "*e k s d"], mask: Bool[Tensor, "*e k s"] | None = None
    ) -> Float[Tensor, "*e k r"]:
        *_, k, s, d = support.shape
        if mask is None:
            mask = torch.ones(support.shape[:-1], dtype=torch.bool, device=support.device)
        x = F.pad(support, (0, 1), value=1.0).masked_fill(~mask[..., None], 0)
        if k * s <= d:
            return self._by_image(x, mask)
        grams = x.mT @ x
        return self._by_feature(grams, grams.sum(-3, keepdim=True))

    def logits(
        self, features: Float[Tensor, "*e n d"], representatives: Float[Tensor, "*e k r"]
    ) -> Float[Tensor, "*e n k"]:
        weights, bias = representatives[..., :-1], representatives[..., None, :, -1]
        return self.log_scale.exp() * (features @ weights.mT + bias) / self.temperature

    def anchors(
        self, features: ClassFeatures, class_embeddings: Float[Tensor, "k r"] | None = None
    ) -> Float[Tensor, "k r"]:
        # One class at a time: all Gram matrices together may not fit into memory.
        zero = features[0].new_zeros(self.n_features + 1, self.n_features + 1)
        total = sum((_gram(z) for z in features), start=zero)
        return torch.stack([self._by_feature(_gram(z), total) for z in features])

    def _by_feature(
        self, gram: Float[Tensor, "*k r r"], total: Float[Tensor, "*#k r r"]
    ) -> Float[Tensor, "*k r"]:
        """Weight vectors from Σxxᵀ over the images of each class, and over those of all classes."""
        others = total - gram
        # x ends in 1, so the last row of Σxxᵀ is Σx, and its last entry the number of images.
        own, rest = _image_weights(gram[..., -1, -1], total[..., -1, -1])
        moments = own[..., None, None] * gram + rest[..., None, None] * others
        target = own[..., None] * gram[..., -1] - rest[..., None] * others[..., -1]
        return self._solve(moments, target)

    def _by_image(
        self, x: Float[Tensor, "*e k s r"], mask: Bool[Tensor, "*e k s"]
    ) -> Float[Tensor, "*e k r"]:
        """The same from systems of the size of the support: v = Σ_i β_i √w_i x_i."""
        s, counts = x.shape[-2], mask.sum(-1).to(x.dtype)
        one_hot = torch.eye(x.shape[-3], device=x.device, dtype=x.dtype).repeat_interleave(s, -1)
        own, rest = _image_weights(counts, counts.sum(-1, keepdim=True))
        weights = own[..., None] * one_hot + rest[..., None] * (1 - one_hot)  # *e, k, n
        root, x = (weights * mask.flatten(-2)[..., None, :]).sqrt(), x.flatten(-3, -2)
        grams = root[..., :, None] * (x @ x.mT)[..., None, :, :] * root[..., None, :]
        return (root * self._solve(grams, root * (2 * one_hot - 1))) @ x

    def _solve(
        self, moments: Float[Tensor, "*k q q"], target: Float[Tensor, "*k q"]
    ) -> Float[Tensor, "*k q"]:
        """(moments + λ·1)⁻¹ target. The matrix is positive definite, so errors are not checked for:
        that would wait for the device."""
        strength = MIN_STRENGTH + self.log_strength.exp()
        size = moments.diagonal(dim1=-2, dim2=-1).sum(-1)
        ridge = torch.diag_embed((strength * size)[..., None].expand_as(target))
        factor, _ = torch.linalg.cholesky_ex(moments + ridge)
        # Not cholesky_solve, which cannot be captured in a CUDA graph.
        half = torch.linalg.solve_triangular(factor, target[..., None], upper=False)
        return torch.linalg.solve_triangular(factor.mT, half, upper=True)[..., 0]


def _image_weights(
    count: Float[Tensor, "*k"], all_counts: Float[Tensor, "*#k"]
) -> tuple[Float[Tensor, "*k"], Float[Tensor, "*k"]]:
    """Weights of an image of the class and of one of the others; each side has ½ in total."""
    return 0.5 / count, 0.5 / (all_counts - count).clamp(min=1)


def _gram(z: Float[Tensor, "n d"]) -> Float[Tensor, "r r"]:
    x = F.pad(z, (0, 1), value=1.0)
    return x.mT @ x
