"""Metrics over rounds and seeds, computed from a record; docs/metrics.md explains each.

Each is computed seed by seed and then averaged. With three seeds or more, intervals are over seeds:
they include what another draw of classes and weights would change. With fewer they are over the
test episodes.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kedge.errors import KedgeError
from kedge.evaluation.results import Score
from kedge.experiments.records import Record, Run

ENOUGH_SEEDS = 3  # for an interval over seeds: with two, Student's quantile is 12.7
ROUND_POOL = "round_"  # prefix of pools with the classes of one round
LOWER, UPPER = "FT", "PAR"  # the ends of the gap that a method may close
STUDENT = (  # 97.5% quantile of Student's t at 1, 2, … degrees of freedom
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
)  # fmt: skip

Matrix = Mapping[int, Mapping[int, float]]  # a[t][i]: after round t, on the classes of round i


# ── means and differences ────────────────────────────────────────────────────────────────────


def over_seeds(values: Sequence[float]) -> Score:
    """Mean over seeds with Student's 95% interval."""
    n = len(values)
    if n < 2:
        return Score(values[0], math.inf, n)
    spread = statistics.stdev(values) / math.sqrt(n)
    return Score(statistics.fmean(values), _student(n - 1) * spread, n)


def _student(freedom: int) -> float:
    """97.5% quantile of Student's t; beyond the table an expansion that is exact to 0.001."""
    if freedom <= len(STUDENT):
        return STUDENT[freedom - 1]
    return 1.96 + 2.3723 / freedom + 2.8225 / freedom**2


def score(record: Record, method: str, round: int, pool: str) -> Score | None:
    """Accuracy of a method on a pool; None if it was not tested there."""
    runs = [run for run in record.select(method, round) if pool in run.scores]
    if len(runs) >= ENOUGH_SEEDS:
        return over_seeds([run.scores[pool].mean for run in runs])
    return record.score(method, round, pool) if runs else None


def difference(record: Record, a: str, b: str, round: int, pool: str) -> Score | None:
    """a − b: over the seeds that both have if there are enough, else paired by episode.

    None if the record does not compare the two.
    """
    ours, theirs = _means(record, a, round, pool), _means(record, b, round, pool)
    shared = sorted(ours.keys() & theirs.keys())
    if len(shared) >= ENOUGH_SEEDS:
        return over_seeds([ours[seed] - theirs[seed] for seed in shared])
    try:
        return record.difference(a, b, round, pool)
    except KedgeError:
        return None


def average_difference(
    record: Record, a: str, b: str, round: int, pools: Sequence[str]
) -> Score | None:
    """a − b, averaged over pools, whose episodes are independent."""
    ours, theirs = ([_means(record, m, round, pool) for pool in pools] for m in (a, b))
    shared = sorted(set.intersection(*(set(means) for means in (*ours, *theirs))))
    if len(shared) >= ENOUGH_SEEDS:
        sums = [sum(x[s] - y[s] for x, y in zip(ours, theirs, strict=True)) for s in shared]
        return over_seeds([total / len(pools) for total in sums])
    found = [difference(record, a, b, round, pool) for pool in pools]
    each = [score for score in found if score is not None]
    if len(each) < len(pools):
        return None
    mean = sum(score.mean for score in each) / len(pools)
    return Score(mean, math.hypot(*(score.ci for score in each)) / len(pools), each[0].n)


def clear(found: Score) -> bool:
    """Whether the interval of a difference excludes zero."""
    return abs(found.mean) > found.ci


def _means(record: Record, method: str, round: int, pool: str) -> dict[int, float]:
    runs = record.select(method, round)
    return {run.seed: run.scores[pool].mean for run in runs if pool in run.scores}


# ── the accuracy matrix ──────────────────────────────────────────────────────


def seed_matrix(record: Record, method: str, seed: int) -> Matrix:
    """a[t][i] of one seed: accuracy after round t on the classes of round i.

    With a single update there are no pools "round_i": "old" is round 0 and "new" is round 1.
    """
    runs = [run for run in record.runs if (run.method, run.seed) == (method, seed)]
    return {run.round: _by_round(run.scores) for run in sorted(runs, key=lambda run: run.round)}


def _by_round(scores: dict[str, Score]) -> dict[int, float]:
    numbers = {name: name.removeprefix(ROUND_POOL) for name in scores}
    found = {int(n): scores[name].mean for name, n in numbers.items() if n.isdecimal()}
    either = {i: scores[name].mean for i, name in enumerate(("old", "new")) if name in scores}
    return found or either


def matrix(record: Record, method: str) -> Matrix:
    """The mean of the matrices of all seeds."""
    parts = [seed_matrix(record, method, seed) for seed in _seeds(record, method)]
    cells = {(t, i) for part in parts for t, row in part.items() for i in row}
    rounds = sorted({t for t, _ in cells})
    return {
        t: {
            i: statistics.fmean(part[t][i] for part in parts if i in part.get(t, {}))
            for i in sorted(i for u, i in cells if u == t)
        }
        for t in rounds
    }


def average_accuracy(a: Matrix, t: int) -> float | None:
    """Mean of a[t][i] over i ≤ t; every round counts the same, however many classes it has."""
    return _mean([value for i, value in a[t].items() if i <= t])


def forgetting(a: Matrix, t: int) -> float | None:
    """Mean over i < t of (max a[s][i] over i ≤ s < t) − a[t][i]; negative if accuracy rose."""
    lost = []
    for i in (i for i in a[t] if i < t):
        past = [a[s][i] for s in a if i <= s < t and i in a[s]]
        lost += [max(past) - a[t][i]] if past else []
    return _mean(lost)


def backward_transfer(a: Matrix, t: int) -> float | None:
    """Mean of a[t][i] − a[i][i] over i < t: what later rounds did to earlier classes."""
    return _mean([a[t][i] - a[i][i] for i in a[t] if i < t and i in a.get(i, {})])


def by_seed(
    record: Record, method: str, round: int, measure: Callable[[Matrix, int], float | None]
) -> Score | None:
    """A measure of the matrix, averaged over seeds: `by_seed(record, "IDA", 2, forgetting)`.

    With fewer than three seeds its interval is unknown (infinite).
    """
    matrices = [seed_matrix(record, method, seed) for seed in _seeds(record, method)]
    found = [measure(a, round) for a in matrices if round in a]
    return _averaged([value for value in found if value is not None])


# ── the gap ──────────────────────────────────────────────────────────────────────────────────


def gap_closed(record: Record, method: str, round: int, pool: str) -> Score | None:
    """(method − FT) / (PAR − FT), of means over seeds: the part of the gap that is closed.

    None if either is missing or PAR is not clearly ahead of FT. The interval is that of a ratio of
    means over seeds; with fewer than three it is unknown (infinite).
    """
    gap = difference(record, UPPER, LOWER, round, pool)
    if gap is None or not clear(gap) or gap.mean <= 0:
        return None
    ours, low, high = (_means(record, m, round, pool) for m in (method, LOWER, UPPER))
    seeds = sorted(ours.keys() & low.keys() & high.keys())
    if not seeds:
        return None
    whole = statistics.fmean(high[s] - low[s] for s in seeds)
    share = statistics.fmean(ours[s] - low[s] for s in seeds) / whole
    if len(seeds) < ENOUGH_SEEDS:
        return Score(share, math.inf, len(seeds))
    off = over_seeds([(ours[s] - low[s]) - share * (high[s] - low[s]) for s in seeds])
    return Score(share, off.ci / abs(whole), len(seeds))


# ── anchors and cost ─────────────────────────────────────────────────────────────────────────


def anchor_drift(record: Record, method: str, round: int) -> Score | None:
    """Mean ‖stored anchor − anchor recomputed now‖ over classes of earlier rounds.

    It needs the old images, so no method sees it.
    """
    found = [run.measures.get("anchor_drift") for run in record.select(method, round)]
    return _averaged([value for value in found if value is not None])


def relative_drift(record: Record, method: str, round: int) -> Score | None:
    """Anchor drift divided by the mean distance between anchors recomputed now.

    Unlike `anchor_drift` it does not depend on the scale of the features.
    """
    runs = [run.measures for run in record.select(method, round)]
    return _averaged(
        [m["anchor_drift"] / m["anchor_spread"] for m in runs if m.get("anchor_spread", 0) > 0]
    )


@dataclass(frozen=True)
class Cost:
    """Cost of one round: means over seeds, but the maximum of the memory."""

    seconds: float
    peak_memory_mb: float
    kept_bytes_per_class: float


def cost(record: Record, method: str, round: int) -> Cost | None:
    runs: tuple[Run, ...] = record.select(method, round)
    if not runs:
        return None
    return Cost(
        statistics.fmean(run.seconds if run.history else 0.0 for run in runs),
        max(run.peak_memory_mb for run in runs),
        statistics.fmean(run.kept_bytes_per_class for run in runs),
    )


def _seeds(record: Record, method: str) -> tuple[int, ...]:
    return tuple(sorted({run.seed for run in record.runs if run.method == method}))


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _averaged(values: Sequence[float]) -> Score | None:
    if not values:
        return None
    found = over_seeds(values)
    return found if len(values) >= ENOUGH_SEEDS else Score(found.mean, math.inf, found.n)
