"""What a classifier needs to compare classes with different numbers of examples, and to say that an
image belongs to none of them (`kedge.models.novelty`).

The mean of few examples is noisy: images of its own class are farther from it than from a mean of
many. Without a correction, a new class with 5 examples beside known ones loses images to these; see
`Head.offsets`, which corrects it, and LOG.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from kedge.config import ADDED
from kedge.errors import require
from kedge.models.heads import Head
from kedge.models.heads.base import ClassFeatures

MAX_VARIANCE = 1e30  # so that offsets are finite in float32
# Scores of novelty that a model keeps; and so many are enough not to need those of earlier rounds.
MOST_REFERENCES, ENOUGH_REFERENCES = 500, 100
MOST_IN_FILE = 10_000  # scores of novelty


@dataclass(frozen=True)
class Calibration:
    """The spread of the features of a class, and how many images each class mean comes from."""

    variance: float  # E‖z − class mean‖², pooled over the classes of all rounds
    counts: dict[str, int]  # by class; a class that is not listed has many images
    # Novelty of images of known classes that were held back from training, the latest first.
    novelty: tuple[float, ...] = field(default=(), metadata=ADDED)

    def __post_init__(self) -> None:
        require(0 <= self.variance < MAX_VARIANCE, "its variance is not a positive number")
        require(all(n > 0 for n in self.counts.values()), "its counts are not above 0")
        valid = all(0 <= score < math.inf for score in self.novelty)
        require(valid and len(self.novelty) <= MOST_IN_FILE, "its novelty is not valid")

    def with_counts(self, counts: dict[str, int]) -> Calibration:
        return replace(self, counts={**self.counts, **counts})

    def with_novelty(self, scores: Sequence[float]) -> Calibration:
        """With the scores of one more round. They replace those of earlier rounds unless they are
        few: what is usual for a known image changes with the network and the number of classes."""
        latest = _evenly(scores, MOST_REFERENCES)
        earlier = _evenly(self.novelty, max(0, ENOUGH_REFERENCES - len(latest)))
        return replace(self, novelty=(*(round(score, 4) for score in latest), *earlier))


def _evenly(scores: Sequence[float], most: int) -> list[float]:
    """At most so many of the scores, evenly chosen from small to large."""
    ordered, n = sorted(scores), min(len(scores), most)
    return [ordered[int((i + 0.5) * len(ordered) / n)] for i in range(n)]


@torch.no_grad()
def calibration_after(
    before: Calibration | None, head: Head, names: Sequence[str], features: ClassFeatures
) -> Calibration | None:
    """The calibration with the classes of one more round, from the features of their images. None
    if no class ever had two."""
    counts = {name: len(z) for name, z in zip(names, features, strict=True)}
    several = [z for z in features if len(z) > 1]
    variances = [head.distance_features(z).double().var(0).sum() for z in several]
    variance, n = float(torch.stack(variances).mean()) if several else math.nan, len(several)
    if not variance < MAX_VARIANCE:  # a user's backbone may give infinite features
        return None if before is None else before.with_counts(counts)
    if before is None:
        return Calibration(variance, counts)
    n_before = len(before.counts)
    pooled = (n_before * before.variance + n * variance) / (n_before + n)
    return replace(before, variance=pooled, counts={**before.counts, **counts})
