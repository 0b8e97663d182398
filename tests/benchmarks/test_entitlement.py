"""Methods get the images that they are entitled to, and no others."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.benchmarks.numbered import numbered_table, numbers, numbers_in
from torch import Tensor

from kedge.benchmarks.base import Benchmark, Split
from kedge.config import BackboneConfig, EpisodeShape, HeadConfig, Schedule, TrainConfig
from kedge.data.pools import Pool, RoundData
from kedge.errors import EntitlementError
from kedge.methods.base import Alignment, AlignmentInputs
from kedge.methods.registry import Method, parse_method
from kedge.models.embedding import ModelConfig
from kedge.models.model import Model, new_model
from kedge.training.round import train_round, training_pool

CONFIG = TrainConfig(EpisodeShape(2, 1, 2), Schedule(1, 2, 2), 0)


@pytest.fixture
def small() -> Benchmark:
    """Rounds of 3, 3 and 2 classes; of 8 images each, 5 are trained on and 3 held out."""
    names = tuple(f"c{i}" for i in range(12))
    rounds = (names[:3], names[3:6], names[6:8])
    split = Split(0, rounds, names[8:10], {"unseen": names[10:]}, held_out=3)
    return Benchmark(numbered_table(names, 8, (16, 16)), split)


def tensors_in(thing: Any, seen: set[int] | None = None) -> Iterator[Tensor]:
    """Every tensor that can be reached from an object by attributes, items and elements."""
    seen = set() if seen is None else seen
    if id(thing) in seen or isinstance(thing, str | int | float | type(None)):
        return
    seen.add(id(thing))
    if isinstance(thing, Tensor):
        yield thing
    elif isinstance(thing, dict):
        for value in thing.values():
            yield from tensors_in(value, seen)
    elif isinstance(thing, tuple | list):
        for value in thing:
            yield from tensors_in(value, seen)
    elif hasattr(thing, "__dict__"):
        yield from tensors_in(vars(thing), seen)


def images_in(thing: Any) -> set[int]:
    """Every image that is held anywhere within."""
    found = [t for t in tensors_in(thing) if t.dtype == torch.uint8 and t.ndim == 4]
    assert found, "no images at all: this would prove nothing"
    return {number for images in found for number in numbers(images)}


def test_round_data_refuse_old_images(small: Benchmark) -> None:
    for round in range(3):
        with pytest.raises(EntitlementError, match=f"before round {round}"):
            _ = small.round_data(round).old
        assert small.round_data(round)._old is None


@pytest.mark.parametrize("round", [1, 2])
def test_round_data_hold_no_old_image_anywhere(small: Benchmark, round: int) -> None:
    names = [name for classes in small.split.rounds[:round] for name in classes]
    old = set(numbers_in(Pool.all("all of their images", small.table, names)))
    assert not old & images_in(small.round_data(round))


@pytest.mark.parametrize("with_old", [False, True])
def test_round_data_hold_no_test_image_nor_later_one(small: Benchmark, with_old: bool) -> None:
    tested = {image for pool in small.test_pools(1) for image in numbers_in(pool)}
    later = set(numbers_in(small.round_data(2).train))
    assert not (tested | later) & images_in(small.round_data(1, with_old=with_old))


def test_entitled_round_data_hold_all_training_images_of_earlier_rounds(small: Benchmark) -> None:
    old = small.round_data(2, with_old=True).old
    assert old.classes == small.split.rounds[0] + small.split.rounds[1]
    assert numbers_in(old) == [
        *numbers_in(small.round_data(0).train),
        *numbers_in(small.round_data(1).train),
    ]


def test_only_a_method_that_is_due_everything_trains_on_old_images(small: Benchmark) -> None:
    entitled = small.round_data(1, with_old=True)
    for name in ("FT", "DFA", "IDA"):
        assert training_pool(parse_method(name), entitled) is entitled.train
    everything = training_pool(parse_method("PAR"), entitled)
    assert everything.classes == small.split.rounds[0] + small.split.rounds[1]
    with pytest.raises(EntitlementError):
        training_pool(parse_method("PAR"), small.round_data(1))
    first = small.round_data(0)
    assert training_pool(parse_method("PAR"), first) is first.train


@dataclasses.dataclass(frozen=True)
class Thief(Alignment):
    """A method that tries to read old images."""

    data: RoundData

    def anchors_per_step(self, n_way: int, n_anchors: int) -> int:
        return 0

    def penalty(self, given: AlignmentInputs) -> Tensor:
        return self.data.old.table.images.float().mean()


@dataclasses.dataclass(frozen=True)
class Witness(Alignment):
    """A method that records its inputs."""

    inputs: list[AlignmentInputs] = dataclasses.field(default_factory=list)

    def anchors_per_step(self, n_way: int, n_anchors: int) -> int:
        return n_anchors

    def penalty(self, given: AlignmentInputs) -> Tensor:
        self.inputs.append(given)
        return (given.new - given.old).square().sum(1).mean()


@pytest.fixture
def base(small: Benchmark) -> Model:
    config = ModelConfig(BackboneConfig("conv4", 4), HeadConfig(), 1, 16)
    data = small.round_data(0)
    start = new_model(config, data.train, 0)
    return train_round(start, data, Method("base", "new"), CONFIG).model


def test_an_alignment_that_reads_old_images_fails(small: Benchmark, base: Model) -> None:
    data = small.round_data(1)
    thief = Method("thief", "new", Thief(data))
    with pytest.raises(EntitlementError, match="anchors only"):
        train_round(base, data, thief, CONFIG)


def test_a_method_that_trains_on_old_images_without_being_due_them_fails(
    small: Benchmark, base: Model
) -> None:
    with pytest.raises(EntitlementError):
        train_round(base, small.round_data(1), Method("thief", "everything"), CONFIG)


def test_an_alignment_is_shown_features_weights_and_anchors_and_no_pixel(
    small: Benchmark, base: Model
) -> None:
    witness = Witness()
    train_round(base, small.round_data(1), Method("witness", "new", witness), CONFIG)
    assert len(witness.inputs) == 2
    for given in witness.inputs:
        assert all(t.dtype != torch.uint8 for t in tensors_in(given))
        weights = {id(w) for part in (given.new_weights, given.old_weights) for w in part.values()}
        assert all(t.ndim <= 2 for t in tensors_in(given) if id(t) not in weights)
        assert torch.equal(given.anchors.sort(0).values, base.anchors.sort(0).values)
        assert given.new.shape == given.old.shape == (2 * 3, 4)


def test_positions_run_through_a_pool_class_by_class() -> None:
    table = numbered_table([f"c{i}" for i in range(4)], 8)
    pool = Pool("p", table, ("c3", "c1"), (table.rows_of("c3")[2:], table.rows_of("c1")[:1]))
    assert pool.counts.tolist() == [6, 1]
    assert pool.starts.tolist() == [0, 6]
    assert pool.rows.tolist() == [26, 27, 28, 29, 30, 31, 8]
    assert len(pool) == 7
    both = Pool.concat("both", [pool, Pool.all("w", table, ["c0"])])
    assert both.classes == ("c3", "c1", "c0")
    assert both.rows.tolist() == [*pool.rows.tolist(), *range(8)]
