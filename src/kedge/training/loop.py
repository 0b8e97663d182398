"""The training loop of one epoch: draws its episodes and takes a step on each, or on several.

All randomness of an epoch follows from (seed, round, epoch).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from kedge.config import TrainConfig
from kedge.data.pools import Pool
from kedge.episodes.sampler import EpisodeIndices, EpisodeSampler, sample_anchors
from kedge.errors import KedgeError
from kedge.models.frozen_layers import FrozenLayers
from kedge.models.trainable import set_train_mode
from kedge.training.cuda_graph import GraphedStep
from kedge.training.step import MultiEpisodeStep, StepInputs, StepMetrics, TrainStep
from kedge.training.task2vec import nearest_classes
from kedge.utils import distributed, progress
from kedge.utils.progress import Tick
from kedge.utils.seeding import generator, torch_seed


class EpochRunner:
    """Runs the steps of an epoch: episode by episode, several per step, or as a CUDA graph."""

    def __init__(
        self,
        step: TrainStep,
        pool: Pool,
        anchors: Float[Tensor, "classes r"],
        config: TrainConfig,
        round: int,
        layers: FrozenLayers | None = None,
    ) -> None:
        """With frozen `layers`, the images of the pool are their outputs."""
        self.step, self.anchors, self.config, self.round = step, anchors, config, round
        self.graph: GraphedStep | None = None
        self.multi = MultiEpisodeStep(step)
        n_episodes, device = config.schedule.episodes, step.student.device
        # Of the new images, and of images kept from earlier rounds if the method rehearses.
        self.samplers = [EpisodeSampler("", pool, config.episode, n_episodes, device)]
        if step.alignment is not None:
            old = step.alignment.rehearsal_pool(step.memory, config.episode)
            if old is not None:
                old_pool, shape = old
                if layers is not None:
                    old_pool = layers.map_pool(old_pool, config.seed)
                self.samplers.append(EpisodeSampler("old ", old_pool, shape, n_episodes, device))

    def epoch(self, epoch: int, tick: Tick) -> StepMetrics:
        """Train for one epoch. Returns the means of the steps' metrics."""
        step, schedule, student = self.step, self.config.schedule, self.step.student
        n_tasks, device = schedule.tasks_per_step, student.device
        key = (self.config.seed, self.round, epoch)
        episodes, anchor_indices = self._sample_episodes(key), self._sample_anchors(key)
        set_train_mode(student, schedule)
        graph = self._capture(episodes, anchor_indices)
        seed_of = partial(torch_seed, "dropblock", *key)  # of an episode, on whichever process
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(torch_seed("dropblock", *key))  # DropBlock uses the global generator
            if graph is not None:
                total = graph.epoch(episodes, anchor_indices, tick, seed_of)
            else:
                total = StepMetrics.zeros(device)
                inputs = self._inputs(episodes, anchor_indices)
                for first in range(0, schedule.episodes, n_tasks):
                    if n_tasks == 1:
                        total += step(next(inputs))
                    else:
                        total += self._multi_step(first, inputs, seed_of)
                    tick(n_tasks)
        return StepMetrics(*(total / (schedule.episodes // n_tasks)).tolist())

    def _sample_episodes(self, key: tuple[int, int, int]) -> list[EpisodeIndices]:
        """One epoch of episodes per sampler."""
        new, *old = self.samplers
        nearest = None
        if self.config.schedule.sampling == "hard":
            nearest = distributed.broadcast(nearest_classes(self.step.student, new.pool, key))
        return [new.sample(key, nearest), *(sampler.sample(key) for sampler in old)]

    def _sample_anchors(self, key: tuple[int, int, int]) -> Int64[Tensor, "e a"] | None:
        """The anchors that the alignment compares with in each step; None if it uses none."""
        alignment, n_anchors = self.step.alignment, len(self.anchors)
        max_ways = self.config.episode.ways[1]
        per_step = alignment.anchors_per_step(max_ways, n_anchors) if alignment else 0
        if per_step == 0:
            return None
        n_episodes, rng = self.config.schedule.episodes, generator("anchors", *key)
        return sample_anchors(n_anchors, per_step, n_episodes, rng).to(self.anchors.device)

    def _capture(
        self, episodes: list[EpisodeIndices], anchor_indices: Int64[Tensor, "e a"] | None
    ) -> GraphedStep | None:
        """The step as a CUDA graph, captured in the first epoch; None if that is impossible."""
        if self.graph is None and self.step.mode.captured:
            drawn = (self.samplers, episodes, self.anchors, anchor_indices)
            try:
                self.graph = GraphedStep(self.step, *drawn, self.config.schedule.tasks_per_step)
            except (RuntimeError, KedgeError) as error:
                progress.note(f"training is slower, since the step has no CUDA graph: {error}")
                self.step.mode = replace(self.step.mode, captured=False)
        return self.graph

    def _inputs(
        self, episodes: list[EpisodeIndices], anchor_indices: Int64[Tensor, "e a"] | None
    ) -> Iterator[StepInputs]:
        """The inputs of each episode of this process, in the order in which they are summed."""
        n_tasks = self.config.schedule.tasks_per_step
        firsts = range(0, len(episodes[0]), n_tasks)
        groups = [distributed.shard_in_sum_order(range(i, i + n_tasks)) for i in firsts]
        order = [i for group in groups for i in group]
        pairs = zip(self.samplers, episodes, strict=True)
        streams = [sampler.batches(indices, order) for sampler, indices in pairs]
        for i, batch, *old in zip(order, *streams, strict=True):
            anchors = None if anchor_indices is None else self.anchors[anchor_indices[i]]
            yield StepInputs(batch, anchors, *old)

    def _multi_step(
        self, first: int, inputs: Iterator[StepInputs], seed_of: Callable[[int], int]
    ) -> Float[Tensor, " metrics"]:
        """One step on the episodes from `first` on, which the processes share."""

        def episode(i: int) -> Tensor:
            torch.manual_seed(seed_of(i))
            return self.multi.episode(next(inputs))

        n_tasks = self.config.schedule.tasks_per_step
        self.multi.begin()
        total = distributed.sum_over_ranks(episode, range(first, first + n_tasks))
        return self.multi.end(total, n_tasks)
