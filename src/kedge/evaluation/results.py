"""Results that records keep: a score with its interval, an epoch of a training curve, an anchor's
drift. A leaf module: reading a record does not load the training step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxtyping import Bool, Float64
    from torch import Tensor


@dataclass(frozen=True)
class Score:
    """A mean over episodes and the half-width of its 95% interval, 1.96·std/√n."""

    mean: float
    ci: float
    n: int

    @classmethod
    def of(cls, values: Float64[Tensor, " n"]) -> Score:
        n = len(values)
        spread = float(values.std()) if n > 1 else math.inf
        return cls(float(values.mean()), 1.96 * spread / math.sqrt(n), n)

    @classmethod
    def of_right(cls, right: Bool[Tensor, " n"]) -> Score:
        """Per cent that are right; how far Wilson's interval goes, which none of nine has, too."""
        n, share = len(right), float(right.double().mean())
        square = 1.96**2 / n
        middle = (share + square / 2) / (1 + square)
        half = 1.96 * math.sqrt(share * (1 - share) / n + square / (4 * n)) / (1 + square)
        return cls(100 * share, 100 * (abs(middle - share) + half), n)

    def __str__(self) -> str:
        return f"{self.mean:.2f} ± {self.ci:.2f}"


def paired_difference(a: Float64[Tensor, " n"], b: Float64[Tensor, " n"]) -> Score:
    """a − b, episode by episode: what both find hard cancels, so the interval is narrower."""
    return Score.of(a - b)


@dataclass(frozen=True)
class Epoch:
    """One line of a training curve. Accuracy in per cent, losses in nats."""

    epoch: int
    loss: float
    cross_entropy: float
    penalty: float
    val_accuracy: float
    lr: float


@dataclass(frozen=True)
class AnchorMove:
    """Where a class was when its anchor was made and where it is now, on a plane.

    The plane holds the two directions in which the base model's anchors differ most.
    """

    name: str  # of the class
    stored: tuple[float, float]  # its anchor, as it was kept
    now: tuple[float, float]  # what the anchor would be under this model: an oracle, for figures
