"""What is chosen from the images where nobody has chosen: one place for the command and for Python.

A choice depends on the images, on the kind of device and on what was asked for, and on nothing
else: a command that is given again chooses the same. Each has a reason, a line for people. What
was asked for stays as it is, and where it cannot work an error says what would. PyTorch is not
needed here, so that the command can show its help at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
from jaxtyping import Int64

from kedge.config import (
    BackboneConfig,
    Count,
    EpisodeShape,
    Schedule,
    plain,
)

USUAL = EpisodeShape()  # 5-way 5-shot with 15 queries
AT_A_TIME = USUAL.ways[1] * (USUAL.shots[1] + USUAL.n_query)  # images in the usual episode
MOST_WAYS = 20
SMALLEST_FOR_RESNET = 32  # px: of fewer, four halvings leave a single point
FEWEST_FOR_RESNET = 1000  # images
QUICK = 32  # px: larger ones need a narrower network where there is no GPU


@dataclass(frozen=True)
class EpisodeWish:
    """What was asked for of an episode. What is None is chosen; so it is below."""

    n_way: Count | None = None
    n_shot: Count | None = None
    n_query: int | None = None

    def __post_init__(self) -> None:
        plain(self)


@dataclass(frozen=True)
class ScheduleWish:
    """What was asked for of a schedule."""

    epochs: int | None = None
    episodes: int | None = None
    val_episodes: int = 200
    lr: float = 1e-3
    patience: int = 3
    tasks: Literal["uniform", "hard"] = "uniform"
    batch: int = 1

    def __post_init__(self) -> None:
        plain(self)


@dataclass(frozen=True)
class BackboneWish:
    """What was asked for of the network."""

    backbone: str | None = None
    width: int | None = None


# Whoever gives a whole one has chosen everything.
AnyEpisode = EpisodeWish | EpisodeShape
AnySchedule = ScheduleWish | Schedule
Reasons = list[str]


def choose_backbone(
    wish: BackboneWish, n_images: int, size: int, gpu: bool
) -> tuple[BackboneConfig, Reasons]:
    """ResNet-12 where it trains in minutes and has enough to learn from."""
    name, width, reasons = wish.backbone, wish.width, []
    if name is None:
        name = "conv4"
        if not gpu:
            why = "a small network, since there is no GPU"
        elif size < SMALLEST_FOR_RESNET:
            why = f"a small network, since images of {size} px vanish in a deeper one"
        elif n_images < FEWEST_FOR_RESNET:
            why = f"a small network, since {n_images} images are few for a larger one"
        else:
            name, why = "resnet12", "a large network, since there are a GPU and many images"
        reasons.append(f"--backbone {name}: {why}")
    if width is None:
        slow = name == "conv4" and not gpu and size > QUICK
        width = 32 if slow else 64
        why = f"half as many, since {size} px are much work without a GPU" if slow else "as usual"
        reasons.append(f"--width {width}: channels in its first layers, {why}")
    return BackboneConfig(name, width), reasons


def choose_schedule(wish: AnySchedule, n_classes: int, gpu: bool) -> tuple[Schedule, Reasons]:
    """Minutes on either device. More classes are worth more episodes."""
    steps = ((20, 50), (20, 100), (30, 100)) if not gpu else ((20, 200), (40, 400), (60, 400))
    epochs, episodes = steps[(n_classes >= 20) + (n_classes >= 200)]
    episodes += -episodes % max(wish.batch, 1)  # that there is at least one is said below
    chosen, options = asdict(wish), []
    for name, value in (("epochs", epochs), ("episodes", episodes)):
        if chosen[name] is None:
            chosen[name] = value
            options.append(f"--{name} {value}")
    why = f"how long to train: minutes {'with' if gpu else 'without'} a GPU; longer may be better"
    return Schedule(**chosen), [f"{' '.join(options)}: {why}"] if options else []


@dataclass(frozen=True)
class Fit:
    """How many images of each class an episode takes, and which classes have as many."""

    n_shot: Count
    n_query: int
    usable: tuple[Int64[np.ndarray, " _"], ...]  # numbers of classes, of each pool

    @property
    def need(self) -> int:
        return most(self.n_shot) + self.n_query


def fit_images(
    rooms: Sequence[Int64[np.ndarray, " _"]], wish: AnyEpisode, n_way: int = 1
) -> Fit | None:
    """Shots and queries for classes that have room for so many images in an episode.

    Few large classes and many small ones are both worth something: chosen is the number k of
    images for which (classes that have k) · log k is largest. So a small class among large ones is
    left out of the episodes, rather than making all of them small. But as many as an episode needs,
    `n_way`, must stay. None: not so many have room.
    """
    shots, queries = wish.n_shot, wish.n_query
    if shots is not None and queries is not None:
        candidates = [most(shots) + queries]
    elif shots is not None:
        candidates = [most(shots) + q for q in range(1, USUAL.n_query + 1)]
    elif queries is not None:
        candidates = [s + queries for s in range(1, USUAL.shots[1] + 1)]
    else:
        candidates = list(range(2, USUAL.shots[1] + USUAL.n_query + 1))

    def worth(k: int) -> float:
        enough = all(np.sum(room >= k) >= n_way for room in rooms)
        return enough * float(min(np.mean(room >= k) for room in rooms) * np.log(k))

    need = max(reversed(candidates), key=worth)
    if worth(need) == 0:
        return None
    if shots is None:
        shots = min(USUAL.shots[1], need // 2) if queries is None else need - queries
    usable = tuple(np.flatnonzero(room >= need) for room in rooms)
    return Fit(shots, need - most(shots), usable)


def choose_ways(wish: AnyEpisode, need: int, n_classes: int, largest: int = MOST_WAYS) -> Count:
    """Small episodes are filled up with classes, but not with more than half of those there are,
    so that no two episodes are the same."""
    if wish.n_way is not None:
        return wish.n_way
    usual = min(USUAL.ways[1], n_classes)
    return max(usual, min(AT_A_TIME // need, largest, n_classes // 2))


def say_shape(wish: AnyEpisode, shape: EpisodeShape, why: str) -> Reasons:
    """What an episode is, for those who have not met the word."""
    usual, reasons = "as usual", []
    if wish.n_way is None:
        more, fewer = "more than usual, since of each there are few images", "all that there are"
        ways = shape.ways[1] - USUAL.ways[1]
        reason = more if ways > 0 else fewer if ways < 0 else usual
        reasons.append(
            f"--n-way {shape.n_way}: classes to tell apart in each task (episode), {reason}"
        )
    if wish.n_shot is None:
        reasons.append(f"--n-shot {shape.n_shot}: labelled examples of each class in a task, {why}")
    if wish.n_query is None:
        reason = (
            usual
            if shape.n_query == USUAL.n_query
            else "as many as fit, also into what is set apart to validate"
        )
        reasons.append(
            f"--n-query {shape.n_query}: further images of each class, to be classified, {reason}"
        )
    return reasons


def most(count: Count) -> int:
    return count if isinstance(count, int) else count[1]
