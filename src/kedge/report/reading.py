"""What the report asks of a record, answered also where the record has gaps.

A record may stop half-way, hold one method only, or hold pairs in one direction only. Whoever
draws a table or writes a sentence should not have to know: here a gap is `None`, never an error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kedge.errors import KedgeError
from kedge.evaluation import Score
from kedge.records import PoolInfo, Record

BASE = "NU"  # never updated: what doing nothing gives
PARAGON = "PAR"  # trained on everything: what no incremental method may do
OURS = "IDA"
ROUND_POOL = "round_"  # pools that belong to the matrix of several rounds, not to the main table


@dataclass(frozen=True)
class Difference:
    """One method minus another, and whether both answered the same episodes."""

    score: Score
    paired: bool

    @property
    def clear(self) -> bool:
        """The interval does not touch zero. A NaN is never clear."""
        return abs(self.score.mean) > self.score.ci

    @property
    def ahead(self) -> bool:
        return self.clear and self.score.mean > 0

    @property
    def behind(self) -> bool:
        return self.clear and self.score.mean < 0


def family(label: str) -> str:
    """'IDA anchors=all' → 'IDA': variants share their description and their colour."""
    return next(iter(label.split()), label)


def is_reference(label: str) -> bool:
    return family(label) in (BASE, PARAGON)


def final_round(record: Record) -> int:
    if not record.runs:
        raise KedgeError(
            f"The record '{record.name}' holds no runs, so there is nothing to report."
        )
    return record.rounds[-1]


def incremental_rounds(record: Record) -> tuple[int, ...]:
    """The rounds after the base round; the final round alone if there are none."""
    return tuple(r for r in record.rounds if r > 0) or (final_round(record),)


def methods_after(record: Record, round: int) -> tuple[str, ...]:
    """Record order, but NU comes first and PAR last: they frame those that compete."""
    present = [m for m in record.methods if record.select(m, round)]
    rank = {BASE: -1, PARAGON: 1}
    return tuple(sorted(present, key=lambda m: rank.get(family(m), 0)))  # sorting is stable


def competitors(record: Record, round: int) -> tuple[str, ...]:
    return tuple(m for m in methods_after(record, round) if not is_reference(m))


def leads(record: Record) -> tuple[str, ...]:
    """The methods the report is about, plain IDA first; without any IDA, the first competitor."""
    present = methods_after(record, final_round(record))
    ours = sorted((m for m in present if family(m) == OURS), key=lambda m: m != OURS)
    if ours:
        return tuple(ours)
    return next(((m,) for m in present if not is_reference(m)), present[:1])


def table_pools(record: Record, round: int) -> tuple[PoolInfo, ...]:
    return tuple(p for p in record.pools(round) if not p.name.startswith(ROUND_POOL))


def matrix_pools(record: Record) -> tuple[PoolInfo, ...]:
    """The pools of each round's own classes, as the final round tested them."""
    pools = record.pools(final_round(record))
    return tuple(p for p in pools if p.name.startswith(ROUND_POOL))


def has_come(pool: PoolInfo, round: int) -> bool:
    """Whether the classes of a `round_i` pool had been brought by then."""
    number = pool.name.removeprefix(ROUND_POOL)
    return not number.isdecimal() or int(number) <= round


def score(record: Record, method: str, round: int, pool: str) -> Score | None:
    try:
        found = record.score(method, round, pool)
    except (KedgeError, KeyError):
        return None
    return found if math.isfinite(found.mean) else None


def difference(record: Record, a: str, b: str, round: int, pool: str) -> Difference | None:
    """a − b, paired if the record has the pair.

    Without a pair the two means count as independent. On shared episodes that interval is too
    wide rather than too narrow, so it may hide a difference but does not invent one.
    """
    try:
        return Difference(record.difference(a, b, round, pool), paired=True)
    except KedgeError:
        pass
    one, other = score(record, a, round, pool), score(record, b, round, pool)
    if one is None or other is None:
        return None
    ci = math.hypot(one.ci, other.ci)
    return Difference(Score(one.mean - other.mean, ci, min(one.n, other.n)), paired=False)


def best(record: Record, round: int, pool: str) -> tuple[str, ...]:
    """The best competitor and all that cannot be told apart from it; none without a contest."""
    scores = {m: score(record, m, round, pool) for m in competitors(record, round)}
    means = {m: found.mean for m, found in scores.items() if found is not None}
    if len(means) < 2:
        return ()
    top = max(means, key=lambda m: means[m])
    against = {m: difference(record, top, m, round, pool) for m in means if m != top}
    return (top, *(m for m, found in against.items() if found is not None and not found.clear))


def all_paired(record: Record, round: int) -> bool:
    """Whether every comparison that the main table marks rests on shared episodes."""
    for pool in table_pools(record, round):
        names = competitors(record, round)
        for top in best(record, round, pool.name)[:1]:
            against = (difference(record, top, m, round, pool.name) for m in names if m != top)
            if not all(found is None or found.paired for found in against):
                return False
    return True
