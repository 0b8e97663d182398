"""Training and evaluation speed on this machine, for `kedge speed`."""

from __future__ import annotations

import copy
import statistics
import time
from dataclasses import asdict, replace
from typing import Annotated, Any

import torch

from kedge.config import BackboneConfig, EpisodeShape, HeadConfig, Schedule, TrainConfig
from kedge.data.pools import Pool
from kedge.data.table import ImageTable
from kedge.episodes.sampler import check_pool
from kedge.errors import require
from kedge.evaluation.accuracy import EvalSpec, evaluate_pools
from kedge.methods.registry import parse_method
from kedge.models.embedding import ModelConfig
from kedge.models.model import Model, new_model
from kedge.models.trainable import trainable_copy
from kedge.training.loop import EpochRunner
from kedge.training.step import TrainStep, default_device
from kedge.utils import progress
from kedge.utils.config_io import to_dict, validated
from kedge.utils.env import environment, peak_memory_mb
from kedge.utils.ranges import Range

N_REPEATS = 3  # the median of these is reported
MIN_EPISODES, MAX_EPISODES = 4, 800  # per timed epoch; the paper's epoch has 800
TEST_EPISODES = 2000


class TimedTraining:
    """One method after its warm-up; an epoch has as many episodes as fit into `seconds`.

    Pass the `step` of an earlier instance with the same shapes to avoid compiling it again.
    """

    def __init__(
        self,
        start: Model,
        method: str,
        pool: Pool,
        shape: EpisodeShape,
        seconds: float,
        step: TrainStep | None = None,
    ) -> None:
        self.start, self.pool, self.shape = start, pool, shape
        self.method = parse_method(method).for_classes(len(start.classes), len(pool.classes))
        began = synchronized_time(start.device)
        self.step = self._build_step() if step is None else step
        self._n_epochs = 0
        warm_up = self._runner(MIN_EPISODES)
        self._run_epoch(warm_up)
        first_epoch_s = synchronized_time(start.device) - began
        epoch_s = self._run_epoch(warm_up)
        episode_s = epoch_s / MIN_EPISODES
        self.first_step_s = max(0.0, first_epoch_s - epoch_s + episode_s)
        self.n_episodes = round(min(max(seconds / episode_s, MIN_EPISODES), MAX_EPISODES))
        del warm_up  # frees the memory of its CUDA graph
        self.runner = self._runner(self.n_episodes)
        if self.step.mode.captured:
            self._run_epoch(self.runner)  # captures a graph of its own

    def _build_step(self) -> TrainStep:
        """The step of an update round whose teacher is a frozen copy of the start model."""
        embedding = copy.deepcopy(self.start.embedding).eval().requires_grad_(False)
        teacher, student = replace(self.start, embedding=embedding), trainable_copy(self.start)
        ema = self.method.apply_schedule(TrainConfig()).schedule.ema
        return TrainStep(student, teacher, self.method, 1e-3, None, {}, ema=ema)

    def _runner(self, n_episodes: int) -> EpochRunner:
        config = self.method.apply_schedule(TrainConfig(self.shape, Schedule(1, n_episodes, 1), 0))
        return EpochRunner(self.step, self.pool, self.start.anchors, config, 1)

    def _run_epoch(self, runner: EpochRunner) -> float:
        began = synchronized_time(self.start.device)
        runner.epoch(self._n_epochs, progress.no_tick)
        self._n_epochs += 1
        return synchronized_time(self.start.device) - began

    def ms_per_step(self) -> float:
        """Milliseconds per step, measured over one epoch with its episode sampling."""
        return 1000 * self._run_epoch(self.runner) / self.n_episodes


def evaluation_seconds(model: Model, pool: Pool, shape: EpisodeShape) -> float:
    """Seconds for 2000 test episodes, from pixels to accuracies."""
    began = synchronized_time(model.device)
    evaluate_pools(model, [EvalSpec("test", pool, shape)], TEST_EPISODES, 0)
    return synchronized_time(model.device) - began


def synchronized_time(device: torch.device) -> float:
    """Seconds on the clock once the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def untrained_model(pool: Pool, backbone: BackboneConfig) -> Model:
    """A new model on the default device. Its anchors are noise: their values do not affect time."""
    size, n_channels = pool.table.image_size, pool.table.n_channels
    model = new_model(ModelConfig(backbone, HeadConfig(), n_channels, image_size=size), pool, 0)
    anchors = torch.randn(len(pool.classes), model.config.n_features, generator=torch.Generator())
    return replace(model, classes=tuple(pool.classes), anchors=anchors).to(default_device())


def train_and_test_pool(
    table: ImageTable, shape: EpisodeShape, n_train: int = 64, n_test: int = 20
) -> tuple[Pool, Pool]:
    """The first and the last classes; by default at most as many as miniImageNet has."""
    for option, (least, most) in (("--n-way", shape.ways), ("--n-shot", shape.shots)):
        require(least == most, f"{option}: speed needs episodes of one shape; give one number.")
    train, test = table.classes[:n_train], table.classes[-n_test:]
    pools = Pool.all("training", table, train), Pool.all("test", table, test)
    for pool in pools:
        check_pool(pool, shape)
    return pools


def measure(
    table: ImageTable, backbone: BackboneConfig, shape: EpisodeShape, seconds: float
) -> dict[str, Any]:
    """A JSON record of rates, device and execution mode; `seconds` for each measurement."""
    seconds = validated("--seconds", Annotated[float, Range(0, 3600, "(]")], seconds)
    train, test = train_and_test_pool(table, shape)
    model = untrained_model(train, backbone)
    n_images = shape.ways[1] * (shape.shots[1] + shape.n_query)
    training_rates = {}
    with progress.task("measuring", 2) as tick:
        for method in ("FT", "IDA"):
            training = TimedTraining(model, method, train, shape, seconds / N_REPEATS)
            ms = statistics.median(training.ms_per_step() for _ in range(N_REPEATS))
            training_rates[method] = {
                "episodes_per_s": 1000 / ms,
                "images_per_s": 1000 * n_images / ms,
                "first_step_s": training.first_step_s,
            }
            tick(1)
        times = [evaluation_seconds(model, test, shape) for _ in range(N_REPEATS + 1)][1:]
    return {
        "training": training_rates,
        "evaluation": {"episodes": TEST_EPISODES, "seconds": statistics.median(times)},
        "images": {"source": table.source, "image_size": table.image_size},
        "backbone": to_dict(backbone),
        "episode": to_dict(shape),
        "device": model.device.type,
        "execution": asdict(training.step.mode),
        "peak_memory_mb": peak_memory_mb(),
        "environment": environment(),
    }
