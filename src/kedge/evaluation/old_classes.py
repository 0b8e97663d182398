"""Estimates of how well classes are named whose images are gone.

An old class is simulated where its mean is stored: around it lie differences of the new images from
their class means, so that nothing is assumed of the shape of a class. Two numbers are kept for the
classes of each round.

- spread: the differences are multiplied by this. It is chosen in the round of origin, so that
  simulated images are named as often as images that were held back then.
- displacement: the squared distance of the stored means from the true ones, summed over the later
  rounds. The map that moves the means (`kedge.models.drift_compensation`) is fitted without the
  images of each new class in turn; the share of a class's drift that it misses then is taken to be
  the share that it misses of the drift of old classes.

The estimates are rough: docs/outcome.md says how near they were to the truth where images were kept
aside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from kedge.models.classifier import Classifier
from kedge.models.drift_compensation import MAX_IMAGES, DeliveredFeatures, drift_residuals
from kedge.models.outcome import NamingChange
from kedge.utils.seeding import torch_seed

MOST_CLASSES, MOST_IMAGES, PER_CLASS = 1000, 10_000, 100  # that are simulated
SMALLEST, LARGEST, HALVINGS = 0.1, 10.0, 14  # of the search for a spread
BATCH = 1000  # images
# The displacement counts so often, since an update changes more than the means of old classes. With
# 1 estimates after three updates on drawings are 5 points too high, with 2 they are 3 (LOG.md).
OTHER_CHANGES = 2.0

Logits = Callable[[Float[Tensor, "b d"]], Float[Tensor, "b k"]]


@dataclass(frozen=True)
class SimulatedImages:
    """Images of classes around their means, which have these numbers for a classifier."""

    centres: Float[Tensor, "c d"]
    targets: Int64[Tensor, " c"]
    deviations: Float[Tensor, "c n d"]

    @classmethod
    def around(
        cls,
        means: Float[Tensor, "c d"],
        targets: Int64[Tensor, " c"],
        deviations: Float[Tensor, "n d"],
        seed: torch.Generator,
    ) -> SimulatedImages:
        """A sample of the classes, each with a sample of the deviations."""
        stride = -(-len(means) // MOST_CLASSES)
        means, targets = means[::stride], targets[::stride]
        n = max(1, min(PER_CLASS, MOST_IMAGES // len(means)))
        chosen = torch.randint(len(deviations), (len(means), n), generator=seed)
        return cls(means, targets.to(means.device), deviations[chosen.to(means.device)])

    def displaced(
        self, directions: Float[Tensor, "k d"], squared: float, seed: torch.Generator
    ) -> SimulatedImages:
        """With centres moved by this squared distance, on average, in random directions."""
        length = directions.square().sum(1).mean().sqrt()
        if squared == 0 or length == 0:
            return self
        weights = torch.randn(len(self.centres), len(directions), generator=seed)
        moves = weights.to(directions) / len(directions) ** 0.5 @ (directions / length)
        return replace(self, centres=self.centres + squared**0.5 * moves)

    def named(self, logits: Logits, spread: float) -> float:
        """Accuracy of naming them in %."""
        images = (self.centres[:, None] + spread * self.deviations).flatten(0, 1)
        targets = self.targets.repeat_interleave(self.deviations.shape[1])
        parts = zip(images.split(BATCH), targets.split(BATCH), strict=True)
        right: list[Bool[Tensor, " b"]] = [logits(z).argmax(1) == y for z, y in parts]
        return 100 * float(torch.cat(right).double().mean())

    def spread_for(self, logits: Logits, accuracy: float) -> float:
        """The spread with which they are named as often as this, by bisection."""
        low, high = SMALLEST, LARGEST
        for _ in range(HALVINGS):
            middle = (low * high) ** 0.5
            if self.named(logits, middle) > accuracy:
                low = middle
            else:
                high = middle
        return (low * high) ** 0.5


class OldClasses:
    """Estimates for the classes that were known before a round."""

    def __init__(self, before: Classifier, untrained: Classifier, after: Classifier) -> None:
        """Classifiers among the classes known before the round, the same network with the new
        classes added by their means, and after the round."""
        self.before, self.untrained, self.after = before, untrained, after

    def change(
        self, names: Sequence[str], last: NamingChange, features: DeliveredFeatures
    ) -> NamingChange | None:
        """What the round did to these classes; None if the new ones have one image each."""
        start, model, labels = self.before.model, self.after.model, features.labels
        around_before = deviations(features.before, labels)
        around_after = deviations(features.after, labels)
        means, means_after = start.class_means_of(names), model.class_means_of(names)
        if means is None or means_after is None or not len(around_before):
            return None
        key = ("old classes", model.lineage[-1].round, last.round)
        seed = torch.Generator().manual_seed(torch_seed(*key))
        images = SimulatedImages.around(means, _numbers(self.before, names), around_before, seed)
        spread = images.spread_for(self.before.logits, last.after)
        among_all = replace(images, targets=_numbers(self.untrained, names).to(means.device))
        untrained = among_all.named(self.untrained.logits, spread)
        after, displacement = untrained, last.displacement
        if model.lineage[-1].best_epoch > 0:
            missed, missed_share = missed_drift(features)
            shift = features.after.mean(0) - features.before.mean(0)
            moved = (means_after - means - shift).square().sum(1).mean()
            displacement += OTHER_CHANGES * missed_share * float(moved)
            images = SimulatedImages.around(
                means_after, _numbers(self.after, names), around_after, seed
            )
            images = images.displaced(missed, displacement, seed)
            after = images.named(self.after.logits, last.spread or 1.0)
        return replace(
            last,
            classes=len(names),
            images=0,
            before=last.after,
            untrained=untrained,
            after=after,
            displacement=displacement,
        )


def spread_of(
    classifier: Classifier, names: Sequence[str], features: DeliveredFeatures, accuracy: float
) -> float | None:
    """The spread with which simulated images of these classes are named as often as real ones;
    None if no class has two images."""
    around = deviations(features.after, features.labels)
    means = classifier.model.class_means_of(names)
    if means is None or not len(around):
        return None
    seed = torch.Generator().manual_seed(torch_seed("spread of classes"))
    images = SimulatedImages.around(means, _numbers(classifier, names), around, seed)
    return images.spread_for(classifier.logits, accuracy)


def _numbers(classifier: Classifier, names: Sequence[str]) -> Int64[Tensor, " c"]:
    index = {name: i for i, name in enumerate(classifier.classes)}
    return torch.tensor([index[name] for name in names])


def deviations(features: Float[Tensor, "n d"], labels: Int64[Tensor, " n"]) -> Float[Tensor, "m d"]:
    """Differences of images from their class means, of classes with several images; scaled so that
    their variance is not too small."""
    means, counts = _class_means(features, labels)
    n = counts[labels]
    scale = (n / (n - 1).clamp_min(1)).sqrt()[:, None]
    return ((features - means[labels]) * scale)[n > 1]


def missed_drift(features: DeliveredFeatures) -> tuple[Float[Tensor, "k d"], float]:
    """By how much the map of drift compensation misses the mean of each delivered class if it is
    fitted to the images of the other classes; and the share that this is of how far these means
    have moved (squared, at most 1)."""
    stride = -(-len(features.labels) // MAX_IMAGES)
    before, after = features.before[::stride], features.after[::stride]
    labels = features.labels[::stride]
    missed, counts = _class_means(drift_residuals(before, after, labels), labels)
    drift = after - before
    moved, _ = _class_means(drift - drift.mean(0), labels)
    total = float(moved[counts > 0].square().sum())
    share = float(missed[counts > 0].square().sum()) / total if total else 0.0
    return missed[counts > 0], min(share, 1.0)


def _class_means(
    features: Float[Tensor, "n d"], labels: Int64[Tensor, " n"]
) -> tuple[Float[Tensor, "k d"], Int64[Tensor, " k"]]:
    """The mean of each class, and its number of images."""
    counts = labels.bincount()
    sums = features.new_zeros(len(counts), features.shape[1]).index_add_(0, labels, features)
    return sums / counts.clamp_min(1)[:, None], counts


def shrunk(accuracy: float, n: int) -> float:
    """An accuracy in % that is neither 0 nor 100: with one image more right, and one wrong."""
    return 100 * (accuracy / 100 * n + 1) / (n + 2)
