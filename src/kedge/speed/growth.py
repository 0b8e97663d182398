"""How time grows with the size of the task: a few sizes on each axis, and the exponent.

All on noise, with everything but one size as it is in the main measurement.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kedge.models.model import Model
from kedge.speed.ours import Training, evaluation_seconds
from kedge.speed.subject import Subject, noise
from kedge.utils.progress import Tick

TURNS = 3
CLASSES, WAYS, TIMES, SIDES = (32, 128, 512), (5, 10, 20), (1, 4, 16), (1.0, 1.5, 2.0)
FEW = 20  # classes, where their number is not what grows
ANCHORS = 64  # that a round leaves
N_POINTS = 5 * 3  # of which each has two costs


class Growth:
    """`seconds` for each measurement."""

    def __init__(self, subject: Subject, device: torch.device, seconds: float, tick: Tick) -> None:
        self.subject, self.device, self.seconds, self.tick = subject, device, seconds, tick
        self.rows: list[dict[str, Any]] = []
        self._compiled: Training | None = None

    def measure(self) -> list[dict[str, Any]]:
        subject, shape = self.subject, self.subject.shape
        need, side = shape.shots[1] + shape.n_query, subject.table.image_size
        self._grow("classes", CLASSES, lambda n: self._noise(n, need))
        self._grow("images per class", [need * t for t in TIMES], lambda n: self._noise(FEW, n))
        self._grow("image size, px", [round(side * s) for s in SIDES], self._resized)
        self._grow("ways", WAYS, self._with_ways)
        self._rounds()
        return self.rows

    def _noise(self, n_classes: int, per_class: int, side: int | None = None) -> Subject:
        table = self.subject.table
        images = noise(n_classes, per_class, side or table.image_size, table.n_channels)
        return replace(self.subject, table=images, n_trained=n_classes, n_tested=n_classes)

    def _resized(self, side: int) -> Subject:
        return self._noise(FEW, self.subject.shape.shots[1] + self.subject.shape.n_query, side)

    def _with_ways(self, n_way: int) -> Subject:
        some = self._noise(FEW, self.subject.shape.shots[1] + self.subject.shape.n_query)
        return replace(some, shape=replace(some.shape, n_way=n_way))

    def _grow(self, what: str, sizes: Sequence[int], make: Callable[[int], Subject]) -> None:
        costs: dict[str, list[float]] = {"FT step, ms": [], "evaluation, s": []}
        for size in sizes:
            subject = make(size)
            costs["FT step, ms"].append(self._step_ms(subject))
            model = subject.start(self.device)
            took = [evaluation_seconds(model, subject.tested, subject.shape) for _ in range(TURNS)]
            costs["evaluation, s"].append(statistics.median(took))
            self.tick(1)
        self._add(what, sizes, costs)

    def _step_ms(self, subject: Subject) -> float:
        start, base = subject.start(self.device), self.subject
        same = subject.shape == base.shape and subject.table.image_size == base.table.image_size
        # Where a step has the shape of one before, it need not be compiled again.
        step = self._compiled.step if self._compiled is not None and same else None
        if step is None:
            torch._dynamo.reset()
        seconds = self.seconds / TURNS
        training = Training(start, "FT", subject.trained, subject.shape, seconds, step)
        if same:
            self._compiled = training
        return _median_ms(training)

    def _rounds(self) -> None:
        """More of them leave more anchors, all of which a step may be held against, or some."""
        costs: dict[str, list[float]] = {}
        sizes = [ANCHORS * times for times in TIMES]
        most = self.subject.start(self.device, max(sizes))
        for method in ("IDA", "IDA anchors=all"):
            torch._dynamo.reset()
            one: Training | None = None
            costs[f"{method}, ms"] = []
            for size in sizes:
                one = self._aligned(most, method, most.anchors[:size], one)
                costs[f"{method}, ms"].append(_median_ms(one))
                if method == "IDA":
                    self.tick(1)
        self._add("anchors", sizes, costs)

    def _aligned(
        self, start: Model, method: str, anchors: Float[Tensor, "a r"], before: Training | None
    ) -> Training:
        subject, seconds = self.subject, self.seconds / TURNS
        step = None if before is None else before.step
        return Training(start, method, subject.trained, subject.shape, seconds, step, anchors)

    def _add(self, what: str, sizes: Sequence[int], costs: dict[str, list[float]]) -> None:
        for unit, values in costs.items():
            fitted = exponent(sizes, values)
            self.rows.append(
                {
                    "against": what,
                    "cost": unit,
                    "sizes": list(sizes),
                    "costs": values,
                    "exponent": fitted,
                }
            )


def _median_ms(training: Training) -> float:
    return statistics.median(training.turn() for _ in range(TURNS))


def exponent(sizes: Sequence[int | float], costs: Sequence[float]) -> float:
    """The p of cost ∝ size^p that fits best, on logarithmic scales."""
    return statistics.linear_regression(
        [math.log(size) for size in sizes], [math.log(cost) for cost in costs]
    ).slope
