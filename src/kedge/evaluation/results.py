"""Results that records hold: scores, training curves and the drift of anchors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from kedge.config import Epochs
from kedge.utils.ranges import Percent, Range, Total

if TYPE_CHECKING:
    from jaxtyping import Bool, Float64
    from torch import Tensor


@dataclass(frozen=True)
class Score:
    """A mean over episodes and the half-width of its 95% interval, 1.96·std/√n."""

    mean: Annotated[float, Range(-100, 100)]  # negative only for differences
    ci: Annotated[float, Range(0, 200)]
    n: Total

    @classmethod
    def of(cls, values: Float64[Tensor, " n"]) -> Score:
        n = len(values)
        spread = float(values.std()) if n > 1 else math.inf
        return cls(float(values.mean()), 1.96 * spread / math.sqrt(n), n)

    @classmethod
    def of_correct(cls, correct: Bool[Tensor, " n"]) -> Score:
        """Accuracy in % with the half-width of the Wilson 95% interval (non-zero even at 0/n)."""
        n, share = len(correct), float(correct.double().mean())
        square = 1.96**2 / n
        middle = (share + square / 2) / (1 + square)
        half = 1.96 * math.sqrt(share * (1 - share) / n + square / (4 * n)) / (1 + square)
        return cls(100 * share, 100 * (abs(middle - share) + half), n)

    def __str__(self) -> str:
        return f"{self.mean:.2f} ± {self.ci:.2f}"


@dataclass(frozen=True)
class ClassAccuracy:
    """How many images of a class, or queries of episodes, got its name."""

    name: str
    correct: int
    of: int

    @property
    def accuracy(self) -> float:
        """In %."""
        return 100 * self.correct / self.of


@dataclass(frozen=True)
class Confusion:
    """How many images of one class were given the name of another."""

    true: str
    predicted: str
    count: int
    of: int  # images of the first; over episodes, those in episodes of both classes


@dataclass(frozen=True)
class NamingResult:
    """Accuracy in % of naming images among all learned classes, without examples."""

    overall: Score
    by_round: dict[int, Score]  # on the images of the classes first learned in each round
    # With the anchors as they were stored, where `Model.classifier` uses class means that were
    # compensated for drift; None if it uses the anchors anyway.
    by_anchors: NamingResult | None = None


@dataclass(frozen=True)
class EpochResult:
    """One epoch of a training curve (`Run.history`): accuracy in %, losses in nats."""

    epoch: Epochs
    loss: float
    cross_entropy: float
    penalty: float
    val_accuracy: Percent
    lr: Annotated[float, Range(0, 1e30)]


@dataclass(frozen=True)
class AnchorMove:
    """A class when its anchor was made and now, projected to the plane that the two principal
    components of the base model's anchors span."""

    name: str  # of the class
    stored: tuple[float, float]  # the anchor as it was stored
    now: tuple[float, float]  # the anchor that the same images would give now
