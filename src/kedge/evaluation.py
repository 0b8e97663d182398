"""Accuracy over thousands of episodes, with its interval.

Each image is embedded once; the episodes are then batched operations on features. Episodes are
fixed by a key, so that every method is tested on the very same ones and differences between two
methods can be taken episode by episode.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from kedge.config import EpisodeShape
from kedge.episodes import Plan, plan_episodes
from kedge.heads import Head
from kedge.model import Model
from kedge.pools import Pool
from kedge.progress import task
from kedge.seeding import generator

CHUNK = 16_000_000  # features held at a time, in numbers


@dataclass(frozen=True)
class Score:
    """A mean over episodes and the half-width of its 95% interval, 1.96·std/√n."""

    mean: float
    ci: float
    n: int

    @classmethod
    def of(cls, values: Float64[Tensor, " n"]) -> Score:
        n = len(values)
        spread = float(values.std()) if n > 1 else math.inf
        return cls(float(values.mean()), 1.96 * spread / math.sqrt(n), n)

    @classmethod
    def of_right(cls, right: Bool[Tensor, " n"]) -> Score:
        """Per cent that are right; how far Wilson's interval goes, which none of nine has, too."""
        n, share = len(right), float(right.double().mean())
        square = 1.96**2 / n
        middle = (share + square / 2) / (1 + square)
        half = 1.96 * math.sqrt(share * (1 - share) / n + square / (4 * n)) / (1 + square)
        return cls(100 * share, 100 * (abs(middle - share) + half), n)

    def __str__(self) -> str:
        return f"{self.mean:.2f} ± {self.ci:.2f}"


def paired(a: Float64[Tensor, " n"], b: Float64[Tensor, " n"]) -> Score:
    """a − b, episode by episode: what both find hard cancels, so the interval is narrower."""
    return Score.of(a - b)


@torch.no_grad()
def episode_accuracies(
    head: Head, features: Float[Tensor, "positions d"], plan: Plan
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
class Trial:
    """A pool of classes and the episodes it is tested with."""

    name: str  # of the result
    pool: Pool
    shape: EpisodeShape


def evaluate(
    model: Model, trials: Sequence[Trial], n_episodes: int, seed: int
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
        plan = plan_episodes(trial.pool, trial.shape, n_episodes, rng)
        own = features[place[trial.pool.rows].to(features.device)]
        accuracies[trial.name] = episode_accuracies(model.head, own, plan)
    return accuracies
