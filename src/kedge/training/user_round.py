"""One round on own images, after which every class that was delivered is known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from kedge.config import TrainConfig
from kedge.data.pools import (
    RoundData,
    union,
    whole,
)
from kedge.data.table import ImageTable
from kedge.episodes.defaults import AnyEpisode
from kedge.episodes.train_val_split import TrainValSplit
from kedge.errors import KedgeError
from kedge.methods.base import Memory
from kedge.methods.registry import Method
from kedge.models.drift_compensation import compensated_means
from kedge.models.model import Model
from kedge.training.round import train_round
from kedge.training.step import default_device
from kedge.utils import distributed, progress

CONTRAST = 500  # images of other classes, beside those of which anchors are made


def rehearsable(
    shared: TrainValSplit, method: Method, memory: Memory, wish: AnyEpisode
) -> TrainValSplit:
    """Old tasks have the shots of new ones: fewer, where fewer images were kept of a class.

    Raises where the method lacks what it needs, before any time is spent.
    """
    alignment, shape = method.alignment, shared.shape
    while alignment is not None and method.weight:
        try:
            alignment.check(shape)
            alignment.rehearse(memory, shape)
            break
        except KedgeError:
            if wish.n_shot is not None or shape.n_shot == 1:
                raise
            shape = replace(shape, n_shot=shape.shots[1] - 1)
    if shape == shared.shape:
        return shared
    reasons = [reason for reason in shared.reasons if not reason.startswith("--n-shot")]
    fewer = f"--n-shot {shape.n_shot}: labelled examples of each, as many as the kept images allow"
    return replace(shared, shape=shape, reasons=[fewer, *reasons])


def one_round(
    start: Model,
    shared: TrainValSplit,
    method: Method,
    config: TrainConfig,
    checkpoint: str | Path | None,
    table: ImageTable,
    memory: Memory | None = None,
) -> Model:
    """The next round of a model. Its classes: those of earlier rounds, then those of this one."""
    path = None if checkpoint is None else Path(checkpoint)
    total = config.schedule.epochs * config.schedule.episodes
    number = start.lineage[-1].round + 1 if start.lineage else 0
    delivery = RoundData(number, shared.train, shared.val)
    start = start.to(default_device())
    with progress.task(f"round {number}: training episodes", total) as tick:
        model = train_round(start, delivery, method, config, path, tick, memory).model
    model = _knowing_all(model, shared, table)
    delivered = set(table.classes)
    order = (*(name for name in model.classes if name not in delivered), *table.classes)
    model = replace(model, classes=order, anchors=model.anchors_of(order))
    model = replace(model, places=compensated_means(start, model, table)).to("cpu")
    agreed = None if model.places is None else distributed.broadcast(model.places)
    return replace(model, anchors=distributed.broadcast(model.anchors), places=agreed)


def _knowing_all(model: Model, shared: TrainValSplit, table: ImageTable) -> Model:
    """Classes that only validated, or were too small, were delivered too: they get anchors.

    A class that is known and now came with too few images to practise on keeps its anchor. Those
    of the classes that were trained on are left as they are. But some heads learn a class by what
    tells it from others, so a few of their images stand beside.
    """
    trained, apart = shared.train, shared.val.table is table  # others' images are no delivery
    done, enough = set(trained.classes), set(shared.val.classes) if apart else set()
    rest = [n for n in table.classes if n not in done and (n in enough or n not in model.classes)]
    if not rest:
        return model
    step, classes = -(-len(trained) // CONTRAST), -(-len(done) // CONTRAST)
    beside = replace(
        trained,
        classes=trained.classes[::classes],
        class_rows=tuple(rows[::step] for rows in trained.class_rows[::classes]),
    )
    features = model.class_features(union("delivered", [whole("rest", table, rest), beside]))
    with torch.no_grad():
        fresh = model.head.anchors(features)[: len(rest)]
    anew = set(rest)
    others = [name for name in model.classes if name not in anew]
    anchors = torch.cat([model.anchors_of(others), fresh])
    return replace(model, classes=(*others, *rest), anchors=anchors)
