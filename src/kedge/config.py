"""Every setting, as frozen dataclasses that are validated once, when they are built.

The text below a field is its help on the command line.
"""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass, field
from typing import Any, TypeVar

from kedge.errors import KedgeError

T = TypeVar("T")


def require(holds: bool, sentence: str) -> None:
    if not holds:
        raise KedgeError(sentence)


@dataclass(frozen=True)
class EpisodeShape:
    """The small classification problems that the model practises on and is tested on."""

    n_way: int = 5
    """Classes in each episode."""
    n_shot: int = 5
    """Labelled example images per class in each episode."""
    n_query: int = 15
    """Images per class that have to be classified in each episode."""

    def __post_init__(self) -> None:
        require(self.n_way >= 2, f"--n-way is {self.n_way}: an episode needs at least 2 classes.")
        require(self.n_shot >= 1, f"--n-shot is {self.n_shot}: at least 1 example is needed.")
        require(self.n_query >= 1, f"--n-query is {self.n_query}: at least 1 query is needed.")


@dataclass(frozen=True)
class Schedule:
    """How long a round trains. The paper used 200 epochs of 800 episodes."""

    epochs: int = 200
    """Epochs in each round; the model is validated after every one."""
    episodes: int = 800
    """Training episodes in an epoch; each is one step of the optimizer."""
    val_episodes: int = 400
    """Episodes for each validation, always the same ones."""
    lr: float = 1e-3
    """Learning rate of Adam at the start of a round."""
    patience: int = 3
    """Halve the learning rate when validation has not improved for more than this many epochs."""

    def __post_init__(self) -> None:
        for name in ("epochs", "episodes", "val_episodes"):
            require(getattr(self, name) >= 1, f"--{name.replace('_', '-')} must be at least 1.")
        require(self.lr > 0, f"--lr is {self.lr}: it must be above 0.")
        require(self.patience >= 0, f"--patience is {self.patience}: it must not be negative.")


SHORT = Schedule(epochs=10, episodes=100, val_episodes=200)  # the drawings, in minutes on a CPU
OWN_IMAGES = Schedule(epochs=20, episodes=100, val_episodes=200)


@dataclass(frozen=True)
class BackboneConfig:
    """The network that turns an image into a feature vector."""

    backbone: str = "conv4"
    """conv4 (small, quick), resnet12 (the paper's, at width 64) or resnet12-wide."""
    width: int = 64
    """Channels of the first block, with which all the others grow."""

    def __post_init__(self) -> None:
        require(
            1 <= self.width <= 4096,
            f"--width is {self.width}: it must be from 1 to 4096, and fit into memory.",
        )


@dataclass(frozen=True)
class HeadConfig:
    """How a feature is compared with the classes of an episode."""

    head: str = "prototype"
    """prototype: distance to the mean of each class's examples."""
    temperature: float = 2.0
    """Divides every score before the softmax in training; does not change who wins."""

    def __post_init__(self) -> None:
        require(self.temperature > 0, f"--temperature is {self.temperature}: it must be above 0.")


@dataclass(frozen=True)
class TrainConfig:
    """All that decides what a round learns from given images."""

    episode: EpisodeShape = field(default_factory=EpisodeShape)
    schedule: Schedule = field(default_factory=Schedule)
    seed: int = 0
    """Every random choice follows from this number."""

    def __post_init__(self) -> None:
        require(self.seed >= 0, f"The seed is {self.seed}: it must not be negative.")


def to_dict(config: Any) -> dict[str, Any]:
    """For JSON; tuples become lists there and come back as tuples."""
    return dataclasses.asdict(config)


def from_dict(kind: type[T], data: Any) -> T:
    """Build a config from JSON, validating it; unknown or missing keys are named."""
    require(isinstance(data, dict), f"{kind.__name__} must be written as names and values.")
    hints = typing.get_type_hints(kind)
    names = {f.name for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(set(data) - names)
    require(not unknown, f"{kind.__name__} has no setting named {', '.join(unknown)}.")
    try:
        return kind(**{name: _convert(hints[name], value) for name, value in data.items()})
    except TypeError as error:
        raise KedgeError(f"{kind.__name__} cannot be built from this file: {error}.") from None


def _convert(hint: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(hint):
        return from_dict(typing.cast(type, hint), value)
    if hint in (int, float, str):
        fits = isinstance(value, (int, float) if hint is float else hint)
        require(fits and not isinstance(value, bool), f"{value!r} must be of type {hint.__name__}.")
    origin = typing.get_origin(hint)
    if origin is tuple and isinstance(value, list):
        inner = typing.get_args(hint)[0]
        return tuple(_convert(inner, item) for item in value)
    return value
