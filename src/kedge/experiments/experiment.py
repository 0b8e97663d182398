"""An experiment: which methods are compared, on which benchmark, with which settings."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch

from kedge.benchmarks import get_protocol
from kedge.benchmarks.base import Benchmark
from kedge.config import (
    ADDED,
    SHORT,
    BackboneConfig,
    Count,
    EpisodeShape,
    Epochs,
    HeadConfig,
    LearningRate,
    Schedule,
    Seed,
    ShotCount,
    TestEpisodes,
    WayCount,
)
from kedge.data.pools import Pool
from kedge.data.table import ImageTable
from kedge.episodes.sampler import check_n_episodes, check_pool
from kedge.errors import KedgeError, require
from kedge.evaluation.accuracy import EvalSpec
from kedge.methods.registry import parse_method
from kedge.models.backbones import PRETRAINED, build_backbone
from kedge.models.heads import build_head
from kedge.training.round import check_tasks_per_step
from kedge.utils import progress
from kedge.utils.config_io import normalize, option_name


@dataclass(frozen=True)
class Experiment:
    """Methods, benchmark, seeds and settings. The defaults are those of `kedge bench`."""

    protocol: str = "drawings"
    methods: tuple[str, ...] = ("NU", "FT", "DFA", "IDA", "IDA+", "PAR")
    seeds: tuple[Seed, ...] = (0,)
    episode: EpisodeShape = field(default_factory=EpisodeShape)
    schedule: Schedule = SHORT
    backbone: BackboneConfig = BackboneConfig(width=32)  # noqa: RUF009
    head: HeadConfig = field(default_factory=HeadConfig)
    eval_episodes: TestEpisodes = 2000
    data: str | None = None  # images on disk, for protocols that do not bring their own
    update_ways: WayCount | None = None  # training episodes of later rounds; None: as in the first
    update_shots: ShotCount | None = None
    update_epochs: Epochs | None = field(default=None, metadata=ADDED)  # of later rounds
    update_lr: LearningRate | None = field(default=None, metadata=ADDED)  # of later rounds
    # In place of unseen classes half of the validation classes, to choose settings by.
    test_on: Literal["unseen", "validation"] = field(default="unseen", metadata=ADDED)
    test_ways: tuple[WayCount, ...] = ()  # all combinations with test_shots are tested; empty: the
    test_shots: tuple[ShotCount, ...] = ()  # shape of the first round's training episodes

    def __post_init__(self) -> None:
        if isinstance(self.data, os.PathLike):  # JSON holds no paths
            object.__setattr__(self, "data", os.fspath(self.data))
        normalize(self)
        get_protocol(self.protocol)
        self.update_episode  # noqa: B018 (building a shape validates it)
        shapes = self.test_shapes
        require(len(set(shapes)) == len(shapes), "--test-ways, --test-shots: one is given twice.")
        require(len(self.methods) > 0, "--methods: name at least one method.")
        require(len(self.seeds) > 0, "--seeds: name at least one seed.")
        require(len(set(self.seeds)) == len(self.seeds), "--seeds: one is given twice.")
        labels = tuple(parse_method(text).label for text in self.methods)
        require(len(set(labels)) == len(labels), "--methods: one is given twice.")
        object.__setattr__(self, "methods", labels)

    @property
    def update_episode(self) -> EpisodeShape:
        """The shape of training episodes in every round after the first."""
        ways = self.episode.n_way if self.update_ways is None else self.update_ways
        shots = self.episode.n_shot if self.update_shots is None else self.update_shots
        return self._shape("update", ways, shots)

    @property
    def test_shapes(self) -> tuple[EpisodeShape, ...]:
        ways = self.test_ways or (self.episode.n_way,)
        shots = self.test_shots or (self.episode.n_shot,)
        return tuple(self._shape("test", k, s) for s in shots for k in ways)

    def benchmark(self, seed: int) -> Benchmark:
        """Images and class split of a seed."""
        benchmark = get_protocol(self.protocol).benchmark(seed, self.data)
        return benchmark.on_validation_classes() if self.test_on == "validation" else benchmark

    def _shape(self, kind: str, ways: Count, shots: Count) -> EpisodeShape:
        """A shape; an error names the options of this kind, since `episode` itself is valid."""
        try:
            return replace(self.episode, n_way=ways, n_shot=shots)
        except KedgeError as error:
            message = str(error).replace("--n-way", f"--{kind}-ways")
            raise KedgeError(message.replace("--n-shot", f"--{kind}-shots")) from None

    def eval_specs(self, pools: Sequence[Pool]) -> list[EvalSpec]:
        """Every pool in every test shape; the name of the first shape is left out. A pool has only
        those of the other shapes for which it has enough classes."""
        first = self.test_shapes[0]
        return [
            EvalSpec(pool.name if shape == first else f"{pool.name} at {shape}", pool, shape)
            for shape in self.test_shapes
            for pool in pools
            if shape == first or len(pool.classes) >= shape.ways[1]
        ]


def _warn_of_pretraining(experiment: Experiment) -> None:
    name = experiment.backbone.backbone
    pretrained = name == PRETRAINED or ":" in name
    if pretrained and any(part in experiment.protocol for part in ("imagenet", "cifar")):
        progress.note_once(
            f"{name} may have been pretrained on the classes of {experiment.protocol}, as every "
            "network pretrained on ImageNet was: these results say nothing about new classes"
        )


def check_experiment(experiment: Experiment) -> ImageTable:
    """The experiment's images. Raises if anything cannot work, before training starts."""
    check_tasks_per_step(experiment.schedule.tasks_per_step)
    benchmark = experiment.benchmark(experiment.seeds[0])
    table = benchmark.table
    _warn_of_pretraining(experiment)
    with torch.device("meta"):
        build_backbone(experiment.backbone, table.n_channels, table.image_size)
        build_head(experiment.head, 1)
    for method in map(parse_method, experiment.methods):
        if method.alignment is not None:
            method.alignment.check(experiment.update_episode)
    for round in range(benchmark.n_rounds):
        shape = experiment.update_episode if round else experiment.episode
        for pool in benchmark.train_and_val_pools(round):
            check_pool(pool, shape)
            for option in ("episodes", "val_episodes"):
                n_episodes = getattr(experiment.schedule, option)
                check_n_episodes(option_name(option), n_episodes, pool, shape)
        for spec in experiment.eval_specs(benchmark.test_pools(round)):
            check_pool(spec.pool, spec.shape)
            n_episodes = experiment.eval_episodes
            check_n_episodes("--eval-episodes", n_episodes, spec.pool, spec.shape)
    return table
