"""ECM, embedded class models (Ravichandran, Bhotika, Soatto: Few-Shot Learning with Embedded Class
Models and Shot-Free Meta Training, ICCV 2019).

A re-derivation: the full text was not at hand. A class is a point that is learned, not computed,
so training depends neither on shots nor on ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from kedge.config import require
from kedge.models.heads.base import (
    Head,
    flatten_with_targets,
    neg_sq_dist,
)

PIECE = 16_000_000  # scores held at a time, in numbers


@final
class ECMHead(Head):
    """Scores are negative squared distances to a class's point, after a learned linear lift.

    A new task starts at the means of its support and goes down the support's cross-entropy.
    """

    def __init__(
        self,
        n_features: int,
        temperature: float,
        *,
        training: str = "joint",  # rows learned with the network, or "inner": fitted to support
        steps: int = 100,  # of gradient descent, when points are fitted
        rate: int | float = 0.1,
        pull: int | float = 0.0,  # (pull/2)·Σ‖c−start‖² is added to what is minimised
        pace: int | float = 10.0,  # times as fast as the network, rows learn; see LOG.md
    ) -> None:
        super().__init__(n_features, temperature)
        require(training in ("joint", "inner"), "ECM: training must be joint or inner.")
        fits = isinstance(steps, int) and 1 <= steps <= 10_000
        require(fits, "ECM: steps must be a number from 1 to 10000.")
        require(_number(rate) and 0 < rate < 1e6, "ECM: rate must be a number above 0.")
        require(_number(pull) and 0 <= pull < 1e6, "ECM: pull must be a number, 0 or more.")
        require(_number(pace) and 0 < pace < 1e6, "ECM: pace must be a number above 0.")
        self.class_lr_scale = float(pace)
        # Module.training is taken: whether the module is in train mode.
        self.learns_class_embeddings = training == "joint"
        self.steps, self.rate, self.pull = steps, rate, pull
        self.lift = nn.Parameter(torch.empty(2 * n_features, n_features))
        nn.init.orthogonal_(self.lift)  # at the start, distances are those of the features

    def fit(
        self, support: Float[Tensor, "*e k s d"], present: Bool[Tensor, "*e k s"] | None = None
    ) -> Float[Tensor, "*e k r"]:
        *_, k, s, _ = support.shape
        if present is None:
            present = torch.ones(support.shape[:-1], dtype=torch.bool, device=support.device)
        z, real = support.masked_fill(~present[..., None], 0), present.to(support.dtype)
        means = z.sum(-2) / real.sum(-1, keepdim=True)
        weights = real / real.sum((-2, -1), keepdim=True)
        labels = torch.arange(k, device=z.device).repeat_interleave(s)
        return self._descend(z.flatten(-3, -2), labels, weights.flatten(-2), means)

    def logits(
        self, features: Float[Tensor, "*e n d"], representatives: Float[Tensor, "*e k r"]
    ) -> Float[Tensor, "*e n k"]:
        return neg_sq_dist(features @ self.lift.mT, representatives) / self.temperature

    def episode_logits(
        self,
        episode: Float[Tensor, "k s_plus_q d"],
        n_shot: int,
        rows: Float[Tensor, "k r"] | None,
    ) -> tuple[Float[Tensor, "n k"], Int64[Tensor, " n"]]:
        # Where there are rows to learn, support has no part of its own: all images are practised.
        images, targets = flatten_with_targets(episode[:, n_shot:] if rows is None else episode)
        points = self.fit(episode[:, :n_shot]) if rows is None else rows
        return self.logits(images, points), targets

    def rows(self, features: Sequence[Float[Tensor, "_ d"]]) -> Float[Tensor, "k r"]:
        return torch.stack([of_class.mean(0) for of_class in features]) @ self.lift.mT

    def anchors(
        self, features: Sequence[Float[Tensor, "_ d"]], rows: Float[Tensor, "k r"] | None = None
    ) -> Float[Tensor, "k r"]:
        if rows is not None:
            return rows.detach().clone()
        z = torch.cat(list(features))
        counts = torch.tensor([len(of_class) for of_class in features], device=z.device)
        labels = torch.arange(len(features), device=z.device).repeat_interleave(counts)
        means = torch.stack([of_class.mean(0) for of_class in features])
        return self._descend(z, labels, z.new_full((len(z),), 1 / len(z)), means)

    def _descend(
        self,
        z: Float[Tensor, "*e n d"],
        labels: Int64[Tensor, " n"],
        weights: Float[Tensor, "*e n"],
        means: Float[Tensor, "*e k d"],
    ) -> Float[Tensor, "*e k r"]:
        """Gradient descent on Σ_i weight_i · cross-entropy_i, with the gradient written out:
        ∂/∂c_k = (2/T) Σ_i weight_i (p_ik − y_ik) (W z_i − c_k).

        So c stays W·a, with a in the affine span of the features. The coordinates of a are chosen
        by size: where images are fewer than features, its weights on the images, with their Gram
        matrix for a metric; otherwise its features, with the metric WᵀW.
        """
        (n, d), k, t = z.shape[-2:], means.shape[-2], self.temperature
        # Points may move together; near the origin fewest digits are lost.
        centre = means.mean(-2, keepdim=True).detach()
        z = z - centre
        truth = (labels == torch.arange(k, device=z.device)[:, None]).to(z.dtype)  # k, n
        by_image = n <= d
        if by_image:
            lifted = z @ self.lift.mT
            metric, per_piece = lifted @ lifted.mT, n
            shares = truth * weights[..., None, :]
            a = shares / shares.sum(-1, keepdim=True)
        else:
            metric, per_piece = self.lift.mT @ self.lift, PIECE // (k * z.shape[:-2].numel())
            a = means - centre
        # Many small steps: what is the same in all of them is multiplied in beforehand.
        metric, weights, start = 2 / t * metric, self.rate * 2 / t * weights, a
        pieces = [part.split(max(1, per_piece), -1) for part in (z.mT, truth, weights)]
        for _ in range(self.steps):
            product = a @ metric
            half = (a * product).sum(-1, keepdim=True) / 2
            moved = a - self.rate * self.pull * (a - start) if self.pull else a
            for images, ours, weight in zip(*pieces, strict=True):
                scores = (product if by_image else product @ images) - half  # k, n
                wrong = (scores.softmax(-2) - ours) * weight[..., None, :]
                moved = moved - (wrong if by_image else wrong @ images.mT)
                moved = torch.addcmul(moved, wrong.sum(-1, keepdim=True), a)
            a = moved
        return ((a @ z if by_image else a) + centre) @ self.lift.mT


def _number(value: object) -> bool:
    return isinstance(value, int | float)
