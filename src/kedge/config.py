"""Every setting, as frozen dataclasses that are validated when they are built.

`EpisodeShape`, `Schedule`, `BackboneConfig`, `HeadConfig` and `TrainConfig` are complete: they say
what was done, and are saved with every model and record. `TrainOptions` and its bases are what a
user may ask for, in Python or on the command line: a field that is None is inferred from the data
by `resolve`.

The text below a field is its help on the command line.
"""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from kedge.errors import KedgeError, require
from kedge.utils.config_io import normalize, option_name

T = TypeVar("T")
Count = int | tuple[int, int]  # the same in every episode, or a range (least, most) to draw from
Sampling = Literal["uniform", "hard"]
MAX_WAYS = 20  # that are inferred; a user may ask for more
MIN_SIZE_FOR_RESNET = 32  # px: of a smaller image, four poolings leave a single position
MIN_IMAGES_FOR_RESNET = 1000
FAST_SIZE_WITHOUT_GPU = 32  # px: larger images get a narrower Conv-4


def as_range(count: Count) -> tuple[int, int]:
    """(least, most) of a count."""
    return (count, count) if isinstance(count, int) else count


def format_count(count: Count) -> str:
    """'5', or '5–10' for a range."""
    least, most = as_range(count)
    return str(least) if least == most else f"{least}–{most}"


# ── complete settings ────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class EpisodeShape:
    """Ways, shots and queries of an episode."""

    n_way: Count = 5
    """Classes in each episode; two numbers are a range from which each episode draws its own."""
    n_shot: Count = 5
    """Labelled support images per class in each episode; two numbers are a range."""
    n_query: int = 15
    """Query images per class in each episode: those that have to be classified."""

    def __post_init__(self) -> None:
        normalize(self)
        require(self.ways[0] >= 2, f"--n-way is {self.ways[0]}: an episode needs 2 classes.")
        require(self.shots[0] >= 1, f"--n-shot is {self.shots[0]}: it must be at least 1.")
        require(self.n_query >= 1, f"--n-query is {self.n_query}: it must be at least 1.")
        for name, (least, most) in (("--n-way", self.ways), ("--n-shot", self.shots)):
            require(least <= most, f"{name}: the range {least} {most} must be in ascending order.")

    @property
    def ways(self) -> tuple[int, int]:
        return as_range(self.n_way)

    @property
    def shots(self) -> tuple[int, int]:
        return as_range(self.n_shot)

    def __str__(self) -> str:
        """'5-way 1-shot', '5–10-way 1–5-shot'."""
        return f"{format_count(self.n_way)}-way {format_count(self.n_shot)}-shot"


DEFAULT_SHAPE = EpisodeShape()  # the paper's
DEFAULT_IMAGES = DEFAULT_SHAPE.ways[1] * (DEFAULT_SHAPE.shots[1] + DEFAULT_SHAPE.n_query)


@dataclass(frozen=True)
class Schedule:
    """How long a round trains, and how. The paper used 200 epochs of 800 episodes."""

    epochs: int = 200
    """Epochs in each round; the model is validated after every one."""
    episodes: int = 800
    """Training episodes in an epoch."""
    val_episodes: int = 400
    """Episodes of each validation; they are the same every time."""
    lr: float = 1e-3
    """Learning rate of Adam at the start of a round."""
    patience: int = 3
    """Halve the learning rate when validation has not improved for more than this many epochs."""
    sampling: Sampling = field(default="uniform", metadata={"saved_as": "tasks"})
    """Classes of a training episode: uniform, or hard (half of the episodes, by Task2Vec)."""
    tasks_per_step: int = field(default=1, metadata={"saved_as": "batch"})
    """Episodes in each optimizer step, over all processes together."""

    def __post_init__(self) -> None:
        normalize(self)
        for name in ("epochs", "episodes", "val_episodes", "tasks_per_step"):
            value = getattr(self, name)
            require(value >= 1, f"{option_name(name)} is {value}: it must be at least 1.")
        require(self.lr > 0, f"--lr is {self.lr}: it must be above 0.")
        kinds = typing.get_args(Sampling)
        require(self.sampling in kinds, f"--sampling must be {' or '.join(kinds)}.")
        require(self.patience >= 0, f"--patience is {self.patience}: it must not be negative.")
        require(
            self.episodes % self.tasks_per_step == 0,
            f"--episodes is {self.episodes}: it must be a multiple of --tasks-per-step, which is "
            f"{self.tasks_per_step}.",
        )


SHORT = Schedule(epochs=10, episodes=100, val_episodes=200)  # the drawings, in minutes on a CPU


@dataclass(frozen=True)
class BackboneConfig:
    """The network that turns an image into a feature vector."""

    backbone: str = "conv4"
    """conv4 (small, quick), resnet12 (the paper's, at width 64) or resnet12-wide."""
    width: int = 64
    """Channels of the first block; those of later blocks are multiples of it."""

    def __post_init__(self) -> None:
        normalize(self)
        require(1 <= self.width <= 4096, f"--width is {self.width}: it must be from 1 to 4096.")


@dataclass(frozen=True)
class HeadConfig:
    """How a feature is compared with the classes of an episode."""

    head: str = "prototype"
    """prototype (distance to a mean), ecm (to a learned point) or ridge (a linear classifier)."""
    temperature: float = 2.0
    """Divides the logits before every softmax in training; does not change which class wins."""

    def __post_init__(self) -> None:
        normalize(self)
        require(self.temperature > 0, f"--temperature is {self.temperature}: it must be above 0.")


@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides what a round learns from given images."""

    episode: EpisodeShape = field(default_factory=EpisodeShape)
    schedule: Schedule = field(default_factory=Schedule)
    seed: int = 0
    """Every random choice follows from this number."""

    def __post_init__(self) -> None:
        normalize(self)
        require(self.seed >= 0, f"--seed is {self.seed}: it must not be negative.")


# ── options: what is None is inferred from the data ──────────────────────────────────────────


@dataclass(frozen=True)
class EpisodeOptions:
    """The small classification problems that a model trains on and is tested on."""

    n_way: Count | None = None
    """Classes in each episode; two numbers are a range from which each episode draws its own."""
    n_shot: Count | None = None
    """Labelled support images per class in each episode; two numbers are a range."""
    n_query: int | None = None
    """Query images per class in each episode: those that have to be classified."""

    def __post_init__(self) -> None:
        normalize(self)
        self.shape_or_default()

    def shape_or_default(self) -> EpisodeShape:
        """The shape with the paper's values for what is None; validates what is given."""
        given = {f.name: getattr(self, f.name) for f in dataclasses.fields(EpisodeShape)}
        return EpisodeShape(**{name: value for name, value in given.items() if value is not None})

    @property
    def min_ways(self) -> int:
        """Classes that an episode needs at least."""
        return 2 if self.n_way is None else as_range(self.n_way)[1]

    @property
    def min_images(self) -> int:
        """Images of each class that an episode needs at least."""
        return as_range(self.n_shot or 1)[1] + (self.n_query or 1)


@dataclass(frozen=True)
class RoundOptions(EpisodeOptions):
    """How a round trains."""

    epochs: int | None = None
    """Epochs in each round; the model is validated after every one."""
    episodes: int | None = None
    """Training episodes in an epoch."""
    val_episodes: int = 200
    """Episodes of each validation; they are the same every time."""
    lr: float = 1e-3
    """Learning rate of Adam at the start of a round."""
    patience: int = 3
    """Halve the learning rate when validation has not improved for more than this many epochs."""
    sampling: Sampling = "uniform"
    """Classes of a training episode: uniform, or hard (half of the episodes, by Task2Vec)."""
    tasks_per_step: int = 1
    """Episodes in each optimizer step, over all processes together."""
    seed: int = 0
    """Every random choice follows from this number."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.resolve(DataSummary(n_classes=2, shape=self.shape_or_default()))

    def resolve(self, data: DataSummary) -> tuple[TrainConfig, list[str]]:
        """The complete settings of a round on this data, and the reason for each that is inferred.

        The same options, data and kind of device always give the same settings.
        """
        minutes = ((20, 50), (20, 100), (30, 100)) if not data.gpu else MINUTES_ON_GPU
        epochs, episodes = minutes[(data.n_classes >= 20) + (data.n_classes >= 200)]
        episodes += -episodes % max(self.tasks_per_step, 1)
        settings = {f.name: getattr(self, f.name) for f in dataclasses.fields(Schedule)}
        inferred = []
        for name, value in (("epochs", epochs), ("episodes", episodes)):
            if settings[name] is None:
                settings[name] = value
                inferred.append(f"{option_name(name)} {value}")
        device = "with a GPU" if data.gpu else "without a GPU"
        reason = f"{' '.join(inferred)}: takes minutes {device}; training longer may be better"
        config = TrainConfig(data.shape, Schedule(**settings), self.seed)
        return config, [reason] if inferred else []


MINUTES_ON_GPU = ((20, 200), (40, 400), (60, 400))  # epochs and episodes: few, more, many classes


@dataclass(frozen=True)
class TrainOptions(RoundOptions):
    """How the first round trains, and the network."""

    image_size: int | None = None
    """Side in pixels to which images are resized."""
    backbone: str | None = None
    """conv4 (small, quick), resnet12 (the paper's, at width 64) or resnet12-wide."""
    width: int | None = None
    """Channels of the first block; those of later blocks are multiples of it."""
    head: str = "prototype"
    """prototype (distance to a mean), ecm (to a learned point) or ridge (a linear classifier)."""
    temperature: float = 2.0
    """Divides the logits before every softmax in training; does not change which class wins."""

    def __post_init__(self) -> None:
        super().__post_init__()
        HeadConfig(self.head, self.temperature)
        if self.width is not None:
            BackboneConfig(width=self.width)

    def resolve_backbone(self, data: DataSummary) -> tuple[BackboneConfig, list[str]]:
        """ResNet-12 where it trains in minutes and has enough images, else Conv-4; with reasons."""
        name, width, size, reasons = self.backbone, self.width, data.image_size, []
        if name is None:
            name = "conv4"
            if not data.gpu:
                why = "a small network, since there is no GPU"
            elif size < MIN_SIZE_FOR_RESNET:
                why = f"a small network, since images of {size} px are too small for a deeper one"
            elif data.n_images < MIN_IMAGES_FOR_RESNET:
                why = f"a small network, since {data.n_images} images are few for a larger one"
            else:
                name, why = "resnet12", "a large network, since there are a GPU and many images"
            reasons.append(f"--backbone {name}: {why}")
        if width is None:
            narrow = name == "conv4" and not data.gpu and size > FAST_SIZE_WITHOUT_GPU
            width = 32 if narrow else 64
            why = f"half the usual, since {size} px are slow without a GPU" if narrow else "default"
            reasons.append(f"--width {width}: channels of the first block, {why}")
        return BackboneConfig(name, width), reasons


@dataclass(frozen=True)
class DataSummary:
    """What the settings of a round are inferred from."""

    n_classes: int = 0  # that are trained on
    shape: EpisodeShape = DEFAULT_SHAPE  # as the train/validation split allows
    n_images: int = 0
    image_size: int = 0
    gpu: bool = False


def options_from(kind: type[T], given: dict[str, Any]) -> T:
    """Options from keyword arguments; an unknown name is an error that lists the known ones."""
    known = [f.name for f in dataclasses.fields(typing.cast(Any, kind))]
    if unknown := [name for name in given if name not in known]:
        raise KedgeError(f"There is no option '{unknown[0]}'; the options are {', '.join(known)}.")
    return kind(**given)
