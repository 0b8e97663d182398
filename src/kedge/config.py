"""Every setting, as frozen dataclasses that are validated once, when they are built.

The text below a field is its help on the command line.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import reprlib
import types
import typing
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, TypeVar

from kedge.errors import KedgeError

T = TypeVar("T")
DEEPEST = 30  # lists and tables within each other, in a file


def require(holds: bool, sentence: str) -> None:
    if not holds:
        raise KedgeError(sentence)


Count = int | tuple[int, int]  # the same in every episode, or drawn for each: least and most


@dataclass(frozen=True)
class EpisodeShape:
    """The small classification problems that the model practises on and is tested on."""

    n_way: Count = 5
    """Classes in each episode; two numbers are a range from which each episode draws its own."""
    n_shot: Count = 5
    """Labelled example images per class in each episode; two numbers are a range."""
    n_query: int = 15
    """Images per class that have to be classified in each episode."""

    def __post_init__(self) -> None:
        plain(self)
        require(
            self.ways[0] >= 2, f"--n-way is {self.ways[0]}: an episode needs at least 2 classes."
        )
        require(self.shots[0] >= 1, f"--n-shot is {self.shots[0]}: at least 1 example is needed.")
        require(self.n_query >= 1, f"--n-query is {self.n_query}: at least 1 query is needed.")
        for name, (least, most) in (("--n-way", self.ways), ("--n-shot", self.shots)):
            require(least <= most, f"{name}: the range {least} {most} must start with the lesser.")

    @property
    def ways(self) -> tuple[int, int]:
        return _range(self.n_way)

    @property
    def shots(self) -> tuple[int, int]:
        return _range(self.n_shot)

    def __str__(self) -> str:
        """'5-way 1-shot', '5–10-way 1–5-shot'."""
        return f"{written(self.n_way)}-way {written(self.n_shot)}-shot"


def _range(count: Count) -> tuple[int, int]:
    return (count, count) if isinstance(count, int) else count


def written(count: Count) -> str:
    least, most = _range(count)
    return str(least) if least == most else f"{least}–{most}"


@dataclass(frozen=True)
class Schedule:
    """How long a round trains. The paper used 200 epochs of 800 episodes."""

    epochs: int = 200
    """Epochs in each round; the model is validated after every one."""
    episodes: int = 800
    """Training episodes in an epoch."""
    val_episodes: int = 400
    """Episodes for each validation, always the same ones."""
    lr: float = 1e-3
    """Learning rate of Adam at the start of a round."""
    patience: int = 3
    """Halve the learning rate when validation has not improved for more than this many epochs."""
    tasks: Literal["uniform", "hard"] = "uniform"
    """Classes of a training episode: any, or every other time ones that are hard to tell apart."""
    batch: int = 1
    """Episodes in each step of the optimizer; of several processes, over all of them together."""

    def __post_init__(self) -> None:
        plain(self)
        for name in ("epochs", "episodes", "val_episodes", "batch"):
            value = getattr(self, name)
            option = f"--{name.replace('_', '-')}"
            require(value >= 1, f"{option} is {value}: it must be at least 1.")
        require(self.lr > 0, f"--lr is {self.lr}: it must be above 0.")
        require(self.tasks in ("uniform", "hard"), "--tasks must be uniform or hard.")
        require(self.patience >= 0, f"--patience is {self.patience}: it must not be negative.")
        require(
            self.episodes % self.batch == 0,
            f"--episodes is {self.episodes}: it must be a multiple of --batch, which is "
            f"{self.batch}.",
        )


@dataclass(frozen=True)
class BackboneConfig:
    """The network that turns an image into a feature vector."""

    backbone: str = "conv4"
    """conv4 (small, quick), resnet12 (the paper's, at width 64) or resnet12-wide."""
    width: int = 64
    """Channels of the first block, with which all the others grow."""

    def __post_init__(self) -> None:
        plain(self)
        require(
            1 <= self.width <= 4096,
            f"--width is {self.width}: it must be from 1 to 4096, and fit into memory.",
        )


@dataclass(frozen=True)
class HeadConfig:
    """How a feature is compared with the classes of an episode."""

    head: str = "prototype"
    """prototype (distance to a mean), ecm (to a learned point) or ridge (a linear classifier)."""
    temperature: float = 2.0
    """Divides every score before the softmax in training; does not change who wins."""

    def __post_init__(self) -> None:
        plain(self)
        require(self.temperature > 0, f"--temperature is {self.temperature}: it must be above 0.")


@dataclass(frozen=True)
class TrainConfig:
    """All that decides what a round learns from given images."""

    episode: EpisodeShape = field(default_factory=EpisodeShape)
    schedule: Schedule = field(default_factory=Schedule)
    seed: int = 0
    """Every random choice follows from this number."""

    def __post_init__(self) -> None:
        plain(self)
        require(self.seed >= 0, f"--seed is {self.seed}: it must not be negative.")


def plain(config: Any) -> None:
    """Numbers of NumPy become Python's own, which every file can hold; what is none is refused."""
    kind: type = type(config)
    for name, hint in _hints(kind).items():
        if not dataclasses.is_dataclass(hint):
            value = checked(f"--{name.replace('_', '-')}", hint, getattr(config, name))
            object.__setattr__(config, name, value)


def checked(option: str, hint: Any, value: Any) -> Any:
    """A value of the kind that the hint says, as Python's own."""
    try:
        return _convert(hint, _own(value))
    except KedgeError:
        several = typing.get_origin(hint) is tuple
        each = typing.get_args(hint)[0] if several else hint
        kinds = typing.get_args(each) or (each,)
        kind = "a number" if float in kinds else "a whole number" if int in kinds else "a word"
        also = " or two, a range" if any(typing.get_origin(k) is tuple for k in kinds) else ""
        kind = f"{'a list, each entry ' if several else ''}{kind}{also}"
        raise KedgeError(f"{option} is {reprlib.repr(value)}: it must be {kind}.") from None


def _own(value: Any) -> Any:
    if isinstance(value, tuple | list | range):
        return [_own(each) for each in value]
    return value.item() if getattr(value, "ndim", None) == 0 else value


def to_dict(config: Any) -> dict[str, Any]:
    """For JSON; tuples become lists there and come back as tuples."""
    return dataclasses.asdict(config)


def from_dict(kind: type[T], data: Any) -> T:
    """Build a config from JSON, validating it; unknown or missing keys are named."""
    require(isinstance(data, dict), f"{kind.__name__} must be written as names and values.")
    hints = _hints(typing.cast(type, kind))
    names = {f.name for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(set(data) - names)
    require(
        not unknown, f"{kind.__name__} has no setting named {', '.join(map(_short, unknown[:3]))}."
    )
    try:
        return kind(**{name: _convert(hints[name], value) for name, value in data.items()})
    except TypeError as error:
        raise KedgeError(f"{kind.__name__} cannot be built from this file: {error}.") from None


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _convert(hint: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(hint):
        return from_dict(typing.cast(type, hint), value)
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _either(inner, value)
    if origin is tuple and isinstance(value, list):
        each = inner[:1] * len(value) if Ellipsis in inner else inner
        require(len(each) == len(value), f"{reprlib.repr(value)} must hold {len(inner)} values.")
        return tuple(_convert(kind, item) for kind, item in zip(each, value, strict=True))
    if origin is dict and isinstance(value, dict):
        return {key: _convert(inner[1], each) for key, each in value.items()}
    if hint in (int, float, str, types.NoneType) or origin in (tuple, dict):
        wanted = (int, float) if hint is float else origin or hint
        fits = isinstance(value, wanted) and not isinstance(value, bool)
        require(fits, f"{reprlib.repr(value)} must be of type {(origin or hint).__name__}.")
    return value


def _either(kinds: tuple[Any, ...], value: Any) -> Any:
    """The first kind that the value fits."""
    for kind in kinds:
        try:
            return _convert(kind, value)
        except KedgeError:
            continue
    names = " or ".join(getattr(kind, "__name__", str(kind)) for kind in kinds)
    raise KedgeError(f"{reprlib.repr(value)} must be of type {names}.")


def _short(name: str) -> str:
    return name if len(name) < 40 else f"{name[:30]}…"


def parse_json(text: str) -> Any:
    """JSON and nothing besides: no NaN, no name twice, no maze that others get lost in.

    What is wrong raises ValueError or RecursionError.
    """
    found = json.loads(text, parse_constant=_no_number, object_pairs_hook=_once)
    check_depth(found)
    if re.search(r"\\u[dD][89a-fA-F]", text):  # half a sign can be written so, and never printed
        json.dumps(found, ensure_ascii=False).encode()
    return found


def check_depth(value: Any) -> None:
    level = [value]
    for _ in range(DEEPEST):
        containers = (each for each in level if isinstance(each, list | dict))
        level = [
            inner
            for each in containers
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return
    raise ValueError(f"lists and tables are nested more than {DEEPEST} times")


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands there twice")
    return found


SHORT = Schedule(epochs=10, episodes=100, val_episodes=200)  # the drawings, in minutes on a CPU
