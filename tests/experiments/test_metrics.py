"""The metrics computed by hand, and the page that explains them."""

from __future__ import annotations

import itertools
import math
import re
import statistics
from pathlib import Path

import numpy as np
import pytest

from kedge.evaluation.results import EpochResult, Score
from kedge.experiments import metrics
from kedge.experiments.records import PairedDifference, PoolInfo, Record, Run

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
CURVE = (EpochResult(1, 1.0, 0.9, 0.1, 50.0, 1e-3),)


def run(method: str, round: int, scores: dict[str, float], seed: int = 0, **measures: float) -> Run:
    return Run(
        seed=seed,
        method=method,
        round=round,
        pools=tuple(PoolInfo(name, name, 9) for name in scores),
        scores={name: Score(float(value), 0.4, 2000) for name, value in scores.items()},
        history=() if method == "NU" else CURVE,
        seconds=10.0 + seed,
        peak_memory_mb=100.0 + seed,
        kept_bytes_per_class=256.0 + seed,
        environment={},
        measures=measures,
    )


def record_of(*runs: Run, ci: float = 0.5) -> Record:
    pairs = []
    for a, b in itertools.permutations(runs, 2):
        if (a.seed, a.round) == (b.seed, b.round) and a.method < b.method:
            for pool, value in a.scores.items():
                difference = Score(value.mean - b.scores[pool].mean, float(ci), 2000)
                at = (a.seed, a.round, pool, a.method, b.method)
                pairs.append(PairedDifference(*at, difference))
    return Record("x", "X.", {}, {}, runs, tuple(pairs))


def rounds(method: str, rows: list[list[float]], seed: int = 0) -> list[Run]:
    return [
        run(method, t, {"unseen": 1.0} | {f"round_{i}": v for i, v in enumerate(row)}, seed)
        for t, row in enumerate(rows)
    ]


# ── the page ─────────────────────────────────────────────────────────────────────────────────


def section(title: str) -> str:
    return PAGE.split(f"## {title}\n")[1].split("\n## ")[0]


def result(title: str) -> float:
    """The number in bold, of which a section has one."""
    (found,) = re.findall(r"\*\*([−\d.]+)%?\*\*", section(title))
    return float(found.replace("−", "-"))


def page_matrix() -> list[list[float]]:
    table = PAGE.split("<!-- matrix -->")[1].split("<!-- end of matrix -->")[0]
    rows = [line for line in table.splitlines() if re.match(r"\| \d", line)]
    cells = [[float(cell) for cell in row.strip("| ").split("|")] for row in rows]
    assert [row[0] for row in cells] == [0, 1, 2]
    return [row[1:] for row in cells]


def test_worked_example_of_the_page_is_what_the_code_computes() -> None:
    assert "made up" in section("The matrix")
    record = record_of(*rounds("m", page_matrix()))
    a = metrics.seed_matrix(record, "m", 0)
    assert a == {t: dict(enumerate(row)) for t, row in enumerate(page_matrix())}
    assert f"({a[2][0]} + {a[2][1]} + {a[2][2]}) / 3" in section("Average accuracy")
    assert f"at {a[0][0]} and are at {a[2][0]}" in section("Forgetting")
    assert f"at {a[1][1]} and are at {a[2][1]}" in section("Forgetting")
    measures = {
        "Average accuracy": metrics.average_accuracy,
        "Forgetting": metrics.forgetting,
        "Backward transfer": metrics.backward_transfer,
    }
    for title, measure in measures.items():
        assert measure(a, 2) == pytest.approx(result(title))
        found = metrics.by_seed(record, "m", 2, measure)
        assert found.mean == pytest.approx(result(title))
    numbers = re.search(r"FT reach ([\d.]+), m ([\d.]+) and PAR ([\d.]+)", section("Gap closed"))
    low, ours, high = map(float, numbers.groups())
    last = [run(m, 2, {"unseen": v}) for m, v in (("FT", low), ("m", ours), ("PAR", high))]
    closed = metrics.gap_closed(record_of(*last), "m", 2, "unseen")
    assert 100 * closed.mean == pytest.approx(result("Gap closed"))
    numbers = re.search(r"drift be ([\d.]+) and the spread ([\d.]+)", section("Anchor drift"))
    drift, spread = map(float, numbers.groups())
    moved = record_of(run("m", 2, {}, anchor_drift=drift, anchor_spread=spread))
    relative = metrics.relative_drift(moved, "m", 2)
    assert relative.mean == pytest.approx(result("Anchor drift"))


# ── the matrix ───────────────────────────────────────────────────────────────────────────────


def test_forgetting_is_from_the_best_round_and_transfer_from_the_first() -> None:
    a = {
        0: {0: 70.0, 1: 99.0, 2: 0.0},
        1: {0: 76.0, 1: 60.0, 2: 0.0},
        2: {0: 72.0, 1: 63.0, 2: 50.0},
    }
    assert metrics.forgetting(a, 2) == pytest.approx(((76 - 72) + (60 - 63)) / 2)
    assert metrics.backward_transfer(a, 2) == pytest.approx(((72 - 70) + (63 - 60)) / 2)
    assert metrics.average_accuracy(a, 1) == pytest.approx((76 + 60) / 2)
    assert metrics.forgetting(a, 0) is None
    assert metrics.backward_transfer(a, 0) is None


def test_measures_are_averaged_over_seeds() -> None:
    """The best round differs between seeds, so averaging matrices first would hide forgetting."""
    one, other = [[70.0], [80.0], [75.0]], [[80.0], [70.0], [75.0]]
    record = record_of(*rounds("m", one), *rounds("m", other, seed=1))
    found = metrics.by_seed(record, "m", 2, metrics.forgetting)
    assert found == Score(5.0, math.inf, 2)


def test_old_and_new_are_the_rounds_of_a_single_update() -> None:
    record = record_of(
        run("m", 0, {"old": 80.0, "unseen": 50.0}),
        run("m", 1, {"old": 74.0, "new": 60.0, "unseen": 52.0}),
    )
    a = metrics.seed_matrix(record, "m", 0)
    assert a == {0: {0: 80.0}, 1: {0: 74.0, 1: 60.0}}
    assert metrics.forgetting(a, 1) == 6.0
    assert metrics.average_accuracy(a, 1) == 67.0


# ── intervals ────────────────────────────────────────────────────────────────────────────────


def test_intervals_are_over_three_seeds_or_else_over_episodes() -> None:
    values = {0: (70.0, 60.0), 1: (73.0, 61.0), 2: (76.0, 65.0)}
    runs = [run(m, 1, {"old": v[m == "b"]}, seed) for seed, v in values.items() for m in "ab"]
    three, two = record_of(*runs), record_of(*runs[:4])
    found, difference = (
        metrics.score(three, "a", 1, "old"),
        metrics.difference(three, "a", "b", 1, "old"),
    )
    assert (found.mean, found.n) == (73.0, 3)
    assert found.ci == pytest.approx(4.303 * 3 / math.sqrt(3))
    assert difference.mean == pytest.approx(11.0)
    assert difference.ci == pytest.approx(4.303 * statistics.stdev([10, 12, 11]) / math.sqrt(3))
    assert metrics.score(two, "a", 1, "old") == two.score("a", 1, "old")
    assert metrics.difference(two, "b", "a", 1, "old") == two.difference("b", "a", 1, "old")
    assert metrics.score(two, "c", 1, "old") is None
    assert metrics.difference(two, "a", "c", 1, "old") is None


def test_95_per_cent_of_students_distribution_lie_within_the_quantile() -> None:
    """For every number in the table, and beyond it."""
    for freedom in (*range(1, 31), 60, 120):
        # The interval of n values with mean 0 and standard deviation √n is the quantile.
        n = freedom + 1
        values = [math.sqrt(n * freedom / 2), -math.sqrt(n * freedom / 2), *[0.0] * (n - 2)]
        quantile = metrics.over_seeds(values).ci
        t = np.linspace(0, quantile, 100_001)
        height = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2))
        height /= math.sqrt(math.pi * freedom)
        density = height * (1 + t**2 / freedom) ** (-(freedom + 1) / 2)
        assert 2 * np.trapezoid(density, t) == pytest.approx(0.95, abs=5e-5)


# ── the gap ──────────────────────────────────────────────────────────────────────────────────


def gap_record(*rows: tuple[float, float, float], ci: float = 0.5) -> Record:
    runs = [
        run(m, 1, {"unseen": v}, seed)
        for seed, row in enumerate(rows)
        for m, v in zip(("FT", "IDA", "PAR"), row, strict=True)
    ]
    return record_of(*runs, ci=ci)


def test_ends_of_the_gap_are_0_and_1() -> None:
    record = gap_record((60, 63, 64), (61, 63, 65), (59, 62, 64))
    ends = [metrics.gap_closed(record, method, 1, "unseen") for method in ("FT", "PAR")]
    assert ends == [Score(0.0, 0.0, 3), Score(1.0, 0.0, 3)]


def test_interval_of_a_share_is_that_of_a_ratio_of_means() -> None:
    record = gap_record((60, 63, 64), (61, 63, 65), (59, 62, 64))
    found = metrics.gap_closed(record, "IDA", 1, "unseen")
    share = (3 + 2 + 3) / (4 + 4 + 5)
    off = [3 - share * 4, 2 - share * 4, 3 - share * 5]
    assert found.mean == pytest.approx(share)
    assert found.ci == pytest.approx(4.303 * statistics.stdev(off) / math.sqrt(3) / (13 / 3))
    alone = metrics.gap_closed(gap_record((60, 63, 64)), "IDA", 1, "unseen")
    assert alone == Score(0.75, math.inf, 1)
