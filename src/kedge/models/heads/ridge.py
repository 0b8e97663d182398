"""Ridge regression (Bertinetto, Henriques, Torr, Vedaldi: Meta-learning with differentiable
closed-form solvers, 2019; of the family of MetaOptNet: Lee, Maji, Ravichandran, Soatto, 2019).

Unlike there, each class is told from the rest with both sides weighing the same. So neither the
number of ways nor that of shots changes the scale of a row, and an anchor that was made among 64
classes can stand in a task of 5.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from kedge.models.heads.base import Head, flatten_with_targets

LEAST = 1e-4  # of the strength: below it, float32 might not solve the systems


@final
class RidgeHead(Head):
    """The row v of a class, d weights and a bias, minimises over images x = (z, 1)

        ½ mean over the class of (v·x − 1)² + ½ mean over the others of (v·x + 1)² + λ‖v‖².

    λ is a learned strength times the mean of ‖x‖² under the same weights: so it means the same at
    any scale of the features, and no system is ill conditioned. Where there is no other class,
    the second term is missing: the row leans towards its class, and says little more.
    """

    def __init__(self, n_features: int, temperature: float) -> None:
        super().__init__(n_features, temperature)
        self.log_strength = nn.Parameter(torch.tensor(math.log(0.03)))
        # v·x lies about within ±1: at T=2, one class at 0.5 and another at −0.5 are e⁴ to 1.
        self.log_scale = nn.Parameter(torch.tensor(math.log(8.0)))

    def fit(
        self, support: Float[Tensor, "*e k s d"], present: Bool[Tensor, "*e k s"] | None = None
    ) -> Float[Tensor, "*e k r"]:
        *_, k, s, d = support.shape
        if present is None:
            present = torch.ones(support.shape[:-1], dtype=torch.bool, device=support.device)
        x = _with_one(support).masked_fill(~present[..., None], 0)
        if k * s <= d:
            return self._by_image(x, present)
        grams = x.mT @ x
        return self._by_feature(grams, grams.sum(-3, keepdim=True))

    def logits(
        self, features: Float[Tensor, "*e n d"], representatives: Float[Tensor, "*e k r"]
    ) -> Float[Tensor, "*e n k"]:
        rows, bias = representatives[..., :-1], representatives[..., None, :, -1]
        return self.log_scale.exp() * (features @ rows.mT + bias) / self.temperature

    def episode_logits(
        self,
        episode: Float[Tensor, "k s_plus_q d"],
        n_shot: int,
        rows: Float[Tensor, "k r"] | None,
    ) -> tuple[Float[Tensor, "n k"], Int64[Tensor, " n"]]:
        queries, targets = flatten_with_targets(episode[:, n_shot:])
        return self.logits(queries, self.fit(episode[:, :n_shot])), targets

    def anchors(
        self, features: Sequence[Float[Tensor, "_ d"]], rows: Float[Tensor, "k r"] | None = None
    ) -> Float[Tensor, "k r"]:
        # One class at a time: all Gram matrices at once may be too large, and each is cheap.
        nothing = features[0].new_zeros(self.n_features + 1, self.n_features + 1)
        everything = sum((_gram(of_class) for of_class in features), start=nothing)
        return torch.stack([self._by_feature(_gram(z), everything) for z in features])

    def _by_feature(
        self, gram: Float[Tensor, "*k r r"], everything: Float[Tensor, "*#k r r"]
    ) -> Float[Tensor, "*k r"]:
        """Rows from Σxxᵀ over the images of each class, and over those of all classes."""
        others = everything - gram
        # x ends in 1, hence Σxxᵀ in Σx, and that in the number of images.
        own, rest = _sides(gram[..., -1, -1], everything[..., -1, -1])
        moments = own[..., None, None] * gram + rest[..., None, None] * others
        wanted = own[..., None] * gram[..., -1] - rest[..., None] * others[..., -1]
        return self._solve(moments, wanted)

    def _by_image(
        self, x: Float[Tensor, "*e k s r"], present: Bool[Tensor, "*e k s"]
    ) -> Float[Tensor, "*e k r"]:
        """The same rows, from systems of the size of the images: v = Σ_i β_i √w_i x_i."""
        s, counts = x.shape[-2], present.sum(-1).to(x.dtype)
        ours = torch.eye(x.shape[-3], device=x.device, dtype=x.dtype).repeat_interleave(s, -1)
        own, rest = _sides(counts, counts.sum(-1, keepdim=True))
        weights = own[..., None] * ours + rest[..., None] * (1 - ours)  # *e, k, n
        root, x = (weights * present.flatten(-2)[..., None, :]).sqrt(), x.flatten(-3, -2)
        grams = root[..., :, None] * (x @ x.mT)[..., None, :, :] * root[..., None, :]
        return (root * self._solve(grams, root * (2 * ours - 1))) @ x

    def _solve(
        self, moments: Float[Tensor, "*k q q"], wanted: Float[Tensor, "*k q"]
    ) -> Float[Tensor, "*k q"]:
        """(moments + λ·1)⁻¹ wanted, without asking the device whether it went well: it does."""
        strength = LEAST + self.log_strength.exp()
        size = moments.diagonal(dim1=-2, dim2=-1).sum(-1)
        ridge = torch.diag_embed((strength * size)[..., None].expand_as(wanted))
        factor, _ = torch.linalg.cholesky_ex(moments + ridge)
        # Not by cholesky_solve, which on a GPU may not be part of a recorded graph.
        half = torch.linalg.solve_triangular(factor, wanted[..., None], upper=False)
        return torch.linalg.solve_triangular(factor.mT, half, upper=True)[..., 0]


def _sides(
    count: Float[Tensor, "*k"], all_counts: Float[Tensor, "*#k"]
) -> tuple[Float[Tensor, "*k"], Float[Tensor, "*k"]]:
    """What an image of a class weighs, and one of the others: half for each side in all."""
    return 0.5 / count, 0.5 / (all_counts - count).clamp(min=1)


def _with_one(z: Float[Tensor, "*n d"]) -> Float[Tensor, "*n r"]:
    return F.pad(z, (0, 1), value=1.0)


def _gram(z: Float[Tensor, "n d"]) -> Float[Tensor, "r r"]:
    x = _with_one(z)
    return x.mT @ x
