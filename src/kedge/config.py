"""Every setting, as frozen dataclasses that are validated when they are built.

What a user may ask for, in Python or on the command line, are options: a field that is None is
inferred from the data (`kedge.defaults`). Complete settings (`EpisodeShape`, `Schedule`, …) say
what was done and are saved with every model and record; they are options of which nothing is None.

The text below a field is its help on the command line.
"""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

from kedge.errors import KedgeError, require
from kedge.utils.config_io import normalize, option_name
from kedge.utils.ranges import WHOLE, Range

T = TypeVar("T")
Ways = Annotated[int, Range(2, 10_000)]
PerClass = Annotated[int, Range(1, 10_000)]  # images
# Each is the same in every episode, or drawn from a range (least, most).
WayCount = Ways | tuple[Ways, Ways]
ShotCount = PerClass | tuple[PerClass, PerClass]
Count = int | tuple[int, int]
Episodes = Annotated[int, Range(1, 10**6)]
TestEpisodes = Annotated[int, Range(2, 10**6)]  # an interval needs at least 2
Epochs = Annotated[int, Range(0, 10**6)]  # 0: a round that only makes anchors
LearningRate = Annotated[float, Range(0, 1e30, "(]")]
Decay = Annotated[float, Range(0, 1, "[)")]
Width = Annotated[int, Range(1, 4096)]
Temperature = Annotated[float, Range(1e-6, 1e6)]
Seed = Annotated[int, Range(0, WHOLE.most)]
Side = Annotated[int, Range(16, 4096)]  # of an image, in pixels
Sampling = Literal["uniform", "hard"]
Trained = Literal["none", "head", "last", "all"]
BatchNormMode = Literal["batch", "frozen"]
DropoutMode = Literal["on", "off"]
Annealing = Literal["plateau", "cosine"]
ADDED = {"omit_default": True}  # saved only where it differs from the default, as in earlier files


def as_range(count: Count) -> tuple[int, int]:
    """(least, most) of a count."""
    return (count, count) if isinstance(count, int) else count


def format_count(count: Count) -> str:
    """'5', or '5–10' for a range."""
    least, most = as_range(count)
    return str(least) if least == most else f"{least}–{most}"


# ── episodes ─────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class EpisodeOptions:
    """The small classification problems that a model trains on and is tested on."""

    n_way: WayCount | None = None
    """Classes in each episode; two numbers are a range from which each episode draws its own."""
    n_shot: ShotCount | None = None
    """Labelled support images per class in each episode; two numbers are a range."""
    n_query: PerClass | None = None
    """Query images per class in each episode: those that have to be classified."""

    def __post_init__(self) -> None:
        normalize(self)
        for name in ("n_way", "n_shot"):
            if getattr(self, name) is not None:
                least, most = as_range(getattr(self, name))
                option = option_name(name)
                require(least <= most, f"{option}: the range {least} {most} must ascend.")

    @property
    def min_ways(self) -> int:
        """Classes that an episode needs at least."""
        return 2 if self.n_way is None else as_range(self.n_way)[1]

    @property
    def min_images(self) -> int:
        """Images of each class that an episode needs at least."""
        return as_range(self.n_shot or 1)[1] + (self.n_query or 1)


@dataclass(frozen=True)
class EpisodeShape(EpisodeOptions):
    """Ways, shots and queries of an episode. The defaults are the paper's."""

    n_way: WayCount = 5
    n_shot: ShotCount = 5
    n_query: PerClass = 15

    @property
    def ways(self) -> tuple[int, int]:
        return as_range(self.n_way)

    @property
    def shots(self) -> tuple[int, int]:
        return as_range(self.n_shot)

    def __str__(self) -> str:
        """'5-way 1-shot', '5–10-way 1–5-shot'."""
        return f"{format_count(self.n_way)}-way {format_count(self.n_shot)}-shot"


DEFAULT_SHAPE = EpisodeShape()


# ── the schedule of a round ──────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class ScheduleOptions:
    """How long a round trains, and how."""

    epochs: Epochs | None = None
    """Epochs in each round; the model is validated after every one."""
    episodes: Episodes | None = None
    """Training episodes in an epoch."""
    val_episodes: Episodes = 200
    """Episodes of each validation; they are the same every time."""
    lr: LearningRate | None = None
    """Learning rate of Adam at the start of a round."""
    patience: Epochs = 3
    """Halve the learning rate when validation has not improved for more than this many epochs."""
    sampling: Sampling = field(default="uniform", metadata={"saved_as": "tasks"})
    """Classes of a training episode: uniform, or hard (half of the episodes, by Task2Vec)."""
    tasks_per_step: Episodes = field(default=1, metadata={"saved_as": "batch"})
    """Episodes in each optimizer step, over all processes together."""
    annealing: Annealing | None = None
    """plateau: halve the learning rate where validation stalls, keep the best epoch (the paper's
    rule); cosine: lower it to 0 over the epochs, keep the last one."""
    train: Trained | None = None
    """What trains: none (new anchors only), head, last (the last layers and the head) or all."""
    batch_norm: BatchNormMode | None = None
    """batch: BatchNorm normalizes by the statistics of each episode; frozen: by stored ones."""
    dropout: DropoutMode | None = None
    """off: nothing of the features is dropped at random, as DropBlock of resnet12 does."""
    ema: Decay | None = None
    """Decay per step of an average of the weights, which replaces the last weights; 0: none."""

    def __post_init__(self) -> None:
        normalize(self)
        require(
            self.episodes is None or self.episodes % self.tasks_per_step == 0,
            f"--episodes is {self.episodes}: it must be a multiple of --tasks-per-step, which is "
            f"{self.tasks_per_step}.",
        )


@dataclass(frozen=True)
class Schedule(ScheduleOptions):
    """How long a round trains, and how. The paper used 200 epochs of 800 episodes."""

    epochs: Epochs = 200
    episodes: Episodes = 800
    val_episodes: Episodes = 400
    lr: LearningRate = 1e-3
    annealing: Annealing = field(default="plateau", metadata=ADDED)
    train: Trained = field(default="all", metadata=ADDED)
    batch_norm: BatchNormMode = field(default="batch", metadata=ADDED)
    dropout: DropoutMode = field(default="on", metadata=ADDED)
    ema: Decay = field(default=0.0, metadata=ADDED)


SHORT = Schedule(epochs=10, episodes=100, val_episodes=200)  # the drawings, in minutes on a CPU


# ── the network ──────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class BackboneOptions:
    """The network that turns an image into a feature vector."""

    backbone: str | None = None
    """efficientnet-lite0 (pretrained on ImageNet), timm:NAME (any network of timm, with --weights),
    module:function (your own Python), or to train from scratch: conv4 (small, quick), resnet12 (the
    paper's, at width 64), resnet12-wide."""
    width: Width | None = None
    """Channels of the first block of conv4 and resnet12; those of later blocks are multiples."""
    weights: str | None = field(default=None, metadata=ADDED)
    """File of pretrained weights: safetensors, or a PyTorch file of tensors only."""

    def __post_init__(self) -> None:
        normalize(self)


@dataclass(frozen=True)
class BackboneConfig(BackboneOptions):
    """The network that turns an image into a feature vector."""

    backbone: str = "conv4"
    width: Width = 64


@dataclass(frozen=True)
class HeadOptions:
    """How a feature is compared with the classes of an episode."""

    head: str | None = None
    """prototype (distance to a mean), unit (the same, of features scaled to length 1), ecm
    (distance to a learned point) or ridge (a linear classifier)."""
    temperature: Temperature | None = None
    """Divides the logits before every softmax in training; does not change which class wins."""

    def __post_init__(self) -> None:
        normalize(self)


@dataclass(frozen=True)
class HeadConfig(HeadOptions):
    """How a feature is compared with the classes of an episode."""

    head: str = "prototype"
    temperature: Temperature = 2.0


# ── a round ──────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class RoundOptions(ScheduleOptions, EpisodeOptions):
    """How a round trains."""

    seed: Seed = 0
    """Every random choice follows from this number."""

    def __post_init__(self) -> None:
        EpisodeOptions.__post_init__(self)
        ScheduleOptions.__post_init__(self)


@dataclass(frozen=True)
class TrainOptions(HeadOptions, BackboneOptions, RoundOptions):
    """How the first round trains, and the network."""

    image_size: Side | None = None
    """Side in pixels to which images are resized."""

    def __post_init__(self) -> None:
        for options in (RoundOptions, BackboneOptions, HeadOptions):
            options.__post_init__(self)


@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides what a round learns from given images."""

    episode: EpisodeShape = field(default_factory=EpisodeShape)
    schedule: Schedule = field(default_factory=Schedule)
    seed: Seed = 0
    """Every random choice follows from this number."""

    def __post_init__(self) -> None:
        normalize(self)


# ── privacy ──────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Privacy:
    """Settings of a private model file, which names no source of its images (docs/privacy.md)."""

    # Some means come from at most 50 images (`kedge.models.drift_compensation`).
    min_images: Annotated[int, Range(2, 50)] = 20
    """Images that the mean of each class comes from at least; fewer are refused."""
    noise: Annotated[float, Range(0, 100)] = 0.0
    """Length of Gaussian noise on the class means, relative to that of the features."""

    def __post_init__(self) -> None:
        normalize(self)

    @classmethod
    def of(cls, private: bool | Privacy) -> Privacy | None:
        """The default settings for True; None for False."""
        require(
            isinstance(private, bool | Privacy),
            f"private is a {type(private).__name__}: give True, or kedge.Privacy(…).",
        )
        return (cls() if private else None) if isinstance(private, bool) else private


def options_from(kind: type[T], given: dict[str, Any]) -> T:
    """Options from keyword arguments; an unknown name is an error that lists the known ones."""
    known = [f.name for f in dataclasses.fields(typing.cast(Any, kind))]
    if unknown := [name for name in given if name not in known]:
        raise KedgeError(f"There is no option '{unknown[0]}'; the options are {', '.join(known)}.")
    return kind(**given)
