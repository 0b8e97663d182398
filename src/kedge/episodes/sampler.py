"""The plan of an epoch: which images form each episode, drawn all at once on the CPU.

A plan depends on its key (seed, round, epoch, …) alone, never on a device, on the number of
processes or on what was drawn before. So resuming needs no random state, and two methods under
one seed see the same episodes.

Shapes: e episodes, k ways, s shots, q queries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from kedge.config import EpisodeShape
from kedge.data.pools import Pool
from kedge.errors import KedgeError
from kedge.utils.text import counted


@dataclass(frozen=True, eq=False)
class EpisodeIndices:
    """Positions within a pool. Of each way, support stands before the queries.

    Where ways and shots are drawn for each episode, `positions` has room for the most of them: an
    episode has the first `n_way[i]` ways, and the last `n_shot[i]` of the places for support.
    """

    positions: Int64[Tensor, "e k s_plus_q"]
    classes: Int64[Tensor, "e k"]  # index into the pool's classes
    n_way: tuple[int, ...]  # of each episode
    n_shot: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.positions)

    @cached_property
    def room(self) -> int:
        """Places for support."""
        return max(self.n_shot)

    def to(self, device: torch.device) -> EpisodeIndices:
        return replace(self, positions=self.positions.to(device), classes=self.classes.to(device))

    def episode(self, i: int) -> tuple[Int64[Tensor, "k s_plus_q"], Int64[Tensor, " k"]]:
        """Positions and classes of one episode, without empty room."""
        k, unused = self.n_way[i], self.room - self.n_shot[i]
        return self.positions[i, :k, unused:], self.classes[i, :k]

    def alike(self) -> Iterator[tuple[Int64[Tensor, " m"], Int64[Tensor, "m k s_plus_q"], int]]:
        """Episodes of the same ways and shots together: which they are, positions, shots."""
        shapes = np.array([self.n_way, self.n_shot]).T
        for k, s in np.unique(shapes, axis=0).tolist():
            which = torch.from_numpy((shapes == (k, s)).all(1).nonzero()[0])
            yield which, self.positions[which, :k, self.room - s :], s


def check_pool(pool: Pool, shape: EpisodeShape) -> None:
    """Say which class or option is at fault, before any time is spent on training."""
    n_classes = len(pool.classes)
    most_ways, most_shots = shape.ways[1], shape.shots[1]
    if n_classes < most_ways:
        raise KedgeError(
            f"The {pool.name} pool has {n_classes} class{'es' if n_classes != 1 else ''}, but an "
            f"episode needs {most_ways} (n_way): add classes or lower --n-way."
        )
    need = most_shots + shape.n_query
    least = int(pool.counts.argmin())
    if pool.counts[least] < need:
        shots = counted(most_shots, "shot")
        queries = counted(shape.n_query, "query", "queries")
        raise KedgeError(
            f"Class '{pool.classes[least]}' has {counted(int(pool.counts[least]), 'image')} in the "
            f"{pool.name} pool, but an episode needs {need} of each class ({shots} + {queries}): "
            "add images, or lower --n-shot or --n-query."
        )


def sample_episodes(
    pool: Pool,
    shape: EpisodeShape,
    n_episodes: int,
    rng: np.random.Generator,
    nearest: Int64[Tensor, "classes others"] | None = None,
) -> EpisodeIndices:
    """Distinct classes, then distinct images of each, sizes as they come.

    Classes are drawn uniformly. Given for each class all others, the nearest first, every other
    episode is a hard one on average; see `kedge.training.task2vec`.
    """
    check_pool(pool, shape)
    most_ways, most_shots = shape.ways[1], shape.shots[1]
    if nearest is None:
        classes = _distinct(rng, n_episodes, len(pool.classes), most_ways)
    else:
        classes = _hard(rng, n_episodes, nearest, most_ways)
    counts = pool.counts.numpy()[classes]
    within = _distinct_below(rng, counts, most_shots + shape.n_query)
    positions = pool.starts.numpy()[classes][..., None] + within
    n_way, n_shot = (_drawn(rng, n_episodes, *r) for r in (shape.ways, shape.shots))
    # The plan's room is for the most shots that were drawn, which may be fewer than allowed.
    positions = positions[:, :, most_shots - max(n_shot) :]
    return EpisodeIndices(torch.from_numpy(positions), torch.from_numpy(classes), n_way, n_shot)


def sample_anchors(
    n_anchors: int, per_step: int, n_episodes: int, rng: np.random.Generator
) -> Int64[Tensor, "e anchors"]:
    """Which anchors each step is held against, without replacement; all when there are few."""
    chosen = _distinct(rng, n_episodes, n_anchors, min(per_step, n_anchors))
    return torch.from_numpy(chosen)


def _distinct(rng: np.random.Generator, rows: int, n: int, k: int) -> np.ndarray:
    """`rows` draws of k distinct numbers below n: the places of the k smallest of n keys."""
    return rng.random((rows, n), dtype=np.float32).argsort(axis=1, kind="stable")[:, :k]


def _hard(
    rng: np.random.Generator, rows: int, nearest: Int64[Tensor, "classes others"], k: int
) -> np.ndarray:
    """With probability ½ a class and k−1 of its 2(k−1) nearest, otherwise any classes."""
    uniform = _distinct(rng, rows, len(nearest), k)
    first = uniform[:, :1]
    n_near = min(2 * (k - 1), nearest.shape[1])
    near = nearest.numpy()[first[:, 0]]
    others = np.take_along_axis(near, _distinct(rng, rows, n_near, k - 1), axis=1)
    hard = rng.random((rows, 1)) < 0.5
    return np.where(hard, np.concatenate([first, others], axis=1), uniform)


def _drawn(rng: np.random.Generator, n: int, least: int, most: int) -> tuple[int, ...]:
    """Nothing is drawn where there is no choice, so that a range of one equals a number."""
    if least == most:
        return (least,) * n
    return tuple(rng.integers(least, most + 1, size=n).tolist())


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
