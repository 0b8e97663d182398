"""Naming images among all classes that a model has learned, without examples."""

from __future__ import annotations

import torch

from kedge.data.pools import Pool
from kedge.data.table import ImageTable
from kedge.errors import require
from kedge.evaluation.results import Score
from kedge.models.model import Model

LOGITS_BATCH = 1000  # images: with thousands of classes each has thousands of logits


def naming_accuracy(model: Model, table: ImageTable) -> Score:
    """Share of the images in % that get the right name; classes that are not known are left out."""
    index = {name: i for i, name in enumerate(model.classes)}
    names = [name for name in table.classes if name in index]
    require(
        bool(names),
        f"{table.source}: the model knows none of these {len(table.classes)} classes, such as "
        f"'{table.classes[0]}'; 'kedge show' lists those that it knows.",
    )
    pool = Pool.all("test", table, names)
    targets = torch.tensor([index[name] for name in names]).repeat_interleave(pool.counts)
    representatives = model.classifier().representatives
    features = torch.cat(model.class_features(pool)).split(LOGITS_BATCH)
    predicted = [model.head.logits(z, representatives).argmax(1).cpu() for z in features]
    return Score.of_correct(torch.cat(predicted) == targets)
