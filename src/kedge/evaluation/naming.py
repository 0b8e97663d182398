"""Accuracy of naming images among all learned classes, without examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from kedge.data.pools import Pool
from kedge.data.table import ImageTable
from kedge.errors import require
from kedge.evaluation.accuracy import PoolFeatures
from kedge.evaluation.by_class import Evaluation, Tally
from kedge.evaluation.results import NamingResult, Score
from kedge.models.heads.base import require_finite
from kedge.models.model import Model
from kedge.models.model_file import ModelContents

LOGITS_BATCH = 1000  # images: with thousands of classes each has thousands of logits


def evaluate_naming(model: Model, table: ImageTable) -> Evaluation:
    """Accuracy of naming the images of known classes as `Model.classifier` does, overall, by class
    and by the round in which a class was first learned. Images of other classes are left out."""
    index = {name: i for i, name in enumerate(model.classes)}
    names = [name for name in table.classes if name in index]
    require(
        bool(names),
        f"{table.source}: the model knows none of these {len(table.classes)} classes, such as "
        f"'{table.classes[0]}'; 'kedge show' lists those that it knows.",
    )
    pool, origins = Pool.all("test", table, names), rounds_of_origin(model)
    targets = torch.tensor([index[name] for name in names]).repeat_interleave(pool.counts)
    rounds = torch.tensor([origins[name] for name in names]).repeat_interleave(pool.counts)
    features = torch.cat(model.class_features(pool))

    def result(predicted: Int64[Tensor, " n"]) -> NamingResult:
        correct = predicted == targets
        by_round = {t: Score.of_correct(correct[rounds == t]) for t in rounds.unique().tolist()}
        return NamingResult(Score.of_correct(correct), by_round)

    predicted = _predicted(model.classifier().logits, features)
    naming, tally = result(predicted), Tally(model.classes)
    if model.class_means is not None:
        by_anchors = result(_predicted(model.anchor_classifier().logits, features))
        naming = replace(naming, by_anchors=by_anchors)
    tally.add(targets, predicted)
    return tally.evaluation(naming.overall, len(names), naming=naming)


def rounds_of_origin(model: Model | ModelContents) -> dict[str, int]:
    """The round in which each class of a model was first learned, trained on or not."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for entry in model.lineage:
        for name in (*entry.classes, *entry.untrained):
            first.setdefault(name, entry.round)
            last[name] = entry.round
    # Files of early versions do not say which round delivered a class that was not trained on. It
    # stands beside the classes of that round: a model lists them by their latest round.
    origins, neighbour = {}, model.lineage[-1].round if model.lineage else 0
    for name in reversed(model.classes):
        neighbour = last.get(name, neighbour)
        origins[name] = first.get(name, neighbour)
    return origins


@torch.no_grad()
def naming_measures(
    model: Model,
    pools: Sequence[Pool],
    features: PoolFeatures,
    true_anchors: Sequence[Float[Tensor, "_ r"]],
) -> dict[str, float]:
    """Measures of naming among the classes of all rounds so far (see `records.MEASURES`).

    Classes that the model has not learned get the anchors that it would store without training.

    Args:
        pools: for each round, the held-out images of its classes.
        true_anchors: for each round, the anchors of its classes made anew under this model.
    """
    now = [anchors.to(model.device) for anchors in true_anchors]
    stored = [
        model.anchors_of(pool.classes) if set(pool.classes) <= set(model.classes) else anchors
        for pool, anchors in zip(pools, now, strict=True)
    ]
    z = torch.cat([features.of(pool) for pool in pools])
    counts = torch.cat([pool.counts for pool in pools])
    targets = torch.arange(len(counts)).repeat_interleave(counts)
    correct, by_true_means = (
        _correct(partial(model.head.logits, representatives=torch.cat(each)), z, targets).double()
        for each in (stored, now)
    )
    by_round = correct.split([len(pool) for pool in pools])
    return {
        "naming": 100 * float(correct.mean()),
        "naming_true_means": 100 * float(by_true_means.mean()),
        **{f"naming_round_{t}": 100 * float(part.mean()) for t, part in enumerate(by_round)},
    }


def _correct(
    logits: Callable[[Float[Tensor, "b d"]], Float[Tensor, "b k"]],
    features: Float[Tensor, "n d"],
    targets: Int64[Tensor, " n"],
) -> Bool[Tensor, " n"]:
    """Whether each image gets the right class."""
    return _predicted(logits, features) == targets


def _predicted(
    logits: Callable[[Float[Tensor, "b d"]], Float[Tensor, "b k"]], features: Float[Tensor, "n d"]
) -> Int64[Tensor, " n"]:
    """The number of the class that each image gets."""
    batches = features.split(LOGITS_BATCH)
    return torch.cat([require_finite(logits(batch)).argmax(1).cpu() for batch in batches])
