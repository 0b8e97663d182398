"""Effects of several tables pooled into one, and the verdict that a pooled effect gives.

Random-effects mean after DerSimonian and Laird (1986): a table counts by its own variance plus the
variance between tables, so that neither a large table nor an outlier decides alone.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

Z = 1.96  # 95% quantile of the normal distribution, two-sided


class Verdict(StrEnum):
    HELD = "held"
    FAILED = "did not hold"
    UNDECIDED = "undecided"
    NO_TABLE = "no table"


@dataclass(frozen=True)
class Effect:
    """A difference in one table, in percentage points: the mean over its trainings."""

    table: str  # name of the study
    mean: float
    ci: float  # half-width of the 95% interval over test episodes
    n_trainings: int = 1
    independent: bool = False  # compared with one training that shares no base model

    def variance(self, training_sd: float) -> float:
        """Sampling variance: test episodes, plus what another training would change."""
        trainings = 1 / self.n_trainings + (1 if self.independent else 0)
        return (self.ci / Z) ** 2 + trainings * training_sd**2


@dataclass(frozen=True)
class Pooled:
    """Random-effects mean of several tables with its 95% interval."""

    mean: float
    ci: float
    between_sd: float  # spread between tables beyond what trainings and episodes explain
    effects: tuple[Effect, ...]

    @property
    def low(self) -> float:
        return self.mean - self.ci

    @property
    def high(self) -> float:
        return self.mean + self.ci

    @property
    def n_trainings(self) -> int:
        return sum(effect.n_trainings for effect in self.effects)

    def verdict(self, bound: float = 0.0) -> Verdict:
        """Whether the effect is above `bound`: 0 for "better", -margin for "no worse"."""
        if self.low > bound:
            return Verdict.HELD
        return Verdict.FAILED if self.high < bound else Verdict.UNDECIDED


def pool(effects: Sequence[Effect], training_sd: float) -> Pooled:
    """Pool the effects of one or more tables.

    Args:
        effects: at most one per table.
        training_sd: standard deviation between trainings of one table, see `training_sd`.
    """
    if not effects:
        raise ValueError("no effect to pool")
    variances = [max(effect.variance(training_sd), 1e-6) for effect in effects]
    means = [effect.mean for effect in effects]
    weights = [1 / variance for variance in variances]
    fixed = sum(w * m for w, m in zip(weights, means, strict=True)) / sum(weights)
    q = sum(w * (m - fixed) ** 2 for w, m in zip(weights, means, strict=True))
    scale = sum(weights) - sum(w**2 for w in weights) / sum(weights)
    between = max(0.0, (q - (len(effects) - 1)) / scale) if scale > 0 else 0.0
    weights = [1 / (variance + between) for variance in variances]
    mean = sum(w * m for w, m in zip(weights, means, strict=True)) / sum(weights)
    return Pooled(mean, Z / math.sqrt(sum(weights)), math.sqrt(between), tuple(effects))


def training_sd(groups: Iterable[Sequence[float]]) -> float:
    """Standard deviation within groups: each holds one effect, once per training of a table."""
    repeated = [group for group in groups if len(group) > 1]
    squares = sum((len(group) - 1) * statistics.variance(group) for group in repeated)
    freedom = sum(len(group) - 1 for group in repeated)
    return math.sqrt(squares / freedom) if freedom else 0.0


def decide(verdicts: Iterable[Verdict]) -> Verdict:
    """A claim with several parts holds if all do, and does not hold if one does not."""
    given = set(verdicts) - {Verdict.NO_TABLE}
    if not given:
        return Verdict.NO_TABLE
    if Verdict.FAILED in given:
        return Verdict.FAILED
    return Verdict.HELD if given == {Verdict.HELD} else Verdict.UNDECIDED
