"""A whole training step as one CUDA graph, replayed for every episode of an epoch.

The indices of an epoch are on the device, and so is the number of the episode, which each replay
increments: the host only launches replays. All episodes must have the same shape. Images that do
not fit on the device are copied before each replay into the buffer that the graph reads.

A step on several episodes has two graphs, one for an episode and one for the update after the last
of them. Between the two, processes sum their gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from kedge.data.augment import Augmentation
from kedge.episodes.sampler import EpisodeBatch, EpisodeIndices, EpisodeSampler
from kedge.errors import require
from kedge.training.step import MultiEpisodeStep, StepInputs, StepMetrics, TrainStep
from kedge.utils import distributed
from kedge.utils.progress import Tick

N_WARM_UP = 3  # steps before a graph can be captured
N_PLANS = 4  # algorithms that cuDNN times for each convolution; 0: none, it guesses


class GraphedStep:
    """Runs epochs by replaying a captured step.

    Captured with the episodes and anchors of one epoch; later epochs may use others of the same
    shape. Capturing leaves the model and the optimizer unchanged.
    """

    def __init__(
        self,
        step: TrainStep,
        samplers: Sequence[EpisodeSampler],
        episodes: Sequence[EpisodeIndices],
        anchors: Float[Tensor, "classes r"],
        anchor_indices: Int64[Tensor, "e a"] | None,
        tasks_per_step: int = 1,
    ) -> None:
        self.step, self.anchors, self.tasks_per_step = step, anchors, tasks_per_step
        pairs = zip(samplers, episodes, strict=True)
        self.episodes = [_StaticEpisodes(sampler, indices) for sampler, indices in pairs]
        self.anchor_indices = None if anchor_indices is None else anchor_indices.clone()
        self.number = torch.zeros(1, dtype=torch.int64, device=step.student.device)
        self.metrics = StepMetrics.zeros(step.student.device)
        self.multi = MultiEpisodeStep(step)
        self.total = torch.zeros(sum(self.multi.sizes), device=step.student.device)
        with (
            _restored(step),
            torch.random.fork_rng(devices=[step.student.device]),
            # Let cuDNN choose the fastest convolutions for these shapes before the capture.
            torch.backends.cudnn.flags(True, benchmark=N_PLANS > 0, benchmark_limit=N_PLANS),
        ):
            self.graph = self._capture(self._one if tasks_per_step == 1 else self._accumulate)
            self.update = None if tasks_per_step == 1 else self._capture(self._update)

    def _capture(self, body: Callable[[], None]) -> torch.cuda.CUDAGraph:
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(N_WARM_UP):
                self.number.zero_()
                body()
        torch.cuda.current_stream().wait_stream(stream)
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        spare = generator.clone_state()
        try:
            with torch.cuda.graph(graph):
                body()
        except BaseException:
            # PyTorch leaves the generator in its capturing state (PyTorch issue 171263), in which
            # training without a graph could not draw from it.
            generator.graphsafe_set_state(spare)
            raise
        return graph

    def _one(self) -> None:
        self.metrics += self.step(self._inputs())
        self.number += 1

    def _accumulate(self) -> None:
        self.total += self.multi.episode(self._inputs())

    def _update(self) -> None:
        self.metrics += self.multi.end(self.total, self.tasks_per_step)
        self._begin()

    def _begin(self) -> None:
        self.multi.begin()
        self.total.zero_()

    def _inputs(self) -> StepInputs:
        """The inputs of the current episode."""
        batch, *old = (episodes.batch(self.number) for episodes in self.episodes)
        anchors = None
        if self.anchor_indices is not None:
            anchors = self.anchors[self.anchor_indices.index_select(0, self.number).squeeze(0)]
        return StepInputs(batch, anchors, *old)

    def epoch(
        self,
        episodes: Sequence[EpisodeIndices],
        anchor_indices: Int64[Tensor, "e a"] | None,
        tick: Tick,
        seed_of: Callable[[int], int],
    ) -> Float[Tensor, " metrics"]:
        """Train on an epoch. Returns the sum of the steps' metrics, still on the device.

        `seed_of` gives the seed of an episode's noise if a step has several episodes.
        """
        for static, indices in zip(self.episodes, episodes, strict=True):
            static.load(indices)
        if self.anchor_indices is not None and anchor_indices is not None:
            self.anchor_indices.copy_(anchor_indices)
        self.number.zero_()
        self.metrics.zero_()
        firsts = range(0, len(episodes[0]), self.tasks_per_step)
        shards = [distributed.shard(range(i, i + self.tasks_per_step)) for i in firsts]
        numbers = self._when_loaded([i for shard in shards for i in shard])
        if self.update is None:
            for _ in numbers:
                self.graph.replay()
                tick(1)
            return self.metrics
        self._begin()
        for shard in shards:
            for i in islice(numbers, len(shard)):
                torch.manual_seed(seed_of(i))
                self.number.fill_(i)
                self.graph.replay()
            self.total.copy_(distributed.all_reduce(self.total))
            self.update.replay()
            tick(self.tasks_per_step)
        return self.metrics

    def _when_loaded(self, order: Sequence[int]) -> Iterator[int]:
        """These numbers of episodes, each when its images are where the graph reads them."""
        streams = [static.stream(order) for static in self.episodes if static.images is not None]
        for i, *_ in zip(order, *streams, strict=True):
            yield i


class _StaticEpisodes:
    """The episodes of one epoch in device memory at fixed addresses, where a graph reads them.

    If the images are not on the device, `images` holds those of the current episode, and positions
    are on the host.
    """

    def __init__(self, sampler: EpisodeSampler, indices: EpisodeIndices) -> None:
        require(sampler.has_fixed_shape, "ways and shots are drawn for each episode.")
        self.loader, self.n_shot = sampler.loader, indices.n_shot[0]
        self.positions, *self.rest = (tensor.clone() for tensor in _tensors(indices))
        self.images = None if self.loader.resident else self.loader.fetch(self.positions[0])

    def load(self, indices: EpisodeIndices) -> None:
        """Overwrite the buffers with another epoch's episodes."""
        for buffer, tensor in zip((self.positions, *self.rest), _tensors(indices), strict=True):
            buffer.copy_(tensor)

    def batch(self, number: Int64[Tensor, " 1"]) -> EpisodeBatch:
        """The episode with this number, which is on the device too."""
        *drawn, classes = (tensor.index_select(0, number).squeeze(0) for tensor in self.rest)
        images = self.images
        if images is None:
            images = self.loader.fetch(self.positions.index_select(0, number).squeeze(0))
        return EpisodeBatch(images, Augmentation(*drawn), classes, self.n_shot)

    def stream(self, order: Sequence[int]) -> Iterator[None]:
        """Copy the images of these episodes into the buffer, one episode per iteration."""
        assert self.images is not None
        for images in self.loader.stream(self.positions[i] for i in order):
            self.images.copy_(images)  # both on the device
            yield


def _tensors(indices: EpisodeIndices) -> list[Tensor]:
    how = indices.augmentation
    assert how is not None
    return [indices.positions.flatten(1), *vars(how).values(), indices.classes]


@contextmanager
def _restored(step: TrainStep) -> Iterator[None]:
    """Restore weights, their average, statistics and optimizer moments on exit, in place."""

    def moments() -> list[Tensor]:
        states = step.optimizer.state.values()
        return [value for state in states for value in state.values() if isinstance(value, Tensor)]

    weights = list(step.state().values())
    if step.average is not None:
        weights += step.averaged_state().values()
    before = [tensor.clone() for tensor in (*weights, *moments())]
    try:
        yield
    finally:
        with torch.no_grad():
            if len(before) == len(weights):  # there were no moments before the first step
                before += [torch.zeros_like(moment) for moment in moments()]
            for tensor, value in zip((*weights, *moments()), before, strict=False):
                tensor.copy_(value)
        step.optimizer.zero_grad(set_to_none=True)
