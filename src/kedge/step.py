"""The training step, made fast: images to the device, one forward, one backward, one update.

Nothing here waits for the device; losses are collected there and read once per epoch.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from kedge.alignment import Sight
from kedge.images.augment import Augmentation, augment
from kedge.methods import Method
from kedge.model import Model
from kedge.protocol import Pool


def default_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def uses_bf16(device: torch.device) -> bool:
    """Convolutions in bf16 where the hardware has it; everything else stays in fp32."""
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


class Pixels:
    """The pixels of a pool: on the device if they fit there, otherwise fetched batch by batch."""

    def __init__(self, pool: Pool, device: torch.device) -> None:
        self.rows, self.pixels, self.device = pool.rows, pool.table.images, device
        if device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(device)
            if len(pool) * self.pixels[0].numel() < free // 2:
                self.pixels = self.pixels[self.rows].to(device)
                self.rows = torch.arange(len(pool), device=device)

    def fetch(self, positions: Int64[Tensor, " b"]) -> UInt8[Tensor, "b c h w"]:
        """`positions` lie where the rows do, so that nothing waits for the device."""
        return self.pixels[self.rows[positions]].to(self.device, non_blocking=True)


class TrainStep:
    """One optimizer step on one episode: L_CE + λ · alignment."""

    def __init__(self, student: Model, teacher: Model | None, method: Method, lr: float) -> None:
        self.student, self.method = student, method
        self.teacher = teacher if method.alignment else None
        weights = [*student.embedding.parameters(), *student.head.parameters()]
        self.optimizer = torch.optim.Adam(weights, lr=lr, fused=True)
        self.bf16 = uses_bf16(student.device)

    def set_lr(self, lr: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = lr

    def __call__(
        self,
        images: UInt8[Tensor, "b c h w"],
        how: Augmentation,
        classes: Int64[Tensor, " k"],
        n_shot: int,
        anchors: Float[Tensor, "a r"] | None,
    ) -> Float[Tensor, " 3"]:
        """Loss, cross-entropy and penalty of this step, still on the device."""
        pixels = augment(images, how)
        with torch.autocast(pixels.device.type, torch.bfloat16, enabled=self.bf16):
            features = self.student.embedding(pixels)
        episode = features.unflatten(0, (len(classes), -1))  # k, s+q, d
        cross_entropy = self.student.head.loss(episode, n_shot, classes)
        penalty = self._penalty(pixels, features, anchors)
        loss = cross_entropy + self.method.weight * penalty
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return torch.stack([loss.detach(), cross_entropy.detach(), penalty.detach()])

    def _penalty(
        self,
        pixels: Float[Tensor, "b c h w"],
        features: Float[Tensor, "b d"],
        anchors: Float[Tensor, "a r"] | None,
    ) -> Float[Tensor, ""]:
        if self.teacher is None or self.method.alignment is None:
            return features.new_zeros(())
        with torch.no_grad(), torch.autocast(
            pixels.device.type, torch.bfloat16, enabled=self.bf16
        ):  # fmt: skip
            old = self.teacher.embedding(pixels)
        return self.method.alignment.penalty(Sight(features, old, self.teacher.head, anchors))
