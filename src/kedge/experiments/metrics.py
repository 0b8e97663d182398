"""Metrics over rounds and seeds, computed from a record; docs/metrics.md explains each.

Each is computed seed by seed and then averaged. With three seeds or more, intervals are over seeds:
they include what another draw of classes and weights would change. With fewer they are over the
test episodes.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from kedge.errors import KedgeError
from kedge.evaluation.results import Score
from kedge.experiments.records import Record

ENOUGH_SEEDS = 3  # for an interval over seeds: with two, Student's quantile is 12.7
ROUND_POOL = "round_"  # prefix of pools with the classes of one round
LOWER, UPPER = "FT", "PAR"  # the ends of the gap that a method may close
STUDENT = (  # 97.5% quantile of Student's t at 1, 2, … degrees of freedom
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
)  # fmt: skip

Matrix = Mapping[int, Mapping[int, float]]  # a[t][i]: after round t, on the classes of round i


def over_seeds(values: Sequence[float]) -> Score:
    """Mean over seeds with Student's 95% interval."""
    n, freedom = len(values), len(values) - 1
    if n < 2:
        return Score(values[0], math.inf, n)
    quantile = 1.96 + 2.3723 / freedom + 2.8225 / freedom**2  # exact to 0.001 beyond the table
    if freedom <= len(STUDENT):
        quantile = STUDENT[freedom - 1]
    spread = statistics.stdev(values) / math.sqrt(n)
    return Score(statistics.fmean(values), quantile * spread, n)


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


def clear(found: Score) -> bool:
    """Whether the interval of a difference excludes zero."""
    return abs(found.mean) > found.ci


def _means(record: Record, method: str, round: int, pool: str) -> dict[int, float]:
    runs = record.select(method, round)
    return {run.seed: run.scores[pool].mean for run in runs if pool in run.scores}


def seed_matrix(record: Record, method: str, seed: int) -> Matrix:
    """a[t][i] of one seed: accuracy after round t on the classes of round i.

    With a single update there are no pools "round_i": "old" is round 0 and "new" is round 1.
    """
    runs = [run for run in record.runs if (run.method, run.seed) == (method, seed)]
    rows = {}
    for run in sorted(runs, key=lambda run: run.round):
        means = {name.removeprefix(ROUND_POOL): score.mean for name, score in run.scores.items()}
        row = {int(name): mean for name, mean in means.items() if name.isdecimal()}
        two = {i: means[name] for i, name in enumerate(("old", "new")) if name in means}
        rows[run.round] = row or two
    return rows


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
    seeds = sorted({run.seed for run in record.runs if run.method == method})
    matrices = [seed_matrix(record, method, seed) for seed in seeds]
    return _averaged([measure(a, round) for a in matrices if round in a])


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
    whole = statistics.fmean(high[s] - low[s] for s in seeds) if seeds else 0
    if whole <= 0:  # of the seeds of this method, or beside a difference that says otherwise
        return None
    share = statistics.fmean(ours[s] - low[s] for s in seeds) / whole
    if len(seeds) < ENOUGH_SEEDS:
        return Score(share, math.inf, len(seeds))
    off = over_seeds([(ours[s] - low[s]) - share * (high[s] - low[s]) for s in seeds])
    return Score(share, off.ci / abs(whole), len(seeds))


def relative_drift(record: Record, method: str, round: int) -> Score | None:
    """Mean ‖stored anchor − anchor recomputed now‖ over classes of earlier rounds, divided by the
    mean distance between anchors recomputed now. It needs the old images, so no method sees it.
    """
    runs = [run.measures for run in record.select(method, round)]
    both = [m for m in runs if "anchor_drift" in m and m.get("anchor_spread", 0) > 0]
    return _averaged([m["anchor_drift"] / m["anchor_spread"] for m in both])


def measure(record: Record, method: str, round: int, name: str) -> Score | None:
    """One of `records.MEASURES`, averaged over seeds; None in records without it."""
    runs = record.select(method, round)
    return _averaged([run.measures.get(name) for run in runs])


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _averaged(values: Sequence[float | None]) -> Score | None:
    present = [value for value in values if value is not None]
    if not present:
        return None
    score = over_seeds(present)
    return score if len(present) >= ENOUGH_SEEDS else Score(score.mean, math.inf, score.n)
