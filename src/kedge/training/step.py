"""One optimizer step: augment, forward, backward, update.

Nothing here waits for the device: losses stay there and are read once per epoch. On a GPU,
convolutions are in bf16, and the whole step is captured as a CUDA graph
(`kedge.training.cuda_graph`). Conv-4, ResNet-12 and EfficientNet-lite0 use kernels of our own
(`kedge.kernels`); networks other than the first two are compiled if the round is long enough.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kedge import kernels
from kedge.data.augment import Augmentation, augment
from kedge.episodes.sampler import EpisodeBatch
from kedge.errors import require
from kedge.methods.base import AlignmentInputs, Memory, Rehearsal
from kedge.methods.registry import Method
from kedge.models.embedding import Embedding, half_precision
from kedge.models.model import Model
from kedge.training.ema import WeightAverage
from kedge.utils.env import cache_folder

# A step is limited by memory bandwidth: compute an activation again in each kernel that needs it
# rather than write it to memory.
INDUCTOR_OPTIONS: dict[str, str | int | bool | Callable[..., object]] = {
    "realize_reads_threshold": 10,
    "realize_acc_reads_threshold": 20,
    "realize_opcount_threshold": 200,
}
MIN_EPISODES_TO_COMPILE = 2000  # of a round: compiling takes about as long as so many steps save
Network = Callable[[Tensor], Tensor]  # pixels, or maps of frozen layers → features
NOTHING_TO_TRAIN = (
    "There is nothing to train: the features depend on no weight of the backbone, and the head has "
    "no weights. Use another backbone, or the head ridge or ecm."
)


def default_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass(frozen=True)
class ExecutionMode:
    """How a step is computed. All modes give the same results up to rounding."""

    bf16: bool = False  # convolutions; everything else stays in fp32
    compiled: bool = False  # networks and augmentation, by torch.compile
    captured: bool = False  # the whole step as a CUDA graph
    fused: bool = False  # augmentation, and the network if it has kernels, by `kedge.kernels`

    @classmethod
    def best(
        cls, embedding: Embedding, device: torch.device, n_episodes: int = MIN_EPISODES_TO_COMPILE
    ) -> ExecutionMode:
        """The fastest mode for so many episodes that device and installed packages support."""
        while _builders:  # nothing else may run on the GPU while a graph is captured
            _builders.pop().join()
        gpu = device.type == "cuda"
        worth_compiling = not never_compiled(embedding) and n_episodes >= MIN_EPISODES_TO_COMPILE
        compiled = gpu and worth_compiling and find_spec("triton") is not None
        fused = gpu and not compiled and kernels.available()
        return cls(half_precision(device), compiled, gpu, fused)


def never_compiled(embedding: Embedding) -> bool:
    """Whether `kedge.kernels` make the network at least as fast as torch.compile would."""
    return getattr(embedding.backbone, "never_compiled", False)


_builders: list[threading.Thread] = []


def build_kernels_in_background() -> None:
    """Import Triton and build the kernels, which takes seconds, while images are read."""
    if default_device().type == "cuda":
        device = torch.cuda.current_device()  # that of this thread: a new one has the first
        _builders.append(
            threading.Thread(target=_build_kernels, args=[device], name="kedge builds kernels")
        )
        _builders[-1].start()


def _build_kernels(device: int) -> None:
    # No thread can be started once the command is ending; other errors return in the first step.
    with suppress(RuntimeError), torch.cuda.device(device):
        kernels.build()


class StepInputs(NamedTuple):
    """What one step reads: an episode of new images, and what the method asks for besides."""

    batch: EpisodeBatch
    anchors: Float[Tensor, "a r"] | None = None  # drawn for this step
    old_batch: EpisodeBatch | None = None  # an episode of images kept from earlier rounds


class StepMetrics(NamedTuple):
    """Metrics of an episode: on the device a vector in this order, on the host an epoch's means.

    Each is also a field of `kedge.evaluation.results.EpochResult`, the training curve.
    """

    loss: float
    cross_entropy: float
    penalty: float

    @classmethod
    def zeros(cls, device: torch.device) -> Float[Tensor, " metrics"]:
        return torch.zeros(len(cls._fields), device=device)


class TrainStep:
    """One optimizer step on one episode, along the gradient of L_CE + λ · alignment penalty.

    Only weights of the student that need a gradient train. `class_embeddings` are learned with the
    network if the head has such; None otherwise. With a decay `ema`, an average of the weights is
    kept beside the student.
    """

    def __init__(
        self,
        student: Model,
        teacher: Model,
        method: Method,
        lr: float,
        class_embeddings: Float[Tensor, "classes r"] | None,
        memory: Memory,
        mode: ExecutionMode | None = None,
        ema: float = 0.0,
    ) -> None:
        self.student, self.teacher, self.penalty_weight = student, teacher, method.fixed_weight
        self.alignment = method.alignment if self.penalty_weight else None  # λ = 0 is fine-tuning
        self.class_embeddings = None if class_embeddings is None else nn.Parameter(class_embeddings)
        self.memory = {key: value.to(student.device) for key, value in memory.items()}
        self.trained_weights = {k: w for k, w in student.weights().items() if w.requires_grad}
        old = teacher.weights()
        self.old_weights = {name: old[name].detach() for name in self.trained_weights}
        if mode is None:
            mode = ExecutionMode.best(student.embedding, student.device)
        self.mode = mode
        trained = list(self.trained_weights.values())
        groups: list[dict[str, Any]] = [{"params": trained, "lr_scale": 1.0}]
        if self.class_embeddings is not None:
            scale = student.head.class_lr_scale
            groups.append({"params": [self.class_embeddings], "lr_scale": scale})
        for group in groups:  # a captured step reads its learning rate from the device
            group["lr"] = torch.tensor(lr, device=student.device) if self.mode.captured else lr
        self.optimizer = torch.optim.Adam(groups, fused=True, capturable=self.mode.captured)
        self.average = WeightAverage(student, self.class_embeddings, ema) if ema else None
        self._teacher_stream = torch.cuda.Stream() if self.mode.captured else None
        self._student, self._teacher, self._augment = self._compile()

    def _compile(self) -> tuple[Network, Network, Callable[[Tensor, Augmentation], Tensor]]:
        student, teacher = self.student.embedding, self.teacher.embedding
        if self.mode.fused:
            from kedge.kernels.augment import fused_augment

            return student, teacher, fused_augment
        if not self.mode.compiled:
            return student, teacher, augment
        # PyTorch's default is a folder for temporary files, which do not outlast a restart.
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder() / "inductor"))
        return tuple(
            torch.compile(each, dynamic=False, options=INDUCTOR_OPTIONS)
            for each in (student, teacher, augment)
        )  # type: ignore[return-value]

    def set_lr(self, lr: float) -> None:
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr * group["lr_scale"])
            else:
                group["lr"] = lr * group["lr_scale"]

    def __call__(self, inputs: StepInputs) -> Float[Tensor, " metrics"]:
        """Take one step and return its `StepMetrics`, still on the device."""
        metrics = self.backward(inputs)
        self.update()
        return metrics

    def update(self) -> None:
        """Move the weights along their gradients, and then their average."""
        self.optimizer.step()
        if self.average is not None:
            self.average.update()

    @property
    def averaged(self) -> Model:
        """The average of the weights, or without `ema` the student: what is validated and kept."""
        return self.student if self.average is None else self.average.model

    @property
    def averaged_embeddings(self) -> Float[Tensor, "classes r"] | None:
        """The class embeddings that belong to `averaged`."""
        return self.class_embeddings if self.average is None else self.average.class_embeddings

    def state(self) -> dict[str, Tensor]:
        """Weights, statistics and class embeddings of the student by name, not copied."""
        return _state(self.student, self.class_embeddings)

    def averaged_state(self) -> dict[str, Tensor]:
        """The same of `averaged`."""
        return _state(self.averaged, self.averaged_embeddings)

    def backward(self, inputs: StepInputs) -> Float[Tensor, " metrics"]:
        """Leave the gradient of one episode in `grad` of the weights; return its `StepMetrics`."""
        batch, anchors, old_batch = inputs
        pixels = self._augment(batch.images, batch.augmentation)
        teacher_features = self._teacher_features(pixels) if self.alignment is not None else None
        features = self._features(self._student, pixels)
        episode = features.unflatten(0, (len(batch.classes), -1))  # k, s+q, d
        embeddings = None
        if self.class_embeddings is not None:
            embeddings = self.class_embeddings[batch.classes]
        cross_entropy = self.student.head.loss(episode, batch.n_shot, embeddings)
        penalty = features.new_zeros(())
        if self.alignment is not None:
            rehearsal = None if old_batch is None else self._rehearse(old_batch)
            if self._teacher_stream is not None:
                torch.cuda.current_stream().wait_stream(self._teacher_stream)
            assert teacher_features is not None
            penalty = self.alignment.penalty(
                AlignmentInputs(
                    new=features,
                    old=teacher_features,
                    head=self.teacher.head,
                    anchors=anchors,
                    memory=self.memory,
                    new_weights=self.trained_weights,
                    old_weights=self.old_weights,
                    rehearsal=rehearsal,
                )
            )
        loss = cross_entropy + self.penalty_weight * penalty
        require(loss.requires_grad, NOTHING_TO_TRAIN)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        metrics = {"loss": loss, "cross_entropy": cross_entropy, "penalty": penalty}
        return torch.stack([metrics[name].detach() for name in StepMetrics._fields])

    def _teacher_features(self, pixels: Float[Tensor, "b ..."]) -> Float[Tensor, "b d"]:
        """In a graph the teacher has a stream of its own, so that its convolutions run while the
        student's wait for memory."""
        if self._teacher_stream is not None:
            self._teacher_stream.wait_stream(torch.cuda.current_stream())
        with torch.no_grad(), torch.cuda.stream(self._teacher_stream):
            return self._features(self._teacher, pixels)

    def _rehearse(self, batch: EpisodeBatch) -> Rehearsal:
        """A forward pass of its own, since BatchNorm normalises each episode by itself."""
        pixels = self._augment(batch.images, batch.augmentation)
        new = self._features(self._student, pixels)
        with torch.no_grad():
            old = self._features(self._teacher, pixels)
        ways = (len(batch.classes), -1)
        return Rehearsal(new.unflatten(0, ways), old.unflatten(0, ways), batch.n_shot)

    def _features(self, network: Network, pixels: Float[Tensor, "b ..."]) -> Float[Tensor, "b d"]:
        half = torch.autocast(pixels.device.type, torch.bfloat16, enabled=self.mode.bf16)
        with half, kernels.enabled(self.mode.fused):
            return network(pixels)


def _state(model: Model, class_embeddings: Tensor | None) -> dict[str, Tensor]:
    state = model.state_dict()
    return state if class_embeddings is None else {**state, "rows": class_embeddings.detach()}


class MultiEpisodeStep:
    """One optimizer step on several episodes, along the mean of their gradients.

    Every episode starts from the same BatchNorm statistics, and the step moves these by the mean
    of the episodes' changes. So the result does not depend on which process has which episode.
    """

    def __init__(self, step: TrainStep) -> None:
        self.step = step
        self.weights = [w for group in step.optimizer.param_groups for w in group["params"]]
        modules = (step.student.embedding, step.student.head)
        # Each buffer as it was before the step, and as it is now.
        self.buffers = [(b.clone(), b) for module in modules for b in module.buffers()]
        # Counters have no mean, and need none: every episode adds one.
        self.statistics = [(old, now) for old, now in self.buffers if now.is_floating_point()]
        parts = (*self.weights, *(now for _, now in self.statistics))
        self.sizes = [*(part.numel() for part in parts), len(StepMetrics._fields)]

    @torch.no_grad()
    def begin(self) -> None:
        for old, now in self.buffers:
            old.copy_(now)

    def episode(self, inputs: StepInputs) -> Float[Tensor, " n"]:
        """Gradient, change of the statistics, and metrics of one episode, as one vector."""
        with torch.no_grad():
            for old, now in self.buffers:
                now.copy_(old)
        metrics = self.step.backward(inputs)
        gradients = [torch.zeros_like(w) if w.grad is None else w.grad for w in self.weights]
        # An unchanged value may be infinite, and ∞ − ∞ is not a number.
        changes = [torch.where(now == old, 0, now - old) for old, now in self.statistics]
        return torch.cat([part.flatten() for part in (*gradients, *changes, metrics)])

    @torch.no_grad()
    def end(self, total: Float[Tensor, " n"], n: int) -> Float[Tensor, " metrics"]:
        """Take the step, given the sum of n episodes' vectors; return the mean of their metrics."""
        *parts, metrics = (total / n).split(self.sizes)
        gradients, changes = parts[: len(self.weights)], parts[len(self.weights) :]
        for weight, gradient in zip(self.weights, gradients, strict=True):
            # Fused Adam reads memory in order: a gradient must have the layout of its weight.
            weight.grad = torch.empty_like(weight).copy_(gradient.view(weight.shape))
        for (old, now), change in zip(self.statistics, changes, strict=True):
            moved = old + change.view(old.shape)
            now.copy_(torch.where(moved == old, old, moved))  # frozen ones keep even the sign of 0
        self.step.update()
        return metrics
