"""How time grows with classes, images per class, image size, ways and anchors.

    python perf/scaling.py --out scaling.json
    python perf/scaling.py --noise 64x600 --backbone resnet12 --width 64     # for a GPU

All on synthetic images; one size changes at a time. The exponent p of time ∝ sizeᵖ is fitted on
logarithmic scales. On a GPU a network without kernels of its own is compiled for every new shape.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from workload import Workload, parser, synthetic_images, use_kedge_settings, workload

from kedge.training.speed import TimedTraining, evaluation_seconds
from kedge.utils.env import environment

REPEATS = 3
CLASSES, WAYS, FACTORS, SIDES = (32, 128, 512), (5, 10, 20), (1, 4, 16), (1.0, 1.5, 2.0)
N_CLASSES = 20  # where the number of classes does not change
ANCHORS_PER_ROUND = 64


class Scaling:
    """Measures every axis; `rows` collects the results."""

    def __init__(self, base: Workload, seconds: float) -> None:
        self.base, self.seconds = base, seconds / REPEATS
        self.rows: list[dict[str, Any]] = []
        self._compiled: TimedTraining | None = None

    def measure(self) -> list[dict[str, Any]]:
        need, side = self.base.images_per_class, self.base.table.image_size
        sides = [round(side * factor) for factor in SIDES]
        self._axis("classes", CLASSES, lambda n: self._synthetic(n, need))
        self._axis(
            "images per class", [need * f for f in FACTORS], lambda n: self._synthetic(N_CLASSES, n)
        )
        self._axis("image size, px", sides, lambda n: self._synthetic(N_CLASSES, need, n))
        self._axis("ways", WAYS, self._with_ways)
        self._anchors()
        return self.rows

    def _synthetic(self, n_classes: int, per_class: int, side: int | None = None) -> Workload:
        table = self.base.table
        images = synthetic_images(n_classes, per_class, side or table.image_size, table.n_channels)
        return replace(self.base, table=images, max_classes=(n_classes, n_classes))

    def _with_ways(self, n_way: int) -> Workload:
        work = self._synthetic(N_CLASSES, self.base.images_per_class)
        return replace(work, shape=replace(work.shape, n_way=n_way))

    def _axis(self, name: str, sizes: Sequence[int], make: Callable[[int], Workload]) -> None:
        costs: dict[str, list[float]] = {"FT step, ms": [], "evaluation, s": []}
        for size in sizes:
            work = make(size)
            costs["FT step, ms"].append(self._step_ms(work))
            model, pool = work.start_model(), work.pools[1]
            times = [evaluation_seconds(model, pool, work.shape) for _ in range(REPEATS)]
            costs["evaluation, s"].append(statistics.median(times))
        self._add(name, sizes, costs)

    def _step_ms(self, work: Workload) -> float:
        base = self.base
        same = work.shape == base.shape and work.table.image_size == base.table.image_size
        step = self._compiled.step if self._compiled is not None and same else None
        if step is None:
            torch._dynamo.reset()
        model, pool = work.start_model(), work.pools[0]
        training = TimedTraining(model, "FT", pool, work.shape, self.seconds, step)
        if same:
            self._compiled = training  # a step of the same shape is not compiled again
        return _median_ms(training)

    def _anchors(self) -> None:
        """Each round adds anchors; IDA compares with some of them, 'anchors=all' with each."""
        costs: dict[str, list[float]] = {}
        sizes = [ANCHORS_PER_ROUND * factor for factor in FACTORS]
        model, pool = self.base.start_model(), self.base.pools[0]
        anchors = torch.randn(max(sizes), model.anchors.shape[1]).to(model.device)
        for method in ("IDA", "IDA anchors=all"):
            torch._dynamo.reset()
            step = None
            costs[f"{method}, ms"] = []
            for size in sizes:
                names = tuple(f"class {i}" for i in range(size))
                start = replace(model, classes=names, anchors=anchors[:size])
                training = TimedTraining(start, method, pool, self.base.shape, self.seconds, step)
                step = training.step
                costs[f"{method}, ms"].append(_median_ms(training))
        self._add("anchors", sizes, costs)

    def _add(self, name: str, sizes: Sequence[int], costs: dict[str, list[float]]) -> None:
        for unit, values in costs.items():
            row = {"against": name, "cost": unit, "sizes": list(sizes), "costs": values}
            self.rows.append({**row, "exponent": exponent(sizes, values)})


def _median_ms(training: TimedTraining) -> float:
    return statistics.median(training.ms_per_step() for _ in range(REPEATS))


def exponent(sizes: Sequence[int | float], costs: Sequence[float]) -> float:
    """The p of cost ∝ size^p that fits best on logarithmic scales."""
    return statistics.linear_regression(
        [math.log(size) for size in sizes], [math.log(cost) for cost in costs]
    ).slope


if __name__ == "__main__":
    use_kedge_settings()
    options = parser(__doc__).parse_args()
    rows = Scaling(workload(options), options.seconds / 5).measure()
    text = json.dumps({"growth": rows, "environment": environment()}, indent=1, ensure_ascii=False)
    print(text)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")
