"""Episode shapes inferred from the numbers of images per class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from kedge.config import DEFAULT_SHAPE, Count, EpisodeOptions, EpisodeShape, as_range
from kedge.defaults import MAX_WAYS


@dataclass(frozen=True)
class ShapeFit:
    """Shots and queries of an episode, and the classes that have enough images for them."""

    n_shot: Count
    n_query: int
    usable: tuple[Int64[np.ndarray, " _"], ...]  # for each pool, indices of its classes

    @property
    def images_per_class(self) -> int:
        return as_range(self.n_shot)[1] + self.n_query


def fit_shape(
    counts: Sequence[Int64[np.ndarray, " _"]],
    options: EpisodeOptions,
    n_way: int = 1,
    usual: EpisodeShape = DEFAULT_SHAPE,
) -> ShapeFit | None:
    """Shots and queries, at most the usual ones, that suit pools with so many images per class.

    Of all numbers k of images per class, the one with the largest (share of classes that have k
    images) · log k: a small class among large ones is left out of the episodes instead of making
    all of them small. At least `n_way` classes must remain in each pool; None if no k allows that.
    """
    shots, queries = options.n_shot, options.n_query
    most_shots, most_queries = usual.shots[1], usual.n_query
    at_least = [as_range(shots)[1] if shots else 1, queries or 1]
    at_most = [as_range(shots)[1] if shots else most_shots, queries or most_queries]
    candidates = range(sum(at_least), sum(at_most) + 1)

    def value(k: int) -> float:
        enough = all(np.sum(pool >= k) >= n_way for pool in counts)
        return enough * float(min(np.mean(pool >= k) for pool in counts) * np.log(k))

    best = max(reversed(candidates), key=value)
    if value(best) == 0:
        return None
    if shots is None:
        shots = min(usual.shots[1], best // 2) if queries is None else best - queries
    usable = tuple(np.flatnonzero(pool >= best) for pool in counts)
    return ShapeFit(shots, best - as_range(shots)[1], usable)


def lower_queries(
    fit: ShapeFit, counts: Int64[np.ndarray, " _"], options: EpisodeOptions
) -> ShapeFit:
    """A fit in which every class of one pool takes part that has an image more than the shots,
    with as many queries as the smallest of them has, unless their number is given."""
    if options.n_query is not None:
        return fit
    shots = as_range(fit.n_shot)[1]
    usable = np.flatnonzero(counts > shots)
    return ShapeFit(fit.n_shot, min(fit.n_query, int(counts[usable].min()) - shots), (usable,))


def fit_ways(
    options: EpisodeOptions,
    images_per_class: int,
    n_classes: int,
    most: int = MAX_WAYS,
    usual: EpisodeShape = DEFAULT_SHAPE,
) -> Count:
    """Ways of an episode: more than usual where each class has few images, so that an episode has
    about as many images as usual, but at most half of the classes, so that episodes differ."""
    if options.n_way is not None:
        return options.n_way
    usual_images = usual.ways[1] * (usual.shots[1] + usual.n_query)
    usual_ways = min(usual.ways[1], n_classes)
    return max(usual_ways, min(usual_images // images_per_class, most, n_classes // 2))


def explain_shape(
    options: EpisodeOptions,
    shape: EpisodeShape,
    why_shots: str,
    usual: EpisodeShape = DEFAULT_SHAPE,
) -> list[str]:
    """A line for each inferred number, which also says what it means."""
    reasons = []
    if options.n_way is None:
        more = shape.ways[1] - usual.ways[1]
        why = "more than the default, since each class has few images"
        why = why if more > 0 else "as many as there are" if more < 0 else "default"
        reasons.append(f"--n-way {shape.n_way}: classes in each episode, {why}")
    if options.n_shot is None:
        reasons.append(f"--n-shot {shape.n_shot}: support images per class, {why_shots}")
    if options.n_query is None:
        same = shape.n_query == usual.n_query
        why = "default" if same else "as many as the training and the validation images allow"
        reasons.append(f"--n-query {shape.n_query}: query images per class, {why}")
    return reasons
