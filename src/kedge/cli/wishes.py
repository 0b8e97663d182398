"""Options that suit the images unless they are given: see `kedge.episodes.defaults`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from tyro.conf import arg

from kedge.episodes.defaults import (
    BackboneWish,
    EpisodeWish,
    ScheduleWish,
)

CHOSEN = "(default: chosen to suit the images)"
Wished = Annotated[int | None, arg(metavar="N", help_behavior_hint=CHOSEN)]
WishedRange = Annotated[
    int | tuple[int, int] | None, arg(metavar="N [MOST]", help_behavior_hint=CHOSEN)
]


@dataclass(frozen=True)
class Episode(EpisodeWish):
    """The small classification problems that the model practises on and is tested on."""

    n_way: WishedRange = None
    """Classes in each episode; two numbers are a range from which each episode draws its own."""
    n_shot: WishedRange = None
    """Labelled example images per class in each episode; two numbers are a range."""
    n_query: Wished = None
    """Images per class that have to be classified in each episode."""


@dataclass(frozen=True)
class Schedule(ScheduleWish):
    """How long a round trains. The paper used 200 epochs of 800 episodes."""

    epochs: Wished = None
    """Epochs in each round; the model is validated after every one."""
    episodes: Wished = None
    """Training episodes in an epoch."""
    val_episodes: int = 200
    """Episodes for each validation, always the same ones."""
    lr: float = 1e-3
    """Learning rate of Adam at the start of a round."""
    patience: int = 3
    """Halve the learning rate when validation has not improved for more than this many epochs."""
    tasks: Literal["uniform", "hard"] = "uniform"
    """Classes of a training episode: any, or every other time ones that are hard to tell apart."""
    batch: int = 1
    """Episodes in each step of the optimizer; of several processes, over all of them together."""


@dataclass(frozen=True)
class Backbone(BackboneWish):
    """The network that turns an image into a feature vector."""

    backbone: Annotated[str | None, arg(metavar="NAME", help_behavior_hint=CHOSEN)] = None
    """conv4 (small, quick), resnet12 (the paper's, at width 64) or resnet12-wide."""
    width: Wished = None
    """Channels of the first block, with which all the others grow."""
