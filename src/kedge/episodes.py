"""The plan of an epoch: which images form each episode, drawn all at once on the CPU.

A plan depends on its key (seed, round, epoch, …) alone, never on a device, on the number of
processes or on what was drawn before. So resuming needs no random state, and two methods under
one seed see the same episodes.

Shapes: e episodes, k ways, s shots, q queries.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from kedge.config import EpisodeShape
from kedge.errors import KedgeError
from kedge.protocol import Pool


@dataclass(frozen=True, eq=False)
class Plan:
    """Positions within a pool; the first `n_shot` of each way are support, the rest queries."""

    positions: Int64[Tensor, "e k s_plus_q"]
    classes: Int64[Tensor, "e k"]  # index into the pool's classes
    n_shot: int

    def __len__(self) -> int:
        return len(self.positions)


def check_pool(pool: Pool, shape: EpisodeShape) -> None:
    """Say which class or option is at fault, before any time is spent on training."""
    n_classes = len(pool.classes)
    if n_classes < shape.n_way:
        raise KedgeError(
            f"The {pool.name} pool has {n_classes} class{'es' if n_classes != 1 else ''}, but an "
            f"episode needs {shape.n_way} (n_way): add classes or lower --n-way."
        )
    need = shape.n_shot + shape.n_query
    least = int(pool.counts.argmin())
    if pool.counts[least] < need:
        raise KedgeError(
            f"Class '{pool.classes[least]}' has {int(pool.counts[least])} images in the "
            f"{pool.name} pool, but an episode needs {need} of each class ({shape.n_shot} shots "
            f"+ {shape.n_query} queries): add images, or lower --n-shot or --n-query."
        )


def plan_episodes(
    pool: Pool, shape: EpisodeShape, n_episodes: int, rng: np.random.Generator
) -> Plan:
    """Uniform episodes: distinct classes, then distinct images of each, sizes as they come."""
    check_pool(pool, shape)
    classes = _distinct(rng, n_episodes, len(pool.classes), shape.n_way)
    counts = pool.counts.numpy()[classes]
    within = _distinct_below(rng, counts, shape.n_shot + shape.n_query)
    positions = pool.starts.numpy()[classes][..., None] + within
    return Plan(torch.from_numpy(positions), torch.from_numpy(classes), shape.n_shot)


def plan_anchors(
    n_anchors: int, per_step: int, n_episodes: int, rng: np.random.Generator
) -> Int64[Tensor, "e anchors"]:
    """Which anchors each step is held against, without replacement; all when there are few."""
    chosen = _distinct(rng, n_episodes, n_anchors, min(per_step, n_anchors))
    return torch.from_numpy(chosen)


def _distinct(rng: np.random.Generator, rows: int, n: int, k: int) -> np.ndarray:
    """`rows` draws of k distinct numbers below n: the places of the k smallest of n keys."""
    return rng.random((rows, n), dtype=np.float32).argsort(axis=1, kind="stable")[:, :k]


def _distinct_below(rng: np.random.Generator, counts: np.ndarray, k: int) -> np.ndarray:
    """For each entry of `counts`, k distinct numbers below it. Shape: counts.shape + (k,).

    Floyd's sampling, all rows at once: its cost grows with k, not with the size of a class.
    """
    chosen = np.empty((*counts.shape, k), dtype=np.int64)
    for i in range(k):
        last = counts - k + i
        draw = rng.integers(0, last + 1)
        taken = (chosen[..., :i] == draw[..., None]).any(axis=-1)
        chosen[..., i] = np.where(taken, last, draw)
    return rng.permuted(chosen, axis=-1)  # Floyd's order is not uniform; support must be
