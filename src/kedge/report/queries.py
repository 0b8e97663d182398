"""What a report asks of a record: which methods compete, on which pools, and which is ahead.

Not every method is tested on every pool after every round; a missing value is None, not an error.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from kedge.config import EpisodeShape
from kedge.errors import KedgeError
from kedge.evaluation.results import Score
from kedge.experiments import metrics
from kedge.experiments.metrics import ROUND_POOL as ROUND_POOL
from kedge.experiments.metrics import difference as difference
from kedge.experiments.metrics import score as score
from kedge.experiments.records import PoolInfo, Record
from kedge.utils.config_io import from_dict

BASE = "NU"  # no update: the base model in every round
PARAGON = "PAR"  # trained on the images of all rounds, which incremental methods may not see
OURS = "IDA"
UNSEEN = ("unseen", "unseen_both")  # names of the pool of all unseen classes


# ── methods and rounds ───────────────────────────────────────────────────────────────────────


def family(label: str) -> str:
    """'IDA anchors=all' → 'IDA'."""
    return next(iter(label.split()), label)


def is_reference(label: str) -> bool:
    return family(label) in (BASE, PARAGON)


def final_round(record: Record) -> int:
    if not record.runs:
        raise KedgeError(f"The record '{record.name}' has no runs, so there is nothing to report.")
    return record.rounds[-1]


def incremental_rounds(record: Record) -> tuple[int, ...]:
    """The rounds after the base round, or the final round if there is no other."""
    return tuple(r for r in record.rounds if r > 0) or (final_round(record),)


def methods_after(record: Record, round: int) -> tuple[str, ...]:
    """Methods with a run in this round, in record order, but NU first and PAR last."""
    present = [m for m in record.methods if record.select(m, round)]
    rank = {BASE: -1, PARAGON: 1}
    return tuple(sorted(present, key=lambda m: rank.get(family(m), 0)))


def final_methods(record: Record) -> tuple[str, ...]:
    return methods_after(record, final_round(record))


def lead_methods(record: Record) -> tuple[str, ...]:
    """The methods that are compared with the others: IDA and its variants.

    Plain IDA comes first, else the variant whose λ is nearest to 1. Without IDA it is the first
    method that is no reference.
    """
    present = final_methods(record)
    ours = [m for m in present if family(m) == OURS]
    if ours:
        return tuple(sorted(ours, key=lambda m: (m != OURS, _lambda_distance(m))))
    return next(((m,) for m in present if not is_reference(m)), present[:1])


def _lambda_distance(label: str) -> float:
    match = re.search(r" lambda=([\d.]+)", label)
    return abs(float(match[1]) - 1) if match else 0.0


def intervals_over_seeds(record: Record) -> bool:
    """Whether there are enough seeds for intervals over seeds; otherwise they are over episodes."""
    return len(record.seeds) >= metrics.ENOUGH_SEEDS


# ── pools and shapes ─────────────────────────────────────────────────────────────────────────


def table_pools(record: Record, round: int) -> tuple[PoolInfo, ...]:
    """The columns of the main table: old, new, unseen, in the first shape of test episodes."""
    pools = (p for p in record.pools(round) if p.first_shape)
    return tuple(p for p in pools if not p.name.startswith(ROUND_POOL))


def round_pools(record: Record) -> tuple[PoolInfo, ...]:
    """The pools that each hold the classes of one round."""
    pools = (p for p in record.pools(final_round(record)) if p.first_shape)
    return tuple(p for p in pools if p.name.startswith(ROUND_POOL))


def is_delivered(pool: PoolInfo, round: int) -> bool:
    """Whether the classes of a `round_i` pool have been delivered by this round."""
    return int(pool.name.removeprefix(ROUND_POOL)) <= round


def unseen_pools(record: Record, round: int) -> tuple[PoolInfo, ...]:
    """The pool of all unseen classes, once per shape of test episodes, by shots, then ways."""
    pools = record.pools(round)
    name = next((name for name in UNSEEN if any(p.pool == name for p in pools)), "")
    unseen = [(eval_shape(record, p) or EpisodeShape(), p) for p in pools if p.pool == name]
    return tuple(p for _, p in sorted(unseen, key=lambda pair: (pair[0].shots, pair[0].ways)))


def train_shape(record: Record) -> EpisodeShape | None:
    """The shape of the training episodes in the base round."""
    shape = record.config.get("episode")
    return from_dict(EpisodeShape, shape) if shape else None


def eval_shape(record: Record, pool: PoolInfo) -> EpisodeShape | None:
    """The shape of a pool's test episodes; in early records it is that of the training episodes."""
    return pool.shape or train_shape(record)


def base_round(record: Record) -> int:
    """The round after which a model depends on its base training alone."""
    return 0 if 0 in record.rounds else final_round(record)


def base_method(record: Record) -> str:
    return BASE if BASE in record.methods else record.methods[0]


# ── comparisons ──────────────────────────────────────────────────────────────────────────────


def sign(difference: Score) -> int:
    """1 if a difference is clearly positive, −1 if clearly negative, 0 if its interval has zero."""
    if not metrics.clear(difference):
        return 0
    return 1 if difference.mean > 0 else -1


def best(record: Record, round: int, pool: str) -> tuple[str, ...]:
    """The best competitor and all that are not clearly worse; empty if fewer than two compete."""
    methods = [m for m in methods_after(record, round) if not is_reference(m)]
    scores = {m: score(record, m, round, pool) for m in methods}
    means = {m: value.mean for m, value in scores.items() if value is not None}
    if len(means) < 2:
        return ()
    top = max(means, key=lambda m: means[m])
    against = {m: difference(record, top, m, round, pool) for m in means if m != top}
    if None in against.values():
        return ()
    return (top, *(m for m, value in against.items() if value is not None and not sign(value)))


@dataclass(frozen=True)
class Measurement:
    """One method on one pool after one round of a record."""

    record: Record
    method: str
    round: int
    pool: PoolInfo

    @property
    def score(self) -> Score | None:
        return score(self.record, self.method, self.round, self.pool.name)

    def _by_seed(self) -> dict[int, float]:
        runs = self.record.select(self.method, self.round)
        return {r.seed: r.scores[self.pool.name].mean for r in runs if self.pool.name in r.scores}

    def minus(self, other: Measurement) -> Score | None:
        """Paired within one round of a record, or by seed between records with the same seeds.

        Otherwise the two count as independent.
        """
        if self.record is other.record and self.round == other.round:
            return difference(self.record, self.method, other.method, self.round, self.pool.name)
        a, b = self.score, other.score
        if a is None or b is None:
            return None
        if intervals_over_seeds(self.record) and self.record.seeds == other.record.seeds:
            ours, theirs = self._by_seed(), other._by_seed()
            if ours.keys() != theirs.keys():
                return None
            return metrics.over_seeds([ours[seed] - theirs[seed] for seed in ours])
        return Score(a.mean - b.mean, math.hypot(a.ci, b.ci), min(a.n, b.n))
