"""The practice of a round: episodes drawn epoch by epoch, and a step on each or on several.

All that is random in an epoch follows from (seed, round, epoch) alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from kedge.config import EpisodeShape, TrainConfig
from kedge.data.augment import Augmentation, draw_augmentation
from kedge.data.pools import Pool
from kedge.episodes.loader import ImageLoader
from kedge.episodes.sampler import (
    EpisodeIndices,
    sample_anchors,
    sample_episodes,
)
from kedge.errors import KedgeError
from kedge.training.cuda_graph import GraphedStep, Planned
from kedge.training.step import (
    EpisodeBatch,
    MultiEpisodeStep,
    TrainStep,
)
from kedge.training.task2vec import nearest_classes
from kedge.utils import distributed, progress
from kedge.utils.progress import Tick
from kedge.utils.seeding import generator, torch_seed

Episode = tuple[EpisodeBatch, Tensor | None, EpisodeBatch | None]  # new images, anchors, old images


class EpochRunner:
    """Hands the episodes of an epoch to the step, one by one, together, or as a CUDA graph."""

    def __init__(
        self,
        step: TrainStep,
        pool: Pool,
        anchors: Float[Tensor, "classes r"],
        config: TrainConfig,
        round: int,
    ) -> None:
        self.step, self.anchors, self.config, self.round = step, anchors, config, round
        device = step.student.device
        self.replay: GraphedStep | None = None
        self.shared = MultiEpisodeStep(step)
        self.new = EpisodeSampler("", pool, config.episode, config.schedule.episodes, device)
        self.old: EpisodeSampler | None = None
        if step.alignment is not None:
            found = step.alignment.rehearse(step.memory, config.episode)
            if found is not None:
                self.old = EpisodeSampler("old ", *found, config.schedule.episodes, device)

    def epoch(self, epoch: int, tick: Tick) -> tuple[float, float, float]:
        """Mean loss, cross-entropy and penalty."""
        step, config, batch = self.step, self.config, self.config.schedule.tasks_per_step
        student, device = step.student, step.student.device
        key = (config.seed, self.round, epoch)
        hard = config.schedule.sampling == "hard"
        nearest = (
            distributed.broadcast(nearest_classes(student, self.new.pool, key)) if hard else None
        )
        plans = (self.new.plan(key, nearest), None if self.old is None else self.old.plan(key))
        chosen = self._anchors(key)
        student.embedding.train()
        student.head.train()
        replay = self._recorded(plans, chosen)
        own = [device] if device.type == "cuda" else []
        noise = partial(torch_seed, "dropblock", *key)  # of an episode, whoever has it
        with torch.random.fork_rng(devices=own):  # DropBlock draws from the global generator
            torch.manual_seed(torch_seed("dropblock", *key))
            if replay is not None:
                losses = replay.epoch(*_planned(plans), chosen, tick, noise)
            else:
                losses = torch.zeros(3, device=device)
                episodes = self._episodes(plans, chosen)
                for first in range(0, config.schedule.episodes, batch):
                    if batch == 1:
                        losses += step(*next(episodes))
                    else:
                        losses += self._together(first, episodes, noise)
                    tick(batch)
        mean, cross_entropy, penalty = (losses / (config.schedule.episodes // batch)).tolist()
        return mean, cross_entropy, penalty

    def _episodes(
        self, plans: tuple[EpochPlan, EpochPlan | None], chosen: Int64[Tensor, "e a"] | None
    ) -> Iterator[Episode]:
        """What steps take: new images, the anchors they are held against, old images."""
        n, batch, (new, old) = self.config.schedule.episodes, self.config.schedule.tasks_per_step, plans
        groups = [range(first, first + batch) for first in range(0, n, batch)]
        order = [i for group in groups for i in distributed.shard_in_sum_order(group)]
        old_tasks = repeat(None, len(order)) if old is None else old.tasks(order)
        for i, task, old_task in zip(order, new.tasks(order), old_tasks, strict=True):
            yield task, None if chosen is None else self.anchors[chosen[i]], old_task

    def _together(
        self, first: int, episodes: Iterator[Episode], noise: Callable[[int], int]
    ) -> Float[Tensor, " 3"]:
        """One step on the episodes from the first, of which every process takes its share."""

        def learn(i: int) -> Tensor:
            torch.manual_seed(noise(i))
            return self.shared.episode(*next(episodes))

        batch = self.config.schedule.tasks_per_step
        self.shared.begin()
        return self.shared.end(
            distributed.sum_over_ranks(learn, range(first, first + batch)), batch
        )

    def _anchors(self, key: tuple[int, int, int]) -> Int64[Tensor, "e a"] | None:
        """Those which each step is held against."""
        alignment, n = self.step.alignment, self.config.schedule.episodes
        ways = self.config.episode.ways[1]
        per_step = alignment.anchors_per_step(ways, len(self.anchors)) if alignment else 0
        if per_step == 0:
            return None
        drawn = sample_anchors(len(self.anchors), per_step, n, generator("anchors", *key))
        return drawn.to(self.anchors.device)

    def _recorded(
        self, plans: tuple[EpochPlan, EpochPlan | None], chosen: Int64[Tensor, "e a"] | None
    ) -> GraphedStep | None:
        """The step as a graph, recorded in the first epoch; None where it cannot be one."""
        if self.replay is None and self.step.pace.captured:
            try:
                batch = self.config.schedule.tasks_per_step
                self.replay = GraphedStep(self.step, *_planned(plans), self.anchors, chosen, batch)
            except (RuntimeError, KedgeError) as error:
                progress.note(f"the step is not recorded as one graph, and is slower: {error}")
                self.step.pace = replace(self.step.pace, captured=False)
        return self.replay


class EpisodeSampler:
    """Where episodes come from: a pool, and the shape they have."""

    def __init__(
        self, name: str, pool: Pool, shape: EpisodeShape, n_episodes: int, device: torch.device
    ) -> None:
        self.name, self.pool, self.shape, self.n_episodes = name, pool, shape, n_episodes
        self.pixels, self.device = ImageLoader(pool, device), device

    def plan(
        self,
        key: tuple[int, int, int],
        nearest: Int64[Tensor, "classes others"] | None = None,
    ) -> EpochPlan:
        """An epoch of them, drawn at once."""
        rng = generator(f"{self.name}train", *key)
        plan = sample_episodes(self.pool, self.shape, self.n_episodes, rng, nearest)
        rng = generator(f"{self.name}augment", *key)
        most = self.shape.ways[1] * (self.shape.shots[1] + self.shape.n_query)
        size = self.pool.table.image_size
        how = draw_augmentation(rng, self.n_episodes, most, size).to(self.device)
        alike = len(set(self.shape.ways)) == len(set(self.shape.shots)) == 1
        return EpochPlan(self.pixels, plan.to(self.pixels.place), how, self.device, alike)


@dataclass(frozen=True, eq=False)
class EpochPlan:
    """Which images form each episode of an epoch, and what is done to them."""

    pixels: ImageLoader
    plan: EpisodeIndices
    how: Augmentation
    device: torch.device
    alike: bool  # by their shape, in all epochs: of few that are drawn, all may be so by chance

    def tasks(self, order: Sequence[int]) -> Iterator[EpisodeBatch]:
        """These episodes, one after the other."""
        episodes = [self.plan.episode(i) for i in order]
        images = self.pixels.stream(positions.flatten() for positions, _ in episodes)
        for i, some, (_, classes) in zip(order, images, episodes, strict=True):
            yield EpisodeBatch(
                some, self.how.of(i, len(some)), classes.to(self.device), self.plan.n_shot[i]
            )

    def planned(self) -> Planned:
        """All episodes alike."""
        if not self.alike:
            raise KedgeError("its ways and shots are drawn for each episode.")
        positions, classes = self.plan.positions.flatten(1), self.plan.classes.to(self.device)
        return Planned(self.pixels, positions, self.how, classes, self.plan.n_shot[0])


def _planned(plans: tuple[EpochPlan, EpochPlan | None]) -> tuple[Planned, Planned | None]:
    new, old = plans
    return new.planned(), None if old is None else old.planned()
