"""What a round did to a model, measured on images that it held back from training.

Images of the new classes that did not train are named. The images of old classes are gone: their
accuracy is an estimate (`kedge.evaluation.old_classes`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from kedge.config import DEFAULT_SHAPE, EpisodeOptions, EpisodeShape
from kedge.data.pools import Pool
from kedge.data.table import ImageTable
from kedge.episodes.shape_fit import fit_shape
from kedge.evaluation.accuracy import EvalSpec, episode_accuracies, sample_test_episodes
from kedge.evaluation.known_novelty import RoundSpread, known_novelty
from kedge.evaluation.naming import rounds_of_origin
from kedge.evaluation.old_classes import OldClasses
from kedge.evaluation.results import Score
from kedge.models.classifier import Classifier
from kedge.models.drift_compensation import DeliveredFeatures
from kedge.models.model import Model
from kedge.models.model_file import LineageEntry
from kedge.models.outcome import FewShotChange, NamingChange, RoundOutcome

FEW_SHOT_EPISODES = 500


@dataclass(frozen=True)
class HeldBackImages:
    """Images of new classes that did not train, with their features."""

    pool: Pool
    labels: Int64[Tensor, " n"]  # the class of each in the pool
    before: Float[Tensor, "n d"]
    after: Float[Tensor, "n d"]

    @classmethod
    def of(cls, start: Model, model: Model, pool: Pool, table: ImageTable) -> HeldBackImages:
        """Those of classes that are new, and that have another image in the delivered table."""
        counts = dict(zip(table.classes, table.counts.tolist(), strict=True))
        known = set(start.classes)
        chosen = [i for i, n in enumerate(pool.classes) if n not in known and counts.get(n, 0) > 1]
        pool = pool.select(pool.name, chosen)
        labels = torch.arange(len(pool.classes)).repeat_interleave(pool.counts)
        before, after = (m.embed_rows(pool.table, pool.rows) for m in (start, model))
        return cls(pool, labels.to(after.device), before, after)

    def counts_in_mean(
        self, n_images: Mapping[str, int], contained: Bool[Tensor, " n"]
    ) -> Float[Tensor, " n"]:
        """How many images the mean of each image's class comes from; infinite for an image that is
        not one of them."""
        counts = torch.tensor([float(n_images[name]) for name in self.pool.classes])
        counts = counts[self.labels.cpu()].masked_fill(~contained, math.inf)
        return counts.to(self.labels.device)

    def targets(self, classifier: Classifier) -> Int64[Tensor, " n"]:
        """The number of each image's class for a classifier."""
        index = {name: i for i, name in enumerate(classifier.classes)}
        numbers = torch.tensor([index[name] for name in self.pool.classes], dtype=torch.int64)
        return numbers.to(self.labels.device)[self.labels]


@torch.no_grad()
def measure_round(
    start: Model,
    model: Model,
    table: ImageTable,
    features: DeliveredFeatures,
    held_back: Pool,
    few_shot: Pool,
    in_anchors: Collection[str],
    spread: RoundSpread | None,
) -> tuple[RoundOutcome | None, list[float]]:
    """What the round did that made `model` from `start`, None if there is nothing to measure it on;
    and the novelty of images held back, for `Calibration.with_novelty`.

    Args:
        table: the delivered images, of which `features` are some.
        held_back: images of delivered classes that did not train.
        few_shot: classes of which no image trained; may be empty.
        in_anchors: classes whose anchors are of all their images, those held back too.
        spread: what the model's spread comes from; None if it has none.
    """
    known = set(start.classes)
    by_class = zip(table.classes, features.before_by_class(len(table.classes)), strict=True)
    examples = {name: of_class for name, of_class in by_class if name not in known}
    after = model.classifier()
    untrained = start.classifier_from_features(examples, start.classes) if examples else after
    naming = _old_classes(start, untrained, after, features)
    images, scores = HeldBackImages.of(start, model, held_back, table), list[float]()
    if len(images.pool):
        in_table = held_back.table is table
        among = torch.isin(images.pool.rows, features.rows) & in_table
        counts_before = images.counts_in_mean({n: len(z) for n, z in examples.items()}, among)
        contained = torch.tensor([name in in_anchors for name in images.pool.classes])
        contained = contained[images.labels.cpu()] & in_table
        n_images = dict(zip(table.classes, table.counts.tolist(), strict=True))
        counts_after = images.counts_in_mean(n_images, contained)
        naming.append(
            NamingChange(
                round=model.lineage[-1].round,
                classes=len(examples),
                images=len(images.pool),
                before=None,
                untrained=_accuracy(untrained, images, images.before, counts_before),
                after=_accuracy(after, images, images.after, counts_after),
            )
        )
        rows = images.pool.rows if in_table else None
        targets = images.targets(after)
        scores = known_novelty(after, images.after, targets, counts_after, spread, rows)
    shots = _few_shot_change(start, model, few_shot)
    outcome = RoundOutcome(tuple(naming), shots) if naming or shots is not None else None
    return outcome, scores


def _old_classes(
    start: Model, untrained: Classifier, after: Classifier, features: DeliveredFeatures
) -> list[NamingChange]:
    """An estimate for the classes of each earlier round in which something was measured."""
    outcomes = [entry.outcome for entry in start.lineage if entry.outcome]
    last = {change.round: change for outcome in outcomes for change in outcome.naming}
    if not last:
        return []
    old, origins = (
        OldClasses(start.classifier(), untrained, after, features),
        rounds_of_origin(start),
    )
    groups = {t: [name for name in start.classes if origins[name] == t] for t in sorted(last)}
    estimates = (old.change(names, last[t]) for t, names in groups.items() if names)
    return [estimate for estimate in estimates if estimate is not None]


def _accuracy(
    classifier: Classifier,
    images: HeldBackImages,
    features: Float[Tensor, "n d"],
    counts: Float[Tensor, " n"],
) -> float:
    """Accuracy of naming in %; `counts` are those of `HeldBackImages.counts_in_mean`."""
    head, targets = classifier.model.head, images.targets(classifier)
    logits = classifier.logits(features)
    if head.anchors_are_means:
        means = classifier.representatives[targets]
        others = means + (means - features) / (counts - 1).clamp_min(1)[:, None]
        own = head.logits(features[:, None], others[:, None])[:, 0, 0]
        if classifier.offsets is not None:
            own = own + classifier.offsets[targets]
        logits[torch.arange(len(targets), device=logits.device), targets] = own
    return 100 * float((logits.argmax(1) == targets).double().mean())


def _few_shot_change(start: Model, model: Model, pool: Pool) -> FewShotChange | None:
    """Accuracy over the same episodes before and after; None if the classes do not suffice."""
    shape = _few_shot_shape(pool, start.lineage)
    if shape is None:
        return None
    enough = [i for i, n in enumerate(pool.counts.tolist()) if n >= shape.min_images]
    spec = EvalSpec("classes held back", pool.select("held back", enough), shape)
    plan = sample_test_episodes(spec, FEW_SHOT_EPISODES, model.lineage[-1].round)
    before, after = (
        episode_accuracies(m.head, m.embed_rows(pool.table, spec.pool.rows), plan)
        for m in (start, model)
    )
    interval = min(100.0, Score.of(after - before).ci)
    means = float(before.mean()), float(after.mean())
    return FewShotChange(shape, len(enough), len(plan), *means, interval)


def _few_shot_shape(pool: Pool, lineage: Sequence[LineageEntry]) -> EpisodeShape | None:
    """The shape of earlier rounds if the classes suffice for it, so that accuracies are a series;
    otherwise at most the default."""
    earlier = [e.outcome.few_shot.shape for e in lineage if e.outcome and e.outcome.few_shot]
    for shape in reversed(earlier):
        if int((pool.counts >= shape.min_images).sum()) >= shape.ways[1]:
            return shape
    fit = fit_shape([pool.counts.numpy()], EpisodeOptions(), 2) if len(pool.classes) > 1 else None
    if fit is None:
        return None
    ways = min(DEFAULT_SHAPE.ways[1], len(fit.usable[0]))
    return EpisodeShape(ways, fit.n_shot, fit.n_query)
