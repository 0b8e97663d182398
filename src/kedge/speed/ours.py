"""kedge's own training and evaluation, timed."""

from __future__ import annotations

import copy
import time
from dataclasses import replace

from jaxtyping import Float
from torch import Tensor

from kedge.config import (
    EpisodeShape,
    Schedule,
    TrainConfig,
)
from kedge.data.pools import Pool
from kedge.evaluation.accuracy import EvalSpec, evaluate
from kedge.methods.registry import parse_method
from kedge.models.model import Model, trainable_copy
from kedge.speed.limits import synchronize
from kedge.training.loop import EpochRunner
from kedge.training.step import TrainStep
from kedge.utils.progress import silent

LEAST, MOST = 4, 800  # episodes in an epoch; the paper's has 800
TEST_EPISODES = 2000


class Training:
    """One method in steady state. Only whole epochs are timed, planning included."""

    def __init__(
        self,
        start: Model,
        method: str,
        pool: Pool,
        shape: EpisodeShape,
        seconds: float,
        step: TrainStep | None = None,
        anchors: Float[Tensor, "classes r"] | None = None,
    ) -> None:
        """`seconds` are what an epoch shall take. A step that another has used is compiled."""
        self.device, self.pool, self.shape = start.device, pool, shape
        self.anchors = start.anchors if anchors is None else anchors
        synchronize(self.device)
        began = time.perf_counter()
        self.step = _step(start, method) if step is None else step
        practice = self._practice(LEAST)
        self._next = 0
        self._epoch(practice)
        until_then = time.perf_counter() - began
        again = self._epoch(practice)
        self.first_step_s = max(0.0, until_then - again * (LEAST - 1) / LEAST)
        self.n_episodes = episodes_for(seconds, again / LEAST)
        del practice  # and with it the memory of its graph
        self.practice = self._practice(self.n_episodes)
        if self.step.pace.captured:
            self._epoch(self.practice)  # is recorded anew

    def _practice(self, n_episodes: int) -> EpochRunner:
        config = TrainConfig(self.shape, Schedule(1, n_episodes, 1), 0)
        return EpochRunner(self.step, self.pool, self.anchors, config, 1)

    def _epoch(self, practice: EpochRunner) -> float:
        began = time.perf_counter()
        practice.epoch(self._next, silent)
        synchronize(self.device)
        self._next += 1
        return time.perf_counter() - began

    def turn(self) -> float:
        """Milliseconds per step, over one epoch."""
        return 1000 * self._epoch(self.practice) / self.n_episodes


def _step(start: Model, method: str) -> TrainStep:
    """As a round makes it."""
    embedding = copy.deepcopy(start.embedding).eval().requires_grad_(False)
    teacher = replace(start, embedding=embedding)
    return TrainStep(trainable_copy(start), teacher, parse_method(method), 1e-3, None, {})


def episodes_for(seconds: float, each: float, most: int = MOST) -> int:
    return round(min(max(seconds / each, LEAST), most))


def evaluation_seconds(model: Model, pool: Pool, shape: EpisodeShape) -> float:
    """Of 2000 episodes, from pixels to accuracies."""
    synchronize(model.device)
    began = time.perf_counter()
    evaluate(model, [EvalSpec("test", pool, shape)], TEST_EPISODES, 0)
    synchronize(model.device)
    return time.perf_counter() - began
