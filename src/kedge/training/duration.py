"""How long a round will take without a GPU, measured on a few images before it starts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kedge.config import TrainConfig
from kedge.data.augment import to_float
from kedge.data.pools import RoundData
from kedge.methods.base import Memory
from kedge.methods.registry import Method
from kedge.models.embedding import eval_mode
from kedge.models.frozen_layers import FrozenLayers
from kedge.models.model import Model
from kedge.models.trainable import set_train_mode, trainable_copy, trained_names
from kedge.utils import distributed, progress
from kedge.utils.text import format_seconds

N_IMAGES = 16  # images that are timed; 2 if the network is slow
MAX_WARM_UP = 0.2  # seconds for 2 images; of a slower network no more are timed
WORTH_TELLING = 10  # seconds


@dataclass(frozen=True)
class Duration:
    """The expected duration of a round, in seconds."""

    n_views: int  # images and augmented copies that frozen layers embed once; 0 if none are frozen
    frozen: float  # of all views together
    n_steps: int
    step: float  # of one step
    validation: float  # of all epochs together

    @property
    def total(self) -> float:
        return self.frozen + self.n_steps * self.step + self.validation

    def __str__(self) -> str:
        """'about 3 min: 90 s to compute …, then 400 steps of 0.3 s'."""
        steps = f"{self.n_steps:,} steps of {self.step:.2g} s"
        if self.n_views:
            views = f"{self.n_views:,} views once"
            once = f"{format_seconds(self.frozen)} to compute the frozen layers of {views}"
            steps = f"{once}, then {steps}"
        return f"about {format_seconds(self.total)}: {steps}"


def tell_duration(
    start: Model, data: RoundData, method: Method, config: TrainConfig, memory: Memory
) -> None:
    """Note how long a round that trains will take. On a GPU it is short, and among several
    processes it cannot be told by one of them."""
    if start.device.type != "cpu" or distributed.world_size() > 1:
        return
    duration = expected_duration(start, data, method, config, memory)
    if duration.total >= WORTH_TELLING:
        progress.note(f"expected duration, measured on a few images: {duration}")


def expected_duration(
    start: Model, data: RoundData, method: Method, config: TrainConfig, memory: Memory
) -> Duration:
    """The duration of a round on a CPU; takes about a second, and changes nothing."""
    schedule, shape = config.schedule, config.episode
    trained = trained_names(start, schedule.train)
    rows = data.train.rows[:N_IMAGES]
    inputs = to_float(data.train.table.take(rows).to(start.device))
    layers, n_views, frozen = FrozenLayers.of(start, trained), 0, 0.0
    if layers is not None and layers.fit_into_memory(data):
        with torch.no_grad(), eval_mode(start.embedding):
            frozen = _seconds_per_image(layers.maps, inputs)
            inputs, n_views = layers.maps(inputs), layers.n_embedded(data)
        start = layers.shorten(start)
    student = trainable_copy(start, trained)

    def train(images: Tensor) -> None:
        features = student.embedding(images)
        if features.requires_grad:
            features.square().sum().backward()

    with torch.random.fork_rng(devices=[]):  # dropout must not change what follows
        set_train_mode(student, schedule)
        per_trained = _seconds_per_image(train, inputs)
        with torch.no_grad(), eval_mode(student.embedding):
            per_embedded = _seconds_per_image(student.embedding, inputs)
    per_image, n_episodes = per_trained, 1
    alignment = method.alignment if method.weight else None
    if alignment is not None:
        per_image += per_embedded  # by the old model
        n_episodes += alignment.rehearsal_pool(memory, shape) is not None
    images = n_episodes * sum(shape.ways) / 2 * (sum(shape.shots) / 2 + shape.n_query)
    return Duration(
        n_views=n_views,
        frozen=frozen * n_views,
        n_steps=schedule.epochs * schedule.episodes // schedule.tasks_per_step,
        step=per_image * images * schedule.tasks_per_step,
        validation=per_embedded * len(data.val) * schedule.epochs,
    )


def _seconds_per_image(run: Callable[[Tensor], object], images: Tensor) -> float:
    """Time of an image: the shortest of several, since the first call is slower than others and
    other programs may disturb. Of a slow network 2 images have to do."""
    few = images[:2]
    seconds = _seconds_of(run, few)
    if seconds > MAX_WARM_UP:
        return min(seconds, _seconds_of(run, few)) / len(few)
    return min(_seconds_of(run, images) for _ in range(2)) / len(images)


def _seconds_of(run: Callable[[Tensor], object], images: Tensor) -> float:
    began = time.perf_counter()
    run(images)
    return time.perf_counter() - began
