"""Methods × rounds × seeds over a protocol: resumable, and every number ends in a record.

The folder of a run:

    experiment.json                      the settings; a folder belongs to one experiment
    seed-0/base/                         round 0, shared by every method
    seed-0/IDA/round-1/model.kedge       the model
                       run.json          its scores, curve and cost
                       episodes.safetensors   the accuracy of every test episode
                       memory.safetensors     what the method keeps for its next round, if anything
                       places.safetensors     where its classes are, to see how they move later
                       training.safetensors   the state while it trains; gone when it is done
    record.json                          all of it together, written when all is done
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from kedge.benchmarks import protocol
from kedge.config import (
    SHORT,
    BackboneConfig,
    Count,
    EpisodeShape,
    HeadConfig,
    Schedule,
    plain,
    require,
)
from kedge.data.pools import Pool
from kedge.data.table import ImageTable
from kedge.episodes.sampler import check_pool
from kedge.errors import KedgeError
from kedge.evaluation.accuracy import EvalSpec
from kedge.methods.registry import parse_method
from kedge.models.backbones import build_backbone
from kedge.models.heads import build_head
from kedge.training.round import check_batch


@dataclass(frozen=True)
class Experiment:
    """What is compared, on what, and for how long. The defaults are those of `kedge bench`."""

    protocol: str = "drawings"
    methods: tuple[str, ...] = ("NU", "FT", "DFA", "IDA", "PAR")
    seeds: tuple[int, ...] = (0,)
    episode: EpisodeShape = field(default_factory=EpisodeShape)
    schedule: Schedule = SHORT
    backbone: BackboneConfig = BackboneConfig(width=32)  # noqa: RUF009
    head: HeadConfig = field(default_factory=HeadConfig)
    eval_episodes: int = 2000
    data: str | None = None  # images on disk, for protocols that do not bring their own
    update_ways: Count | None = None  # of the episodes in later rounds; None: those of the first
    update_shots: Count | None = None
    test_ways: tuple[Count, ...] = ()  # every combination with test_shots is tested; none: as in
    test_shots: tuple[Count, ...] = ()  # the training of the first round

    def __post_init__(self) -> None:
        if isinstance(self.data, os.PathLike):  # which no file of settings could hold
            object.__setattr__(self, "data", os.fspath(self.data))
        plain(self)
        protocol(self.protocol)
        self.update_episode  # noqa: B018 (validated when it is built, as are the shapes)
        shapes = self.test_shapes
        require(len(set(shapes)) == len(shapes), "--test-ways, --test-shots: one is named twice.")
        require(len(self.methods) > 0, "--methods: name at least one method.")
        require(len(self.seeds) > 0, "--seeds: name at least one seed.")
        require(min(self.seeds) >= 0, f"--seeds: {min(self.seeds)} must not be negative.")
        require(len(set(self.seeds)) == len(self.seeds), "--seeds: one is named twice.")
        require(self.eval_episodes >= 2, "--eval-episodes: an interval needs at least 2.")
        labels = tuple(parse_method(text).label for text in self.methods)
        require(len(set(labels)) == len(labels), "--methods: one is named twice.")
        object.__setattr__(self, "methods", labels)

    @property
    def update_episode(self) -> EpisodeShape:
        """Of the training in every round after the first."""
        ways = self.episode.n_way if self.update_ways is None else self.update_ways
        shots = self.episode.n_shot if self.update_shots is None else self.update_shots
        return self._shape("update", ways, shots)

    @property
    def test_shapes(self) -> tuple[EpisodeShape, ...]:
        ways = self.test_ways or (self.episode.n_way,)
        shots = self.test_shots or (self.episode.n_shot,)
        return tuple(self._shape("test", k, s) for s in shots for k in ways)

    def _shape(self, kind: str, ways: Count, shots: Count) -> EpisodeShape:
        """Since the episode itself is sound, what is wrong was said of this kind of it."""
        try:
            return replace(self.episode, n_way=ways, n_shot=shots)
        except KedgeError as error:
            said = str(error).replace("--n-way", f"--{kind}-ways")
            raise KedgeError(said.replace("--n-shot", f"--{kind}-shots")) from None

    def trials(self, pools: Sequence[Pool]) -> list[EvalSpec]:
        """Every pool in every shape; the first shape is the main one and is not named."""
        first = self.test_shapes[0]
        return [
            EvalSpec(pool.name if shape == first else f"{pool.name} at {shape}", pool, shape)
            for shape in self.test_shapes
            for pool in pools
        ]

    @property
    def episodes_per_round(self) -> int:
        return self.schedule.epochs * self.schedule.episodes


def check(experiment: Experiment) -> ImageTable:
    """Find what cannot work before anything is written or trained. Returns the images."""
    check_batch(experiment.schedule)
    benchmark = protocol(experiment.protocol).benchmark(experiment.seeds[0], experiment.data)
    table = benchmark.table
    with torch.device("meta"):
        build_backbone(experiment.backbone, table.n_channels, table.image_size)
        build_head(experiment.head, 1)
    for method in map(parse_method, experiment.methods):
        if method.alignment is not None:
            method.alignment.check(experiment.update_episode)
    for round in range(benchmark.n_rounds):
        shape = experiment.update_episode if round else experiment.episode
        for pool in benchmark.delivered(round):
            check_pool(pool, shape)
        for trial in experiment.trials(benchmark.test_pools(round)):
            check_pool(trial.pool, trial.shape)
    return table
