"""What the report asks of a record: who competes, on what, and who is ahead.

Not every method is tested on every pool after every round. Whoever draws a table or writes a
sentence should not have to know: here such a gap is `None`, never an error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from kedge.config import EpisodeShape, from_dict
from kedge.errors import KedgeError
from kedge.evaluation.results import Score
from kedge.experiments import metrics
from kedge.experiments.metrics import ROUND_POOL as ROUND_POOL
from kedge.experiments.metrics import score as score
from kedge.experiments.records import PoolInfo, Record

BASE = "NU"  # never updated: what doing nothing gives
PARAGON = "PAR"  # trained on everything: what no incremental method may do
OURS = "IDA"
UNSEEN = ("unseen", "unseen_both")  # the pool of all unseen classes, whichever a protocol has


@dataclass(frozen=True)
class Difference:
    """One method minus another."""

    score: Score

    @property
    def clear(self) -> bool:
        return metrics.clear(self.score)

    @property
    def ahead(self) -> bool:
        return self.clear and self.score.mean > 0

    @property
    def behind(self) -> bool:
        return self.clear and self.score.mean < 0


# ── methods and rounds ───────────────────────────────────────────────────────────────────────


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


def references(record: Record) -> tuple[str, ...]:
    """NU and PAR, as far as they are in the final round, be it with options."""
    present = {family(m) for m in methods_after(record, final_round(record))}
    return tuple(name for name in (BASE, PARAGON) if name in present)


def competitors(record: Record, round: int) -> tuple[str, ...]:
    return tuple(m for m in methods_after(record, round) if not is_reference(m))


def leads(record: Record) -> tuple[str, ...]:
    """The methods the report is about, plain IDA first or the variant whose λ is nearest to its
    1; without any IDA, the first competitor."""
    present = methods_after(record, final_round(record))
    ours = sorted((m for m in present if family(m) == OURS), key=lambda m: (m != OURS, _odd(m)))
    if ours:
        return tuple(ours)
    return next(((m,) for m in present if not is_reference(m)), present[:1])


def _odd(label: str) -> float:
    """How far a method's λ is from 1."""
    found = re.search(r" lambda=(\S+)", label)
    return abs(float(found[1]) - 1) if found else 0.0


def intervals_over_seeds(record: Record) -> bool:
    return len(record.seeds) >= metrics.ENOUGH_SEEDS


# ── pools and shapes ─────────────────────────────────────────────────────────────────────────


def table_pools(record: Record, round: int) -> tuple[PoolInfo, ...]:
    """The columns of the main table: the pools by role, in the first shape of test episodes."""
    pools = (p for p in record.pools(round) if p.first_shape)
    return tuple(p for p in pools if not p.name.startswith(ROUND_POOL))


def matrix_pools(record: Record) -> tuple[PoolInfo, ...]:
    """The pools of each round's own classes, as the final round tested them."""
    pools = (p for p in record.pools(final_round(record)) if p.first_shape)
    return tuple(p for p in pools if p.name.startswith(ROUND_POOL))


def has_come(pool: PoolInfo, round: int) -> bool:
    """Whether the classes of a `round_i` pool had been brought by then."""
    return int(pool.name.removeprefix(ROUND_POOL)) <= round


def unseen_pools(record: Record, round: int) -> tuple[PoolInfo, ...]:
    """All unseen classes, once for each shape of test episodes: fewest shots, then ways, first."""
    pools = record.pools(round)
    name = next((name for name in UNSEEN if any(p.pool == name for p in pools)), "")
    found = [pool for pool in pools if pool.pool == name]
    return tuple(sorted(found, key=lambda pool: _order(tested(record, pool))))


def _order(shape: EpisodeShape | None) -> tuple[tuple[int, int], ...]:
    return (shape.shots, shape.ways) if shape else ()


def trained(record: Record) -> EpisodeShape | None:
    """The shape of the training episodes in the base round."""
    shape = record.config.get("episode")
    return from_dict(EpisodeShape, shape) if shape else None


def tested(record: Record, pool: PoolInfo) -> EpisodeShape | None:
    """The shape of a pool's test episodes; early records tested as they trained."""
    return pool.shape or trained(record)


# ── comparisons ──────────────────────────────────────────────────────────────────────────────


def difference(record: Record, a: str, b: str, round: int, pool: str) -> Difference | None:
    """a − b, if the record compares the two."""
    found = metrics.difference(record, a, b, round, pool)
    return None if found is None else Difference(found)


def best(record: Record, round: int, pool: str) -> tuple[str, ...]:
    """The best competitor and all that cannot be told apart from it; none without a contest."""
    scores = {m: score(record, m, round, pool) for m in competitors(record, round)}
    means = {m: found.mean for m, found in scores.items() if found is not None}
    if len(means) < 2:
        return ()
    top = max(means, key=lambda m: means[m])
    against = {m: difference(record, top, m, round, pool) for m in means if m != top}
    if None in against.values():
        return ()
    return (top, *(m for m, found in against.items() if found is not None and not found.clear))
