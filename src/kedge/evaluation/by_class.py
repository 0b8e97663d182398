"""The accuracy of each class, and which classes are taken for which others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from kedge.config import EpisodeShape
from kedge.evaluation.accuracy import (
    EvalSpec,
    PoolFeatures,
    classify_queries,
    sample_test_episodes,
)
from kedge.evaluation.results import ClassAccuracy, Confusion, NamingResult, Score
from kedge.models.model import Model


@dataclass(frozen=True)
class Evaluation:
    """A test of a model: its accuracy, that of each class, and the classes that it confuses.

    Over episodes an image counts each time that it is a query.
    """

    score: Score
    classes: int  # that were tested
    per_class: tuple[ClassAccuracy, ...]  # name, accuracy, correct, of; the lowest first
    confusions: tuple[Confusion, ...]  # true, predicted, count, of; the most frequent first
    shape: EpisodeShape | None = None  # of episodes; None: named among all known classes
    naming: NamingResult | None = None  # by rounds and by anchors; None: over episodes


def evaluate_episodes(model: Model, spec: EvalSpec, n_episodes: int, seed: int) -> Evaluation:
    """The accuracy that `evaluate_pools` gives, over the same episodes, and more about it."""
    features = PoolFeatures(model, [spec.pool]).of(spec.pool)
    plan = sample_test_episodes(spec, n_episodes, seed)
    accuracies = torch.empty(len(plan), dtype=torch.float64)
    tally, n_query = Tally(spec.pool.classes), spec.shape.n_query
    for numbers, predicted, targets in classify_queries(model.head, features, plan):
        accuracies[numbers] = 100 * (predicted == targets).double().mean(1).cpu()
        ways = plan.classes[numbers, : predicted.shape[1] // n_query]
        tally.add(ways[:, targets.cpu()], ways.gather(1, predicted.cpu()))
        tally.add_chances(ways, n_query)
    return tally.evaluation(Score.of(accuracies), len(spec.pool.classes), shape=spec.shape)


class Tally:
    """Counts how often images of each class were given each name."""

    def __init__(self, classes: Sequence[str]) -> None:
        self.classes = classes
        self.counts = Counter[int]()  # of pairs: true · number of classes + predicted
        self.chances: Counter[int] | None = None  # of pairs; None: every class could be named

    def add(self, true: Int64[Tensor, "*n"], predicted: Int64[Tensor, "*n"]) -> None:
        self.counts.update(self._count_pairs(true, predicted))

    def add_chances(self, ways: Int64[Tensor, "e k"], n_query: int) -> None:
        """Count the queries of episodes with these classes for each pair of them."""
        pairs = self._count_pairs(*torch.broadcast_tensors(ways[:, :, None], ways[:, None]))
        self.chances = self.chances or Counter()
        self.chances.update({pair: n * n_query for pair, n in pairs.items()})

    def _count_pairs(
        self, true: Int64[Tensor, "*n"], predicted: Int64[Tensor, "*n"]
    ) -> dict[int, int]:
        pairs, counts = (true * len(self.classes) + predicted).unique(return_counts=True)
        return dict(zip(pairs.tolist(), counts.tolist(), strict=True))

    def evaluation(
        self,
        score: Score,
        n_classes: int,
        shape: EpisodeShape | None = None,
        naming: NamingResult | None = None,
    ) -> Evaluation:
        return Evaluation(score, n_classes, self._per_class(), self._confusions(), shape, naming)

    def _per_class(self) -> tuple[ClassAccuracy, ...]:
        results = [
            ClassAccuracy(self.classes[i], self.counts[i * len(self.classes) + i], n)
            for i, n in sorted(self._totals().items())
        ]
        return tuple(sorted(results, key=lambda result: result.accuracy))

    def _confusions(self) -> tuple[Confusion, ...]:
        totals, found = self._totals(), []
        for pair, n in sorted(self.counts.items()):
            true, predicted = divmod(pair, len(self.classes))
            if true != predicted:
                of = totals[true] if self.chances is None else self.chances[pair]
                found.append(Confusion(self.classes[true], self.classes[predicted], n, of))
        return tuple(sorted(found, key=lambda confusion: -confusion.count))

    def _totals(self) -> Counter[int]:
        """Images of each class."""
        totals = Counter[int]()
        for pair, n in self.counts.items():
            totals[pair // len(self.classes)] += n
        return totals
