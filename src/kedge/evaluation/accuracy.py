"""Accuracy over many episodes, and of naming images among all learned classes.

Each image is embedded once; episodes are then batched operations on features. Episodes depend on a
key only, so that all methods are tested on the same ones and can be compared episode by episode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from kedge.config import EpisodeShape
from kedge.data.pools import Pool
from kedge.data.table import ImageTable
from kedge.episodes.sampler import EpisodeIndices, sample_episodes
from kedge.errors import require
from kedge.evaluation.results import Score
from kedge.models.heads import Head
from kedge.models.model import Model
from kedge.utils.progress import task
from kedge.utils.seeding import generator

CHUNK_NUMEL = 16_000_000  # numbers in the features of one batch of episodes
LOGITS_BATCH = 1000  # images: with thousands of classes each has thousands of logits


@torch.no_grad()
def episode_accuracies(
    head: Head, features: Float[Tensor, "positions d"], plan: EpisodeIndices
) -> Float64[Tensor, " e"]:
    """Accuracy on the queries of each episode, in %."""
    accuracies = torch.empty(len(plan), dtype=torch.float64)
    for episodes, positions, n_shot in plan.by_shape():
        _, k, n = positions.shape
        chunk = max(1, CHUNK_NUMEL // (k * n * features.shape[1]))
        targets = torch.arange(k, device=features.device).repeat_interleave(n - n_shot)
        parts = []
        for part in positions.split(chunk):
            z = features[part.to(features.device)]  # episodes, ways, images, d
            representatives = head.fit(z[:, :, :n_shot])
            logits = head.logits(z[:, :, n_shot:].flatten(1, 2), representatives)
            correct = logits.argmax(-1) == targets
            parts.append(100 * correct.double().mean(1))
        accuracies[episodes] = torch.cat(parts).cpu()
    return accuracies


@dataclass(frozen=True)
class EvalSpec:
    """A pool of classes and the shape of its test episodes."""

    name: str  # of the result
    pool: Pool
    shape: EpisodeShape


def evaluate_pools(
    model: Model, specs: Sequence[EvalSpec], n_episodes: int, seed: int
) -> dict[str, Float64[Tensor, " e"]]:
    """Accuracy of each test episode in %, by the name of the spec. The pools must be of one table
    and may share images. The episodes depend on name and seed only, never on the model."""
    table = specs[0].pool.table
    assert all(spec.pool.table is table for spec in specs), "pools of one table"
    rows = torch.cat([spec.pool.rows for spec in specs]).unique()
    index = torch.zeros(len(table), dtype=torch.int64)  # row of the table → row of the features
    index[rows] = torch.arange(len(rows))
    with task("testing: images", len(rows)) as tick:
        features = model.embed_rows(table, rows, tick)
    accuracies = {}
    for spec in specs:
        rng = generator("test", spec.name, seed)
        plan = sample_episodes(spec.pool, spec.shape, n_episodes, rng)
        own = features[index[spec.pool.rows].to(features.device)]
        accuracies[spec.name] = episode_accuracies(model.head, own, plan)
    return accuracies


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
