"""The training step, made fast: images to the device, one forward, one backward, one update.

Nothing here waits for the device; losses are collected there and read once per epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor, nn

from kedge.alignment import Memory, Rehearsal, Sight
from kedge.images.augment import Augmentation, augment
from kedge.methods import Method
from kedge.model import Embedding, Model
from kedge.pools import Pool


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


@dataclass(frozen=True, eq=False)
class Task:
    """One episode, ready for the networks: its images class by class, support before queries."""

    images: UInt8[Tensor, "b c h w"]
    how: Augmentation
    classes: Int64[Tensor, " k"]  # places in the pool
    n_shot: int


class TrainStep:
    """One optimizer step on one episode: L_CE + λ · alignment."""

    def __init__(
        self,
        student: Model,
        teacher: Model,
        method: Method,
        lr: float,
        rows: Float[Tensor, "classes r"] | None,
        memory: Memory,
    ) -> None:
        self.student, self.teacher, self.method = student, teacher, method
        self.alignment = method.alignment if method.weight else None  # λ = 0 is fine-tuning
        self.rows = None if rows is None else nn.Parameter(rows)
        self.memory = {key: value.to(student.device) for key, value in memory.items()}
        frozen = {name: weight.detach() for name, weight in teacher.weights().items()}
        self.weights = (student.weights(), frozen)
        groups: list[dict[str, Any]] = [{"params": list(self.weights[0].values()), "pace": 1.0}]
        if self.rows is not None:  # a group of its own, so that they may learn faster
            groups.append({"params": [self.rows], "pace": student.head.rows_pace})
        self.optimizer = torch.optim.Adam(groups, lr=lr, fused=True)
        self.bf16 = uses_bf16(student.device)

    def set_lr(self, lr: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group["pace"]

    def __call__(
        self, task: Task, anchors: Float[Tensor, "a r"] | None, old_task: Task | None
    ) -> Float[Tensor, " 3"]:
        """Loss, cross-entropy and penalty of this step, still on the device."""
        pixels = augment(task.images, task.how)
        features = self._features(self.student.embedding, pixels)
        episode = features.unflatten(0, (len(task.classes), -1))  # k, s+q, d
        rows = None if self.rows is None else self.rows[task.classes]
        cross_entropy = self.student.head.loss(episode, task.n_shot, rows)
        penalty = features.new_zeros(())
        if self.alignment is not None:
            rehearsal = None if old_task is None else self._rehearse(old_task)
            with torch.no_grad():
                old = self._features(self.teacher.embedding, pixels)
            sight = Sight(
                features, old, self.teacher.head, anchors, self.memory, *self.weights, rehearsal
            )
            penalty = self.alignment.penalty(sight)
        loss = cross_entropy + self.method.weight * penalty
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return torch.stack([loss.detach(), cross_entropy.detach(), penalty.detach()])

    def _rehearse(self, task: Task) -> Rehearsal:
        """A forward pass of its own: a task is normalised by its own statistics."""
        pixels = augment(task.images, task.how)
        new = self._features(self.student.embedding, pixels)
        with torch.no_grad():
            old = self._features(self.teacher.embedding, pixels)
        ways = (len(task.classes), -1)
        return Rehearsal(new.unflatten(0, ways), old.unflatten(0, ways), task.n_shot)

    def _features(
        self, embedding: Embedding, pixels: Float[Tensor, "b c h w"]
    ) -> Float[Tensor, "b d"]:
        with torch.autocast(pixels.device.type, torch.bfloat16, enabled=self.bf16):
            return embedding(pixels)
