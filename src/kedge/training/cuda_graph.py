"""A whole training step as one CUDA graph, replayed for every episode of an epoch.

Gathering, augmentation, teacher, student, backward and optimizer are recorded once. The plan of an
epoch lies on the device, and so does the number of the episode, which each replay moves on by one:
the host starts replays and computes nothing. Shapes must be the same for all episodes.

Images that do not fit on the device are read ahead, and put where the graph looks for them before
each replay.

Where a step has several episodes there are two graphs, one for an episode and one for what follows
the last of them. Between them processes add up what each has found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import islice

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from kedge.data.augment import Augmentation
from kedge.episodes.loader import ImageLoader
from kedge.models.model import state_of
from kedge.training.step import (
    EpisodeBatch,
    MultiEpisodeStep,
    TrainStep,
)
from kedge.utils import distributed
from kedge.utils.progress import Tick

WARM_UP = 3  # steps before a graph can be recorded


@dataclass(frozen=True, eq=False)
class Planned:
    """The episodes of an epoch from one source, on the device; e episodes of b images.

    Where the pixels are elsewhere, so are the positions, and `slot` has the images of one episode.
    """

    pixels: ImageLoader
    positions: Int64[Tensor, "e b"]
    how: Augmentation
    classes: Int64[Tensor, "e k"]
    n_shot: int
    slot: UInt8[Tensor, "b c h w"] | None = None

    def at(self, number: Int64[Tensor, " 1"]) -> EpisodeBatch:
        """The episode of that number, which is on the device too."""
        top, left, mirrored, colour, classes = (
            tensor.index_select(0, number).squeeze(0) for tensor in self._drawn()
        )
        images = self.slot
        if images is None:
            images = self.pixels.fetch(self.positions.index_select(0, number).squeeze(0))
        return EpisodeBatch(images, Augmentation(top, left, mirrored, colour), classes, self.n_shot)

    def filled(self, order: Sequence[int]) -> Iterator[None]:
        """Before each of these episodes its images are put into the slot."""
        assert self.slot is not None
        for images in self.pixels.stream(self.positions[i] for i in order):
            self.slot.copy_(images)  # both on the device
            yield

    def _tensors(self) -> Iterator[Tensor]:
        yield self.positions
        yield from self._drawn()

    def _drawn(self) -> Iterator[Tensor]:
        for each in fields(self.how):
            yield getattr(self.how, each.name)
        yield self.classes

    def take(self, other: Planned) -> None:
        """The plan of another epoch in the same place."""
        for mine, theirs in zip(self._tensors(), other._tensors(), strict=True):
            mine.copy_(theirs)

    def kept(self) -> Planned:
        """A copy that nobody else will change."""
        positions, top, left, mirrored, colour, classes = (t.clone() for t in self._tensors())
        how = Augmentation(top, left, mirrored, colour)
        slot = None if self.pixels.resident else self.pixels.fetch(positions[0])
        return Planned(self.pixels, positions, how, classes, self.n_shot, slot)


class GraphedStep:
    """Recorded when it is made, which leaves the model and the optimizer as they were."""

    def __init__(
        self,
        step: TrainStep,
        new: Planned,
        old: Planned | None,
        anchors: Float[Tensor, "classes r"],
        chosen: Int64[Tensor, "e a"] | None,
        batch: int = 1,
    ) -> None:
        self.step, self.anchors, self.batch = step, anchors, batch
        self.new, self.old = new.kept(), None if old is None else old.kept()
        self.chosen = None if chosen is None else chosen.clone()
        self.number = torch.zeros(1, dtype=torch.int64, device=step.student.device)
        self.losses = torch.zeros(3, device=step.student.device)
        self.shared = MultiEpisodeStep(step)
        self.total = self.shared.nothing()
        with (
            _unchanged(step),
            torch.random.fork_rng(devices=[step.student.device]),
            # The convolutions that are fastest for these shapes are found out first.
            torch.backends.cudnn.flags(enabled=True, benchmark=True),
        ):
            self.graph = self._recorded(self._one if batch == 1 else self._part)
            self.end = None if batch == 1 else self._recorded(self._rest)

    def _recorded(self, body: Callable[[], None]) -> torch.cuda.CUDAGraph:
        aside, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(WARM_UP):
                self.number.zero_()
                body()
        torch.cuda.current_stream().wait_stream(aside)
        draws = torch.cuda.default_generators[torch.cuda.current_device()]
        spare = draws.clone_state()
        try:
            with torch.cuda.graph(graph):
                body()
        except BaseException:
            # PyTorch leaves it in the state of one that is being recorded (its issue 171263), and
            # whoever goes on without a graph could not draw from it.
            draws.graphsafe_set_state(spare)
            raise
        return graph

    def _one(self) -> None:
        self.losses += self.step(*self._episode())
        self.number += 1

    def _part(self) -> None:
        self.total += self.shared.episode(*self._episode())

    def _rest(self) -> None:
        self.losses += self.shared.end(self.total, self.batch)
        self._begin()

    def _begin(self) -> None:
        self.shared.begin()
        self.total.zero_()

    def _episode(self) -> tuple[EpisodeBatch, Float[Tensor, "a r"] | None, EpisodeBatch | None]:
        task = self.new.at(self.number)
        old_task = None if self.old is None else self.old.at(self.number)
        anchors = None
        if self.chosen is not None:
            anchors = self.anchors[self.chosen.index_select(0, self.number).squeeze(0)]
        return task, anchors, old_task

    def epoch(
        self,
        new: Planned,
        old: Planned | None,
        chosen: Int64[Tensor, "e a"] | None,
        tick: Tick,
        noise: Callable[[int], int],
    ) -> Float[Tensor, " 3"]:
        """The sum of the losses of all steps, still on the device. `noise` is the seed of an
        episode, where a step has several."""
        self.new.take(new)
        if self.old is not None and old is not None:
            self.old.take(old)
        if self.chosen is not None and chosen is not None:
            self.chosen.copy_(chosen)
        self.number.zero_()
        self.losses.zero_()
        firsts = range(0, len(new.positions), self.batch)
        mine = [distributed.shard(range(first, first + self.batch)) for first in firsts]
        ready = self._ready([i for step in mine for i in step])
        if self.end is None:
            for _ in ready:
                self.graph.replay()
                tick(1)
            return self.losses
        self._begin()
        for step in mine:
            for i in islice(ready, len(step)):
                torch.manual_seed(noise(i))
                self.number.fill_(i)
                self.graph.replay()
            self.total.copy_(distributed.all_reduce(self.total))
            self.end.replay()
            tick(self.batch)
        return self.losses

    def _ready(self, order: Sequence[int]) -> Iterator[int]:
        """These episodes, each when its images are where the graph looks for them."""
        sources = [source for source in (self.new, self.old) if source is not None]
        slots = [source.filled(order) for source in sources if source.slot is not None]
        for i, *_ in zip(order, *slots, strict=True):
            yield i


class _unchanged:
    """Weights, statistics and moments are afterwards what they were, in the same memory."""

    def __init__(self, step: TrainStep) -> None:
        self.step = step

    def __enter__(self) -> None:
        self.before = [tensor.clone() for tensor in self._tensors()]
        self.had_moments = bool(self.step.optimizer.state)

    def __exit__(self, *error: object) -> None:
        with torch.no_grad():
            for tensor in self._moments() if not self.had_moments else ():
                tensor.zero_()
            tensors = list(self._tensors())
            for tensor, value in zip(tensors, self.before, strict=False):
                tensor.copy_(value)
        self.step.optimizer.zero_grad(set_to_none=True)

    def _tensors(self) -> Iterator[Tensor]:
        """Moments last: before the first step there are none."""
        yield from state_of(self.step.student).values()
        if self.step.rows is not None:
            yield self.step.rows.detach()
        yield from self._moments()

    def _moments(self) -> Iterator[Tensor]:
        for moments in self.step.optimizer.state.values():
            yield from (value for value in moments.values() if isinstance(value, Tensor))
