"""Estimates of how well classes are named whose images are gone.

Images of an old class are simulated under the network before the round: around its stored mean lie
differences of the new images from their class means, so that nothing is assumed of the shape of a
class. To each is added how far stored means are thought to be from the true ones. They are scaled
so that simulated images are named as often as the class was named before. Then they follow the
network, as far as the new images tell how it moved:

- The map that moves the means (`kedge.models.drift_compensation`) moves them.
- What the map misses of a new image, beyond what it misses of its class, is added to each.
- What it misses of the mean of a whole class is added, too. The map is fitted without the images of
  each new class in turn; the share of the class's drift that it misses then is taken to be the
  share that it misses of the drift of old classes. It is scaled like the images: where these had to
  be spread wider than real ones, means that are as far off as real ones would do less harm. The sum
  over rounds is kept with the estimate for the next one.

docs/outcome.md says how near the estimates were to the truth where images were kept aside.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kedge.models.classifier import Classifier
from kedge.models.drift_compensation import (
    MAX_IMAGES,
    DeliveredFeatures,
    DriftMap,
    drift_residuals,
)
from kedge.models.outcome import MAX_DISPLACEMENT, NamingChange, shrunk
from kedge.models.spread import class_means, deviations
from kedge.utils.seeding import torch_seed

MOST_CLASSES, MOST_IMAGES, PER_CLASS = 1000, 10_000, 250  # that are simulated
SMALLEST, LARGEST, HALVINGS = 0.1, 10.0, 14  # of the search for a spread
BATCH = 1000  # images
# The standard error of what a round changes: points, and a share of the change (LOG.md).
CHANGE_ERROR = (1.0, 0.15)


@dataclass(frozen=True)
class SimulatedImages:
    """Images of classes, around their means."""

    names: tuple[str, ...]
    centres: Float[Tensor, "c d"]
    deviations: Float[Tensor, "c n d"]

    @classmethod
    def around(
        cls,
        names: Sequence[str],
        means: Float[Tensor, "c d"],
        deviations: Float[Tensor, "n d"],
        seed: torch.Generator,
    ) -> SimulatedImages:
        """A sample of the classes, each with a sample of the deviations."""
        stride = -(-len(means) // MOST_CLASSES)
        names, means = tuple(names[::stride]), means[::stride]
        n = max(1, min(PER_CLASS, MOST_IMAGES // len(means)))
        chosen = torch.randint(len(deviations), (len(means), n), generator=seed)
        return cls(names, means, deviations[chosen.to(means.device)])

    def scaled(self, spread: float) -> SimulatedImages:
        return replace(self, deviations=spread * self.deviations)

    def displaced(
        self, directions: Float[Tensor, "k d"], squared: float, seed: torch.Generator
    ) -> SimulatedImages:
        """With images moved by this squared distance, on average, in random directions. The mean
        accuracy is that of classes whose centres are moved, but varies less."""
        directions = directions[:: -(-len(directions) // MOST_CLASSES)]
        length = directions.square().sum(1).mean().sqrt()
        if squared == 0 or length == 0:
            return self
        shape = (*self.deviations.shape[:2], len(directions))
        weights = torch.randn(shape, generator=seed).to(directions)
        moves = weights @ (directions * (squared / len(directions)) ** 0.5 / length)
        return replace(self, deviations=self.deviations + moves)

    def named(self, classifier: Classifier) -> float:
        """Accuracy of naming them in %."""
        index = {name: i for i, name in enumerate(classifier.classes)}
        targets = torch.tensor([index[name] for name in self.names], device=self.centres.device)
        targets = targets.repeat_interleave(self.deviations.shape[1])
        images = (self.centres[:, None] + self.deviations).flatten(0, 1)
        parts = zip(images.split(BATCH), targets.split(BATCH), strict=True)
        right: list[Bool[Tensor, " b"]] = [classifier.logits(z).argmax(1) == y for z, y in parts]
        return 100 * float(torch.cat(right).double().mean())

    def spread_for(self, classifier: Classifier, accuracy: float) -> float:
        """The spread with which they are named as often as this, by bisection."""
        low, high = SMALLEST, LARGEST
        for _ in range(HALVINGS):
            middle = (low * high) ** 0.5
            if self.scaled(middle).named(classifier) > accuracy:
                low = middle
            else:
                high = middle
        return (low * high) ** 0.5


@dataclass(frozen=True)
class Drift:
    """How a round moved features, as the new images show it."""

    map: DriftMap
    shift: Float[Tensor, " d"]  # of all images together
    missed: Float[Tensor, "k d"]  # of the means of new classes, by a map that does not know them
    missed_share: float  # of how far these means have moved (squared, at most 1)
    scatter: Float[Tensor, "n d"]  # what that map misses of each image beyond its class's mean

    @classmethod
    def of(cls, features: DeliveredFeatures) -> Drift:
        stride = -(-len(features.labels) // MAX_IMAGES)
        before, after = features.before[::stride], features.after[::stride]
        labels = features.labels[::stride]
        residuals = drift_residuals(before, after, labels)
        missed, counts = class_means(residuals, labels)
        drift = after - before
        moved, _ = class_means(drift - drift.mean(0), labels)
        total = float(moved[counts > 0].square().sum())
        share = float(missed[counts > 0].square().sum()) / total if total else 0.0
        return cls(
            DriftMap.fit(features.before, features.after),
            features.after.mean(0) - features.before.mean(0),
            missed[counts > 0],
            min(share, 1.0),
            residuals - missed[labels],
        )

    def missed_of(self, before: Float[Tensor, "c d"], after: Float[Tensor, "c d"]) -> float:
        """The mean squared distance by which the map misses means that it has moved."""
        moved = (after - before - self.shift).square().sum(1).mean()
        return min(self.missed_share * float(moved), MAX_DISPLACEMENT)

    def follow(
        self,
        images: SimulatedImages,
        means: Float[Tensor, "c d"],
        missed: float,
        seed: torch.Generator,
    ) -> SimulatedImages:
        """The images after the round, when these are the stored means of their classes, and the
        true ones are displaced by this squared distance more than before."""
        around = self.map(images.centres[:, None] + images.deviations)
        around = around - self.map(images.centres)[:, None]
        chosen = torch.randint(len(self.scatter), around.shape[:2], generator=seed)
        around = around + self.scatter[chosen.to(around.device)]
        moved = SimulatedImages(images.names, means, around)
        return moved.displaced(self.missed, missed, seed)


class OldClasses:
    """Estimates for the classes that were known before a round."""

    def __init__(
        self,
        before: Classifier,
        untrained: Classifier,
        after: Classifier,
        features: DeliveredFeatures,
    ) -> None:
        """Classifiers among the classes known before the round, the same network with the new
        classes added by their means, and after the round; and features of the new images."""
        self.before, self.untrained, self.after = before, untrained, after
        self.around = deviations(features.before, features.labels)
        trained = after.model.lineage[-1].best_epoch > 0 and len(self.around) > 0
        self.drift = Drift.of(features) if trained else None

    def change(self, names: Sequence[str], last: NamingChange) -> NamingChange | None:
        """What the round did to these classes; None if the new ones have one image each."""
        start, model = self.before.model, self.after.model
        means = start.class_means_of(names)
        if means is None or not len(self.around):
            return None
        key = ("old classes", model.lineage[-1].round, last.round)
        seed = torch.Generator().manual_seed(torch_seed(*key))
        images = SimulatedImages.around(names, means, self.around, seed)
        if self.drift is not None:
            images = images.displaced(self.drift.missed, last.displacement, seed)
        # An estimate of 100% would make the images of a class all alike.
        spread = images.spread_for(self.before, shrunk(last.after, last.images or MOST_IMAGES))
        images = images.scaled(spread)
        untrained = after = images.named(self.untrained)
        means_after, displacement = model.class_means_of(images.names), last.displacement
        if self.drift is not None and means_after is not None:
            missed = self.drift.missed_of(images.centres, means_after)
            displacement = min(displacement + missed, MAX_DISPLACEMENT)
            followed = self.drift.follow(images, means_after, spread**2 * missed, seed)
            after = followed.named(self.after)
        return NamingChange(
            last.round,
            len(names),
            0,
            last.after,
            untrained,
            after,
            displacement=displacement,
            interval=_interval(last, after),
        )


def _interval(last: NamingChange, after: float) -> float | None:
    """Half the width of the 95% interval: that of the accuracy before the round, and the round's
    own."""
    if last.half_width is None:
        return None
    errors = (CHANGE_ERROR[0], CHANGE_ERROR[1] * (after - last.after))
    return min(100.0, math.hypot(last.half_width, *(1.96 * error for error in errors)))
