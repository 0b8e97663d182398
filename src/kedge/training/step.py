"""The training step, made fast: images to the device, one forward, one backward, one update.

Nothing here waits for the device; losses are collected there and read once per epoch. On a GPU
convolutions are in bf16, networks and augmentation are compiled, and the whole step is one CUDA
graph (`kedge.training.cuda_graph`), which the host only has to start.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor, nn

from kedge.config import require
from kedge.data.augment import Augmentation, augment
from kedge.methods.base import (
    AlignmentInputs,
    Memory,
    Rehearsal,
)
from kedge.methods.registry import Method
from kedge.models.model import Model, half_precision
from kedge.utils import progress

# A step waits for memory more than for arithmetic: rather compute an activation again, in each
# kernel that needs it, than write it to memory for them.
FUSE: dict[str, str | int | bool | Callable[..., object]] = {
    "realize_reads_threshold": 10,
    "realize_acc_reads_threshold": 20,
    "realize_opcount_threshold": 200,
}
See = Callable[[Tensor], Tensor]  # pixels → features
NOTHING_TO_LEARN = (
    "There is nothing to train: the features depend on no weight of the backbone, and the head has "
    "none of its own; use another backbone, or the head ridge or ecm."
)


def default_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass(frozen=True)
class ExecutionMode:
    """How a step is computed. All ways learn the same, but for rounding."""

    bf16: bool = False  # convolutions; everything else stays in fp32
    compiled: bool = False  # networks and augmentation, by torch.compile
    captured: bool = False  # the whole step as a CUDA graph

    @classmethod
    def best(cls, device: torch.device) -> ExecutionMode:
        gpu = device.type == "cuda"
        return cls(half_precision(device), gpu and _can_compile(), gpu)


@functools.cache
def _can_compile() -> bool:
    """Whether torch.compile has what it needs for a GPU; a line says so where it has not."""
    try:
        import triton  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
    except ImportError:
        progress.note("triton is not installed: training steps are not compiled, and slower")
        return False
    return True


def load_compiler_in_background() -> None:
    """Load the compiler, which takes many seconds, while images are read from the disk."""
    if ExecutionMode.best(default_device()).compiled:
        _loading.append(threading.Thread(target=_load_compiler, name="kedge loads the compiler"))
        _loading[-1].start()


def _load_compiler() -> None:
    with suppress(ImportError, AttributeError):  # it is PyTorch's own affair where things are
        import_module("torch._inductor.compile_fx")
        import_module("torch._inductor.async_compile").AsyncCompile.warm_pool()


_loading: list[threading.Thread] = []


@dataclass(frozen=True, eq=False)
class EpisodeBatch:
    """One episode, ready for the networks: its images class by class, support before queries."""

    images: UInt8[Tensor, "b c h w"]
    how: Augmentation
    classes: Int64[Tensor, " k"]  # places in the pool
    n_shot: int


class TrainStep:
    """One optimizer step on one episode: L_CE + λ · alignment. For several, see `SharedStep`."""

    def __init__(
        self,
        student: Model,
        teacher: Model,
        method: Method,
        lr: float,
        rows: Float[Tensor, "classes r"] | None,
        memory: Memory,
        pace: ExecutionMode | None = None,
    ) -> None:
        self.student, self.teacher, self.method = student, teacher, method
        self.alignment = method.alignment if method.weight else None  # λ = 0 is fine-tuning
        self.rows = None if rows is None else nn.Parameter(rows)
        self.memory = {key: value.to(student.device) for key, value in memory.items()}
        frozen = {name: weight.detach() for name, weight in teacher.weights().items()}
        self.weights = (student.weights(), frozen)
        self.pace = ExecutionMode.best(student.device) if pace is None else pace
        groups: list[dict[str, Any]] = [{"params": list(self.weights[0].values()), "pace": 1.0}]
        if self.rows is not None:  # a group of its own, so that they may learn faster
            groups.append({"params": [self.rows], "pace": student.head.class_lr_scale})
        for group in groups:  # within a graph, the rate is a number on the device
            group["lr"] = torch.tensor(lr, device=student.device) if self.pace.captured else lr
        self.optimizer = torch.optim.Adam(groups, fused=True, capturable=self.pace.captured)
        self._aside = torch.cuda.Stream() if self.pace.captured else None
        self._student, self._teacher, self._augment = self._ways_to_see()

    def _ways_to_see(self) -> tuple[See, See, Callable[[Tensor, Augmentation], Tensor]]:
        student, teacher = self.student.embedding, self.teacher.embedding
        if not self.pace.compiled:
            return student, teacher, augment
        while _loading:
            _loading.pop().join()
        return tuple(
            torch.compile(each, dynamic=False, options=FUSE) for each in (student, teacher, augment)
        )  # type: ignore[return-value]

    def set_lr(self, lr: float) -> None:
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr * group["pace"])
            else:
                group["lr"] = lr * group["pace"]

    def __call__(
        self,
        task: EpisodeBatch,
        anchors: Float[Tensor, "a r"] | None,
        old_task: EpisodeBatch | None,
    ) -> Float[Tensor, " 3"]:
        """Loss, cross-entropy and penalty of this step, still on the device."""
        losses = self.backward(task, anchors, old_task)
        self.optimizer.step()
        return losses

    def backward(
        self,
        task: EpisodeBatch,
        anchors: Float[Tensor, "a r"] | None,
        old_task: EpisodeBatch | None,
    ) -> Float[Tensor, " 3"]:
        """The same three; the gradient is left where the optimizer looks for it."""
        pixels = self._augment(task.images, task.how)
        old = self._taught(pixels) if self.alignment is not None else None
        features = self._features(self._student, pixels)
        episode = features.unflatten(0, (len(task.classes), -1))  # k, s+q, d
        rows = None if self.rows is None else self.rows[task.classes]
        cross_entropy = self.student.head.loss(episode, task.n_shot, rows)
        penalty = features.new_zeros(())
        if self.alignment is not None:
            rehearsal = None if old_task is None else self._rehearse(old_task)
            if self._aside is not None:
                torch.cuda.current_stream().wait_stream(self._aside)
            assert old is not None
            sight = AlignmentInputs(
                features, old, self.teacher.head, anchors, self.memory, *self.weights, rehearsal
            )
            penalty = self.alignment.penalty(sight)
        loss = cross_entropy + self.method.weight * penalty
        require(loss.requires_grad, NOTHING_TO_LEARN)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        return torch.stack([loss.detach(), cross_entropy.detach(), penalty.detach()])

    def _taught(self, pixels: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d"]:
        """The teacher's features. In a graph they are computed beside the student's, so that one
        network's convolutions run while the other waits for memory."""
        if self._aside is not None:
            self._aside.wait_stream(torch.cuda.current_stream())
        with torch.no_grad(), torch.cuda.stream(self._aside):
            return self._features(self._teacher, pixels)

    def _rehearse(self, task: EpisodeBatch) -> Rehearsal:
        """A forward pass of its own: a task is normalised by its own statistics."""
        pixels = self._augment(task.images, task.how)
        new = self._features(self._student, pixels)
        with torch.no_grad():
            old = self._features(self._teacher, pixels)
        ways = (len(task.classes), -1)
        return Rehearsal(new.unflatten(0, ways), old.unflatten(0, ways), task.n_shot)

    def _features(self, see: See, pixels: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d"]:
        with torch.autocast(pixels.device.type, torch.bfloat16, enabled=self.pace.bf16):
            return see(pixels)


class MultiEpisodeStep:
    """One optimizer step on several episodes, dealt out to all processes: along the mean of the
    gradients that each episode has by itself.

    Every episode starts from the same running statistics, those of BatchNorm, and in the end they
    have moved by the mean as well. So it does not matter who has which episode.
    """

    def __init__(self, step: TrainStep) -> None:
        self.step = step
        self.weights = [w for group in step.optimizer.param_groups for w in group["params"]]
        parts = (step.student.embedding, step.student.head)
        self.running = [buffer for module in parts for buffer in module.buffers()]
        self.before = [buffer.clone() for buffer in self.running]

    def nothing(self) -> Float[Tensor, " n"]:
        """A sum of no episodes yet."""
        statistics = [was for was, _ in self._statistics()]
        size = sum(like.numel() for like in (*self.weights, *statistics)) + 3
        return torch.zeros(size, device=self.step.student.device)

    @torch.no_grad()
    def begin(self) -> None:
        for was, now in zip(self.before, self.running, strict=True):
            was.copy_(now)

    def episode(
        self,
        task: EpisodeBatch,
        anchors: Float[Tensor, "a r"] | None,
        old_task: EpisodeBatch | None,
    ) -> Float[Tensor, " n"]:
        """Its gradient, how it moves the statistics, and its losses: one vector, to be added up."""
        with torch.no_grad():
            for was, now in zip(self.before, self.running, strict=True):
                now.copy_(was)
        losses = self.step.backward(task, anchors, old_task)
        slopes = [torch.zeros_like(w) if w.grad is None else w.grad for w in self.weights]
        # What has not moved may be infinite, and has no difference then.
        moves = [torch.where(now == was, 0, now - was) for was, now in self._statistics()]
        return torch.cat([part.flatten() for part in (*slopes, *moves, losses)])

    @torch.no_grad()
    def end(self, total: Float[Tensor, " n"], n: int) -> Float[Tensor, " 3"]:
        """The step, from the sum over n episodes. Returns the mean of their losses."""
        statistics = list(self._statistics())
        sizes = [like.numel() for like in (*self.weights, *(was for was, _ in statistics))]
        *means, losses = (total / n).split([*sizes, 3])
        for weight, slope in zip(self.weights, means, strict=False):
            # Fused Adam walks through memory: a gradient must lie there as its weight does.
            weight.grad = torch.empty_like(weight).copy_(slope.view(weight.shape))
        for (was, now), move in zip(statistics, means[len(self.weights) :], strict=True):
            now.copy_(was + move.view(was.shape))
        self.step.optimizer.step()
        return losses

    def _statistics(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Before and now. Counters are none: every episode moves them alike."""
        for was, now in zip(self.before, self.running, strict=True):
            if now.is_floating_point():
                yield was, now
