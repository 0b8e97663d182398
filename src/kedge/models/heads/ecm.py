"""ECM, embedded class models (Ravichandran, Bhotika, Soatto: Few-Shot Learning with Embedded Class
Models and Shot-Free Meta Training, ICCV 2019).

Re-derived without access to the full text, so details may differ from the paper. A class is a
learned point; hence training depends neither on the number of shots nor on the number of ways.
"""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from kedge.errors import require
from kedge.models.heads.base import (
    ClassFeatures,
    Episode,
    Head,
    flatten_with_targets,
    mean_error,
    mean_features,
    neg_sq_dist,
)

CHUNK_NUMEL = 16_000_000  # logits held in memory at a time by the inner loop


@final
class ECMHead(Head):
    """Scores are negative squared distances to the point of a class, after a learned linear map.
    For a new task, gradient descent on the support's cross-entropy starts at the support means."""

    def __init__(
        self,
        n_features: int,
        temperature: float,
        *,
        training: str = "joint",  # class embeddings train with the network; "inner": as in a task
        inner_steps: int = 100,  # of gradient descent, to fit the points of a task
        inner_lr: float = 0.1,
        l2: float = 0.0,  # adds (l2/2)·Σ‖c−start‖² to the loss of the inner loop
        lr_scale: float = 10.0,  # of class embeddings, times the network's; see LOG.md
    ) -> None:
        super().__init__(n_features, temperature)
        require(training in ("joint", "inner"), "ECM: training must be joint or inner.")
        valid = isinstance(inner_steps, int) and 1 <= inner_steps <= 10_000
        require(valid, "ECM: inner_steps must be a number from 1 to 10000.")
        for name, value in (("inner_lr", inner_lr), ("l2", l2), ("lr_scale", lr_scale)):
            valid = 0 <= value < 1e6 and (value > 0 or name == "l2")
            require(valid, f"ECM: {name} must be a number above 0.")
        self.class_lr_scale = lr_scale
        # Not self.training, in which nn.Module keeps whether it is in train mode.
        self.learns_class_embeddings = training == "joint"
        self.inner_steps, self.inner_lr, self.l2 = inner_steps, inner_lr, l2
        self.lift = nn.Parameter(torch.empty(2 * n_features, n_features))
        nn.init.orthogonal_(self.lift)  # at the start, distances are those of the features

    def fit(
        self, support: Float[Tensor, "*e k s d"], mask: Bool[Tensor, "*e k s"] | None = None
    ) -> Float[Tensor, "*e k r"]:
        *_, k, s, _ = support.shape
        if mask is None:
            mask = torch.ones(support.shape[:-1], dtype=torch.bool, device=support.device)
        z, real = support.masked_fill(~mask[..., None], 0), mask.to(support.dtype)
        means = z.sum(-2) / real.sum(-1, keepdim=True)
        weights = real / real.sum((-2, -1), keepdim=True)
        labels = torch.arange(k, device=z.device).repeat_interleave(s)
        return self._descend(z.flatten(-3, -2), labels, weights.flatten(-2), means)

    def logits(
        self, features: Float[Tensor, "*e n d"], representatives: Float[Tensor, "*e k r"]
    ) -> Float[Tensor, "*e n k"]:
        return neg_sq_dist(features @ self.lift.mT, representatives) / self.temperature

    def episode_logits(
        self, episode: Episode, n_shot: int, class_embeddings: Float[Tensor, "k r"] | None
    ) -> tuple[Float[Tensor, "n k"], Int64[Tensor, " n"]]:
        if class_embeddings is None:
            return super().episode_logits(episode, n_shot, None)
        # Nothing is fitted to the support, so all images are classified.
        images, targets = flatten_with_targets(episode)
        return self.logits(images, class_embeddings), targets

    def initial_class_embeddings(self, features: ClassFeatures) -> Float[Tensor, "k r"]:
        return mean_features(features) @ self.lift.mT

    def distance_features(self, features: Float[Tensor, "n d"]) -> Float[Tensor, "n r"]:
        return features @ self.lift.mT

    def offsets(self, counts: Float[Tensor, " k"], variance: float) -> Float[Tensor, " k"]:
        if not self.learns_class_embeddings:  # then representatives are fitted, and are not means
            return torch.zeros_like(counts)
        return mean_error(counts, variance) / self.temperature

    def anchors(
        self, features: ClassFeatures, class_embeddings: Float[Tensor, "k r"] | None = None
    ) -> Float[Tensor, "k r"]:
        if class_embeddings is not None:
            return class_embeddings.detach().clone()
        z = torch.cat(list(features))
        counts = torch.tensor([len(of_class) for of_class in features], device=z.device)
        labels = torch.arange(len(features), device=z.device).repeat_interleave(counts)
        return self._descend(z, labels, z.new_full((len(z),), 1 / len(z)), mean_features(features))

    def _descend(
        self,
        z: Float[Tensor, "*e n d"],
        labels: Int64[Tensor, " n"],
        weights: Float[Tensor, "*e n"],
        means: Float[Tensor, "*e k d"],
    ) -> Float[Tensor, "*e k r"]:
        """Points c after gradient descent on Σ_i weight_i · cross-entropy_i, started at W·means.

        The gradient is ∂/∂c_k = (2/T) Σ_i weight_i (p_ik − y_ik) (W z_i − c_k), so c stays W·a with
        a in the affine span of the features. If there are no more images than features, a is kept
        as weights on the images, whose Gram matrix is the metric (`by_image`); otherwise as a
        feature vector, with the metric WᵀW.
        """
        (n, d), k, t = z.shape[-2:], means.shape[-2], self.temperature
        # Distances do not change when all points are shifted; near the origin they are precise.
        centre = means.mean(-2, keepdim=True).detach()
        z = z - centre
        one_hot = (labels == torch.arange(k, device=z.device)[:, None]).to(z.dtype)  # k, n
        by_image = n <= d
        if by_image:
            lifted = z @ self.lift.mT
            metric, chunk = lifted @ lifted.mT, n
            shares = one_hot * weights[..., None, :]
            a = shares / shares.sum(-1, keepdim=True)
        else:
            metric, chunk = self.lift.mT @ self.lift, CHUNK_NUMEL // (k * z.shape[:-2].numel())
            a = means - centre
        # Constant factors are multiplied in before the loop of many small steps.
        metric, weights, start = 2 / t * metric, self.inner_lr * 2 / t * weights, a
        chunks = [part.split(max(1, chunk), -1) for part in (z.mT, one_hot, weights)]
        for _ in range(self.inner_steps):
            product = a @ metric
            half_norms = (a * product).sum(-1, keepdim=True) / 2
            updated = a - self.inner_lr * self.l2 * (a - start) if self.l2 else a
            for images, targets, weight in zip(*chunks, strict=True):
                scores = (product if by_image else product @ images) - half_norms  # k, n
                errors = (scores.softmax(-2) - targets) * weight[..., None, :]
                updated = updated - (errors if by_image else errors @ images.mT)
                updated = torch.addcmul(updated, errors.sum(-1, keepdim=True), a)
            a = updated
        return ((a @ z if by_image else a) + centre) @ self.lift.mT
