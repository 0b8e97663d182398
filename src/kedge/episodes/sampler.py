"""Which images form each episode, drawn on the CPU for a whole epoch at once.

Draws depend on a key (seed, round, epoch, …) alone, not on the device or on earlier draws. So
resuming needs no random state, and all methods with one seed see the same episodes.

Shapes: e episodes, k ways, s shots, q queries, b images in a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from kedge.config import EpisodeShape
from kedge.data.augment import Augmentation, ImagesOrMaps, draw_augmentation
from kedge.data.pools import Pool
from kedge.episodes.loader import ImageLoader
from kedge.errors import KedgeError
from kedge.utils.seeding import generator
from kedge.utils.text import pluralize

MAX_BYTES = 1 << 32  # of the episodes that are drawn at once
BYTES_PER_IMAGE, BYTES_PER_CLASS = 80, 16  # about, while one episode is drawn


@dataclass(frozen=True, eq=False)
class EpisodeIndices:
    """The images of many episodes, as positions in a pool; support precedes queries in each way.

    If ways or shots vary, `positions` is padded to the largest episode: episode i has the first
    `n_way[i]` ways, and its `n_shot[i]` support images are the last ones before the queries.
    """

    positions: Int64[Tensor, "e k s_plus_q"]
    classes: Int64[Tensor, "e k"]  # index into the pool's classes
    n_way: tuple[int, ...]  # of each episode
    n_shot: tuple[int, ...]
    augmentation: Augmentation | None = None  # of each image; None in evaluation

    def __len__(self) -> int:
        return len(self.positions)

    @cached_property
    def max_shots(self) -> int:
        return max(self.n_shot)

    def episode(self, i: int) -> tuple[Int64[Tensor, "k s_plus_q"], Int64[Tensor, " k"]]:
        """Positions and classes of episode i, without padding."""
        n_way, padding = self.n_way[i], self.max_shots - self.n_shot[i]
        return self.positions[i, :n_way, padding:], self.classes[i, :n_way]

    def by_shape(self) -> Iterator[tuple[Int64[Tensor, " m"], Int64[Tensor, "m k s_plus_q"], int]]:
        """Episodes grouped by ways and shots: their numbers, their positions, and n_shot."""
        shapes = np.array([self.n_way, self.n_shot]).T
        for n_way, n_shot in np.unique(shapes, axis=0).tolist():
            numbers = torch.from_numpy((shapes == (n_way, n_shot)).all(1).nonzero()[0])
            yield numbers, self.positions[numbers, :n_way, self.max_shots - n_shot :], n_shot


@dataclass(frozen=True, eq=False)
class EpisodeBatch:
    """One episode on the device: its images class by class, support before queries."""

    images: ImagesOrMaps
    augmentation: Augmentation
    classes: Int64[Tensor, " k"]  # index into the pool's classes
    n_shot: int


class EpisodeSampler:
    """Draws the training episodes of each epoch from a pool, and loads their images.

    `name` is part of the random keys, so that two samplers of one round draw independently.
    """

    def __init__(
        self, name: str, pool: Pool, shape: EpisodeShape, n_episodes: int, device: torch.device
    ) -> None:
        self.name, self.pool, self.shape, self.n_episodes = name, pool, shape, n_episodes
        self.loader, self.device = ImageLoader(pool, device), device

    @property
    def has_fixed_shape(self) -> bool:
        """Whether all episodes of all epochs have the same ways and shots."""
        return len(set(self.shape.ways)) == len(set(self.shape.shots)) == 1

    def sample(
        self, key: tuple[int, int, int], nearest: Int64[Tensor, "classes others"] | None = None
    ) -> EpisodeIndices:
        """The episodes of one epoch with their augmentation; `key` is (seed, round, epoch)."""
        rng = generator(f"{self.name}train", *key)
        indices = sample_episodes(self.pool, self.shape, self.n_episodes, rng, nearest)
        rng = generator(f"{self.name}augment", *key)
        max_images = self.shape.ways[1] * (self.shape.shots[1] + self.shape.n_query)
        size, n_views = self.pool.table.image_size, self.pool.table.n_views
        augmentation = draw_augmentation(rng, self.n_episodes, max_images, size, n_views)
        return replace(
            indices,
            positions=indices.positions.to(self.loader.index_device),
            classes=indices.classes.to(self.device),
            augmentation=augmentation.to(self.device),
        )

    def batches(self, indices: EpisodeIndices, order: Sequence[int]) -> Iterator[EpisodeBatch]:
        """The episodes with these numbers, one after the other."""
        assert indices.augmentation is not None
        episodes = [indices.episode(i) for i in order]
        loaded = self.loader.stream(positions.flatten() for positions, _ in episodes)
        for i, images, (_, classes) in zip(order, loaded, episodes, strict=True):
            augmentation = indices.augmentation.of(i, len(images))
            yield EpisodeBatch(images, augmentation, classes, indices.n_shot[i])


def check_pool(pool: Pool, shape: EpisodeShape) -> None:
    """Raise KedgeError if the pool has too few classes or images for episodes of this shape."""
    n_classes = len(pool.classes)
    max_ways, max_shots = shape.ways[1], shape.shots[1]
    if n_classes < max_ways:
        raise KedgeError(
            f"The {pool.name} pool has {pluralize(n_classes, 'class', 'classes')}, but an episode "
            f"needs {max_ways} (n_way): add classes or lower --n-way."
        )
    need = max_shots + shape.n_query
    smallest = int(pool.counts.argmin())
    if pool.counts[smallest] < need:
        images = pluralize(int(pool.counts[smallest]), "image")
        shots = pluralize(max_shots, "shot")
        queries = pluralize(shape.n_query, "query", "queries")
        raise KedgeError(
            f"Class '{pool.classes[smallest]}' has {images} in the {pool.name} pool, but an "
            f"episode needs {need} of each class ({shots} + {queries}): add images, or lower "
            "--n-shot or --n-query."
        )


def check_n_episodes(option: str, n_episodes: int, pool: Pool, shape: EpisodeShape) -> None:
    """Raise KedgeError if so many episodes, which are drawn at once, need too much memory."""
    n_images = shape.ways[1] * (shape.shots[1] + shape.n_query)
    most = MAX_BYTES // (BYTES_PER_IMAGE * n_images + BYTES_PER_CLASS * len(pool.classes))
    if n_episodes > most:
        raise KedgeError(
            f"{option} is {n_episodes}: at most {most:,} episodes of the {pool.name} pool fit into "
            f"memory at a time (of {n_images} images each, from "
            f"{pluralize(len(pool.classes), 'class', 'classes')})."
        )


def sample_episodes(
    pool: Pool,
    shape: EpisodeShape,
    n_episodes: int,
    rng: np.random.Generator,
    nearest: Int64[Tensor, "classes others"] | None = None,
) -> EpisodeIndices:
    """Draw distinct classes for each episode, then distinct images of each class.

    Classes are drawn uniformly. If `nearest` lists for each class all others, nearest first, then
    half of the episodes on average are hard ones; see `kedge.training.task2vec`.
    """
    check_pool(pool, shape)
    check_n_episodes("n_episodes", n_episodes, pool, shape)
    max_ways, max_shots = shape.ways[1], shape.shots[1]
    if nearest is None:
        classes = _sample_distinct(rng, n_episodes, len(pool.classes), max_ways)
    else:
        classes = _sample_hard(rng, n_episodes, nearest, max_ways)
    counts = pool.counts.numpy()[classes]
    within_class = _sample_distinct_below(rng, counts, max_shots + shape.n_query)
    positions = pool.starts.numpy()[classes][..., None] + within_class
    n_way, n_shot = (_sample_counts(rng, n_episodes, *r) for r in (shape.ways, shape.shots))
    # Padding is for the most shots that were drawn, which may be fewer than the range allows.
    positions = positions[:, :, max_shots - max(n_shot) :]
    return EpisodeIndices(torch.from_numpy(positions), torch.from_numpy(classes), n_way, n_shot)


def sample_anchors(
    n_anchors: int, per_step: int, n_episodes: int, rng: np.random.Generator
) -> Int64[Tensor, "e anchors"]:
    """The anchors of each episode, drawn without replacement; all if there are at most per_step."""
    return torch.from_numpy(_sample_distinct(rng, n_episodes, n_anchors, min(per_step, n_anchors)))


def _sample_distinct(rng: np.random.Generator, n_draws: int, n: int, k: int) -> np.ndarray:
    """k distinct numbers below n for each draw: the indices of the k smallest of n random keys."""
    return rng.random((n_draws, n), dtype=np.float32).argsort(axis=1, kind="stable")[:, :k]


def _sample_hard(
    rng: np.random.Generator, n_draws: int, nearest: Int64[Tensor, "classes others"], k: int
) -> np.ndarray:
    """With probability ½ a class and k−1 of its 2(k−1) nearest, otherwise any k classes."""
    uniform = _sample_distinct(rng, n_draws, len(nearest), k)
    first = uniform[:, :1]
    n_near = min(2 * (k - 1), nearest.shape[1])
    neighbours = nearest.numpy()[first[:, 0]]
    others = np.take_along_axis(neighbours, _sample_distinct(rng, n_draws, n_near, k - 1), axis=1)
    is_hard = rng.random((n_draws, 1)) < 0.5
    return np.where(is_hard, np.concatenate([first, others], axis=1), uniform)


def _sample_counts(rng: np.random.Generator, n: int, least: int, most: int) -> tuple[int, ...]:
    """n numbers of a range. A range of one number draws nothing, so that it equals that number."""
    if least == most:
        return (least,) * n
    return tuple(rng.integers(least, most + 1, size=n).tolist())


def _sample_distinct_below(rng: np.random.Generator, counts: np.ndarray, k: int) -> np.ndarray:
    """For each entry of `counts`, k distinct numbers below it. Shape: counts.shape + (k,).

    Floyd's sampling for all entries at once: its cost grows with k, not with the class size.
    """
    chosen = np.empty((*counts.shape, k), dtype=np.int64)
    for i in range(k):
        last = counts - k + i
        draw = rng.integers(0, last + 1)
        taken = (chosen[..., :i] == draw[..., None]).any(axis=-1)
        chosen[..., i] = np.where(taken, last, draw)
    return rng.permuted(chosen, axis=-1)  # Floyd's order is not uniform, but support must be
