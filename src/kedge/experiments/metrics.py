"""What several rounds do to a model, as numbers. docs/metrics.md tells each in words.

Everything is computed seed by seed and then averaged. From three seeds on, an interval is over the
seeds: it says what another draw of classes and weights might give, which thousands of episodes of
one draw cannot. With fewer seeds it is over the episodes.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kedge.errors import KedgeError
from kedge.evaluation.results import Score
from kedge.experiments.records import Record, Run

ENOUGH_SEEDS = 3  # for an interval over seeds; two would give one thirteen times as wide as s/√2
ROUND_POOL = "round_"  # pools of the classes that one round brought
LOWER, UPPER = "FT", "PAR"  # the gap: nothing held the model, and everything was there again
STUDENT = (  # 97.5% quantile of Student's t at 1, 2, … degrees of freedom
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
)  # fmt: skip

Matrix = Mapping[int, Mapping[int, float]]  # a[t][i]: after round t, on the classes of round i


# ── means and differences ────────────────────────────────────────────────────────────────────


def over_seeds(values: Sequence[float]) -> Score:
    """Because seeds differ far more than episodes do: the mean, with Student's interval."""
    n = len(values)
    if n < 2:
        return Score(values[0], math.inf, n)
    spread = statistics.stdev(values) / math.sqrt(n)
    return Score(statistics.fmean(values), _student(n - 1) * spread, n)


def _student(freedom: int) -> float:
    """Beyond the table, two terms of its expansion about the normal quantile: right to 0.001."""
    if freedom <= len(STUDENT):
        return STUDENT[freedom - 1]
    return 1.96 + 2.3723 / freedom + 2.8225 / freedom**2


def score(record: Record, method: str, round: int, pool: str) -> Score | None:
    """A method's accuracy on a pool; None if it was not tested there."""
    runs = [run for run in record.select(method, round) if pool in run.scores]
    if len(runs) >= ENOUGH_SEEDS:
        return over_seeds([run.scores[pool].mean for run in runs])
    return record.score(method, round, pool) if runs else None


def difference(record: Record, a: str, b: str, round: int, pool: str) -> Score | None:
    """a − b, because two methods share classes, weights and episodes, which cancel.

    Over the seeds that both have, if those are enough; else over the episodes, paired. None where
    the record does not compare the two.
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
    """a − b, the mean over pools. Different pools are different episodes, which are independent."""
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
    """The interval of a difference does not touch zero."""
    return abs(found.mean) > found.ci


def _means(record: Record, method: str, round: int, pool: str) -> dict[int, float]:
    runs = record.select(method, round)
    return {run.seed: run.scores[pool].mean for run in runs if pool in run.scores}


# ── the matrix, and what is read off it ──────────────────────────────────────────────────────


def seed_matrix(record: Record, method: str, seed: int) -> Matrix:
    """All that a method knew and when, under one seed: a[t][i], from the pools "round_i".

    With a single update there are no such pools: "old" is round 0 and "new" is round 1.
    """
    runs = [run for run in record.runs if (run.method, run.seed) == (method, seed)]
    return {run.round: _by_round(run.scores) for run in sorted(runs, key=lambda run: run.round)}


def _by_round(scores: dict[str, Score]) -> dict[int, float]:
    numbers = {name: name.removeprefix(ROUND_POOL) for name in scores}
    found = {int(n): scores[name].mean for name, n in numbers.items() if n.isdecimal()}
    either = {i: scores[name].mean for i, name in enumerate(("old", "new")) if name in scores}
    return found or either


def matrix(record: Record, method: str) -> Matrix:
    """The matrix to look at: the mean of those of all seeds, cell by cell."""
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
    """How good the model is at all that it was taught, in one number.

    The mean of a[t][i] over i ≤ t: every round counts the same, however many classes it brought.
    """
    return _mean([value for i, value in a[t].items() if i <= t])


def forgetting(a: Matrix, t: int) -> float | None:
    """What the rounds have cost, where a good average may hide it.

    For the classes of each round i < t, the best value since they came, max a[s][i] over
    i ≤ s < t, minus a[t][i]; then the mean over i. Negative if the model got better at them.
    """
    lost = []
    for i in (i for i in a[t] if i < t):
        past = [a[s][i] for s in a if i <= s < t and i in a[s]]
        lost += [max(past) - a[t][i]] if past else []
    return _mean(lost)


def backward_transfer(a: Matrix, t: int) -> float | None:
    """Whether later rounds help or harm earlier ones, measured from when each was learned.

    The mean of a[t][i] − a[i][i] over i < t. Unlike forgetting it does not ask for the best moment
    in between, so that a gain and its later loss leave no trace in it.
    """
    return _mean([a[t][i] - a[i][i] for i in a[t] if i < t and i in a.get(i, {})])


def by_seed(
    record: Record, method: str, round: int, measure: Callable[[Matrix, int], float | None]
) -> Score | None:
    """A measure of the matrix for a method: `by_seed(record, "IDA", 2, forgetting)`.

    With fewer than three seeds its interval is unknown (infinite): the record does not say how
    the pools of one seed vary together.
    """
    matrices = [seed_matrix(record, method, seed) for seed in _seeds(record, method)]
    found = [measure(a, round) for a in matrices if round in a]
    return _averaged([value for value in found if value is not None])


# ── the gap ──────────────────────────────────────────────────────────────────────────────────


def gap_closed(record: Record, method: str, round: int, pool: str) -> Score | None:
    """How far a method gets from fine-tuning, which is free, to retraining, which needs old data.

    (m − FT) / (PAR − FT) of the means over seeds. None where either is missing or PAR is not
    clearly ahead, because a share of nothing is no share. The interval is that of a ratio of
    means, over seeds; with fewer than three it is unknown (infinite).
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
    """How stale the anchors are: each was made by a model that has moved on since.

    Mean ‖anchor − what it would be now‖ over the classes of earlier rounds, in units of the
    feature space. It needs the old images, so it is an oracle: no method is shown it.
    """
    found = [run.measures.get("anchor_drift") for run in record.select(method, round)]
    return _averaged([value for value in found if value is not None])


def relative_drift(record: Record, method: str, round: int) -> Score | None:
    """Drift that can be compared between methods, because a model may also scale all it sees.

    Drift divided by the mean distance between two of the anchors that there would be now.
    """
    runs = [run.measures for run in record.select(method, round)]
    return _averaged(
        [m["anchor_drift"] / m["anchor_spread"] for m in runs if m.get("anchor_spread", 0) > 0]
    )


@dataclass(frozen=True)
class Cost:
    """What one round takes, because a gain has its price: mean over seeds, memory at its highest.

    No seconds where nothing was trained.
    """

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
