"""Accuracy over many episodes.

Each image is embedded once; episodes are then batched operations on features. Episodes depend on a
key only, so that all methods are tested on the same ones and can be compared episode by episode.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from kedge.config import EpisodeShape
from kedge.data.pools import Pool
from kedge.episodes.sampler import EpisodeIndices, sample_episodes
from kedge.models.heads import Head
from kedge.models.heads.base import require_finite
from kedge.models.model import Model
from kedge.utils.progress import task
from kedge.utils.seeding import generator

CHUNK_NUMEL = 16_000_000  # numbers in the features of one batch of episodes


@torch.no_grad()
def classify_queries(
    head: Head, features: Float[Tensor, "positions d"], plan: EpisodeIndices
) -> Iterator[tuple[Int64[Tensor, " m"], Int64[Tensor, "m queries"], Int64[Tensor, " queries"]]]:
    """Some episodes of one shape at a time: their numbers, the way that each of their queries is
    assigned to, and the way that it belongs to."""
    for episodes, positions, n_shot in plan.by_shape():
        _, k, n = positions.shape
        chunk = max(1, CHUNK_NUMEL // (k * n * features.shape[1]))
        targets = torch.arange(k, device=features.device).repeat_interleave(n - n_shot)
        for numbers, part in zip(episodes.split(chunk), positions.split(chunk), strict=True):
            z = features[part.to(features.device)]  # episodes, ways, images, d
            representatives = head.fit(z[:, :, :n_shot])
            logits = head.logits(z[:, :, n_shot:].flatten(1, 2), representatives)
            yield numbers, require_finite(logits).argmax(-1), targets


def episode_accuracies(
    head: Head, features: Float[Tensor, "positions d"], plan: EpisodeIndices
) -> Float64[Tensor, " e"]:
    """Accuracy on the queries of each episode, in %."""
    accuracies = torch.empty(len(plan), dtype=torch.float64)
    for numbers, predicted, targets in classify_queries(head, features, plan):
        accuracies[numbers] = 100 * (predicted == targets).double().mean(1).cpu()
    return accuracies


@dataclass(frozen=True)
class EvalSpec:
    """A pool of classes and the shape of its test episodes."""

    name: str  # of the result
    pool: Pool
    shape: EpisodeShape


class PoolFeatures:
    """Features of all images of some pools of one table. The pools may share images, each of which
    is embedded once."""

    def __init__(self, model: Model, pools: Sequence[Pool]) -> None:
        self._table = pools[0].table
        assert all(pool.table is self._table for pool in pools), "pools of one table"
        rows = torch.cat([pool.rows for pool in pools]).unique()
        self._index = torch.full((len(self._table),), -1)  # row of the table → row of the features
        self._index[rows] = torch.arange(len(rows))
        with task("testing: images", len(rows)) as tick:
            self._features = model.embed_rows(self._table, rows, tick)

    def of(self, pool: Pool) -> Float[Tensor, "positions d"]:
        """The features of one of the pools, or of a part of it."""
        index = self._index[pool.rows]
        assert bool((index >= 0).all()), "images of these pools"
        return self._features[index.to(self._features.device)]


def sample_test_episodes(spec: EvalSpec, n_episodes: int, seed: int) -> EpisodeIndices:
    """Episodes that depend on the name of the spec and the seed only, never on a model."""
    rng = generator("test", spec.name, seed)
    return sample_episodes(spec.pool, spec.shape, n_episodes, rng)


def evaluate_pools(
    model: Model,
    specs: Sequence[EvalSpec],
    n_episodes: int,
    seed: int,
    features: PoolFeatures | None = None,
) -> dict[str, Float64[Tensor, " e"]]:
    """Accuracy of each test episode in %, by the name of the spec. The pools must be of one table
    and may share images. The episodes depend on name and seed only, never on the model."""
    features = features or PoolFeatures(model, [spec.pool for spec in specs])
    accuracies = {}
    for spec in specs:
        plan = sample_test_episodes(spec, n_episodes, seed)
        accuracies[spec.name] = episode_accuracies(model.head, features.of(spec.pool), plan)
    return accuracies
