"""What a round did to a model, as its lineage records it. Accuracies are in %.

The three columns of a comparison are the same everywhere: `before` is the model before the round,
among the classes that it knew then; `untrained` is the same network with anchors of the new classes
added, so that nothing but training lies between it and `after`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from kedge.config import ADDED, EpisodeShape
from kedge.errors import require

MAX_DISPLACEMENT = 1e30  # so that it is finite in float32


@dataclass(frozen=True)
class NamingChange:
    """Accuracy of naming images of the classes that were first learned in one round, among all
    classes that the model knows."""

    round: int  # in which the classes were first learned
    classes: int
    images: int  # that were held back from training; 0 for an estimate
    before: float | None  # None: the model did not know these classes
    untrained: float
    after: float
    # In files of the first version of estimates, and not used any more.
    spread: float | None = field(default=None, metadata=ADDED)
    # Of an estimate: by how much stored means are thought to miss the true ones (mean squared
    # distance), for later estimates; and half the width of the 95% interval of `after`.
    displacement: float = field(default=0.0, metadata=ADDED)
    interval: float | None = field(default=None, metadata=ADDED)  # None: of an early version

    def __post_init__(self) -> None:
        require(self.round >= 0 and self.classes > 0 and self.images >= 0, "a count is negative")
        _check_accuracies(self.before, self.untrained, self.after, self.interval)
        distances = (self.spread or 0.0, self.displacement)
        valid = all(0 <= value <= MAX_DISPLACEMENT for value in distances)
        require(valid, "a spread is not a positive number")

    @property
    def estimated(self) -> bool:
        """Whether the images are gone, so that the numbers are estimates from the anchors and the
        stored spread of the features."""
        return self.images == 0

    @property
    def half_width(self) -> float | None:
        """Of the 95% interval of `after`, estimated or measured; None if it is not known."""
        if self.estimated:
            return self.interval
        share, n = shrunk(self.after, self.images) / 100, self.images + 2
        return 196 * math.sqrt(share * (1 - share) / n)


def shrunk(accuracy: float, n: int) -> float:
    """An accuracy in % on n images with one more image that is right, and one that is wrong: it is
    neither 0 nor 100 (Agresti and Caffo, 2000)."""
    return 100 * (accuracy / 100 * n + 1) / (n + 2)


@dataclass(frozen=True)
class FewShotChange:
    """Accuracy over episodes of classes that were held back from training."""

    shape: EpisodeShape
    classes: int
    episodes: int
    before: float
    after: float
    interval: float  # half-width of the 95% interval of after − before, over the same episodes

    def __post_init__(self) -> None:
        require(self.classes > 1 and self.episodes > 1, "a count is too small")
        _check_accuracies(self.before, self.after, self.interval)


@dataclass(frozen=True)
class RoundOutcome:
    """What a round did, measured on images and classes that it held back from training."""

    naming: tuple[NamingChange, ...]  # by the round in which classes were first learned
    few_shot: FewShotChange | None  # None: the delivery had no class to spare


def _check_accuracies(*values: float | None) -> None:
    valid = all(v is None or (math.isfinite(v) and 0 <= v <= 100) for v in values)
    require(valid, "an accuracy is not from 0 to 100")
