"""A round that trains in a tenth of a second: 4 classes of 8 images of 16 px in each role."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from kedge.config import BackboneConfig, EpisodeShape, HeadConfig, Schedule, TrainConfig
from kedge.data.pools import Pool, RoundData
from kedge.data.table import ImageTable
from kedge.methods.base import Alignment, AlignmentInputs, Memory
from kedge.methods.registry import Method, parse_method
from kedge.models.embedding import ModelConfig
from kedge.models.model import Model, new_model
from kedge.training.round import RoundResult, memory_after_round, train_round

SIDE, PER_CLASS = 16, 8
OLD, NEW, VAL = (tuple(f"{role}{i}" for i in range(4)) for role in ("old", "new", "val"))
BASE = Method("base", "new")
CONFIG = TrainConfig(EpisodeShape(3, 2, 2), Schedule(3, 3, 20, 1e-2), seed=5)


def images(classes: tuple[str, ...] = OLD + NEW + VAL, seed: int = 0) -> ImageTable:
    """Each class has a coarse pattern of its own under noise."""
    seeded = torch.Generator().manual_seed(seed)
    n = len(classes)
    coarse = torch.rand(n, 1, 1, 4, 4, generator=seeded)
    patterns = coarse.repeat_interleave(SIDE // 4, 3).repeat_interleave(SIDE // 4, 4)
    noise = torch.rand(n, PER_CLASS, 1, SIDE, SIDE, generator=seeded)
    pixels = (255 * (0.4 * patterns + 0.6 * noise)).to(torch.uint8).flatten(0, 1)
    return ImageTable.build(pixels, [i // PER_CLASS for i in range(n * PER_CLASS)], classes)


TABLE = images()


def round_data(round: int, classes: tuple[str, ...], table: ImageTable = TABLE) -> RoundData:
    train, val = Pool.all("training", table, classes), Pool.all("validation", table, VAL)
    return RoundData(round, train, val)


FIRST, SECOND = round_data(0, OLD), round_data(1, NEW)


def untrained(
    backbone: str = "conv4",
    seed: int = 0,
    head: str = "prototype",
    network: nn.Module | None = None,
) -> Model:
    config = ModelConfig(BackboneConfig(backbone, 4), HeadConfig(head), 1, SIDE)
    return new_model(config, FIRST.train, seed, network)


@functools.cache
def base_model() -> Model:
    """The model after round 0; tests must not change it."""
    return train_round(untrained(), FIRST, BASE, CONFIG).model


def memory_of(method: str, model: Model) -> Memory:
    """What a method keeps of the first round."""
    return memory_after_round(quick(method), model, FIRST, {}, CONFIG)


def quick(method: str) -> Method:
    """A method with options that are quick for small classes."""
    options = {"EIML": " exemplars=4", "EWC": " episodes=20"}
    return parse_method(method + options.get(method, ""))


def second_round(method: str, start: Model, config: TrainConfig = CONFIG) -> RoundResult:
    memory = memory_of(method.split()[0], start)
    return train_round(start, SECOND, parse_method(method), config, memory=memory)


def scheduled(**changes: float | str) -> TrainConfig:
    return replace(CONFIG, schedule=replace(CONFIG.schedule, **changes))


def weights(model: Model) -> dict[str, Tensor]:
    tensors = {**model.state_dict(), "anchors": model.anchors}
    return {key: value.clone() for key, value in tensors.items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Whether all tensors are equal to the last bit."""
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


class Linear(nn.Module):
    """A backbone without BatchNorm, so that training and eval mode are the same."""

    def __init__(self) -> None:
        super().__init__()
        self.flat = nn.Linear(SIDE * SIDE, 6)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.flat(pixels.flatten(1))


@dataclass(frozen=True)
class Witness(Alignment):
    """Has a penalty that is not 0, and keeps all that it is shown."""

    per_step: int
    seen: list[AlignmentInputs] = field(default_factory=list)

    def anchors_per_step(self, n_way: int, n_anchors: int) -> int:
        return self.per_step

    def penalty(self, inputs: AlignmentInputs) -> Tensor:
        self.seen.append(replace(inputs, head=copy.deepcopy(inputs.head)))
        return inputs.new.square().mean()


class Stopped(Exception):
    pass


def stop_after(n: int) -> Callable[[int], None]:
    """A tick that raises Stopped after n episodes."""
    done = 0

    def tick(episodes: int) -> None:
        nonlocal done
        done += episodes
        if done >= n:
            raise Stopped

    return tick
