"""Accuracy over thousands of episodes, with its interval.

Each image is embedded once; the episodes are then batched operations on features. Episodes are
fixed by a key, so that every method is tested on the very same ones and differences between two
methods can be taken episode by episode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from kedge.config import EpisodeShape
from kedge.data.pools import Pool
from kedge.episodes.sampler import EpisodeIndices, sample_episodes
from kedge.models.heads import Head
from kedge.models.model import Model
from kedge.utils.progress import task
from kedge.utils.seeding import generator

CHUNK = 16_000_000  # features held at a time, in numbers


@torch.no_grad()
def episode_accuracies(
    head: Head, features: Float[Tensor, "positions d"], plan: EpisodeIndices
) -> Float64[Tensor, " e"]:
    """Per cent of the queries that are right, for each episode of the plan."""
    accuracies = torch.empty(len(plan), dtype=torch.float64)
    for which, positions, n_shot in plan.alike():
        _, k, n = positions.shape
        per_chunk = max(1, CHUNK // (k * n * features.shape[1]))
        targets = torch.arange(k, device=features.device).repeat_interleave(n - n_shot)
        parts = []
        for some in positions.split(per_chunk):
            z = features[some.to(features.device)]  # episodes, ways, images, d
            representatives = head.fit(z[:, :, :n_shot])
            logits = head.logits(z[:, :, n_shot:].flatten(1, 2), representatives)
            right = logits.argmax(-1) == targets
            parts.append(100 * right.double().mean(1))
        accuracies[which] = torch.cat(parts).cpu()
    return accuracies


@dataclass(frozen=True)
class EvalSpec:
    """A pool of classes and the episodes it is tested with."""

    name: str  # of the result
    pool: Pool
    shape: EpisodeShape


def evaluate(
    model: Model, trials: Sequence[EvalSpec], n_episodes: int, seed: int
) -> dict[str, Float64[Tensor, " e"]]:
    """Accuracy of each test episode, by trial; pools of one table may share images.

    The episodes of a trial depend on its name and the seed alone, never on the model.
    """
    table = trials[0].pool.table
    assert all(trial.pool.table is table for trial in trials), "pools of one table"
    rows = torch.cat([trial.pool.rows for trial in trials]).unique()
    place = torch.zeros(len(table), dtype=torch.int64)  # row → place among the features
    place[rows] = torch.arange(len(rows))
    with task("testing: images", len(rows)) as tick:
        features = model.embed_rows(table, rows, tick)
    accuracies = {}
    for trial in trials:
        rng = generator("test", trial.name, seed)
        plan = sample_episodes(trial.pool, trial.shape, n_episodes, rng)
        own = features[place[trial.pool.rows].to(features.device)]
        accuracies[trial.name] = episode_accuracies(model.head, own, plan)
    return accuracies
