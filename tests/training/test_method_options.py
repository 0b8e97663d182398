"""Settings of a round that a method brings along: averaged weights, frozen statistics, merging."""

import copy
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kedge.benchmarks import get_protocol
from kedge.config import BackboneConfig, EpisodeShape, HeadConfig, Schedule, TrainConfig
from kedge.data.pools import RoundData
from kedge.errors import KedgeError
from kedge.methods.registry import Method, parse_method
from kedge.models.backbones import DropBlock
from kedge.models.model import Model
from kedge.models.start import start_model
from kedge.training.round import train_round
from kedge.utils.progress import Tick, no_tick

SCHEDULE = Schedule(epochs=2, episodes=3, val_episodes=4, annealing="cosine")


@cache
def data(round: int) -> RoundData:
    return get_protocol("drawings-random").benchmark(0).round_data(round)


@cache
def base(head: str = "prototype") -> Model:
    start = start_model(BackboneConfig(width=4), HeadConfig(head), data(0).train, 0, None)
    return update("", replace(SCHEDULE, epochs=1), start=start)


def update(
    method: str,
    schedule: Schedule = SCHEDULE,
    start: Model | None = None,
    checkpoint: Path | None = None,
    tick: Tick = no_tick,
) -> Model:
    """The model after an update, or without a method after the first round."""
    chosen = parse_method(method) if method else Method("base", "new")
    config = TrainConfig(EpisodeShape(3, 2, 3), schedule, 0)
    start = start or base()
    return train_round(start, data(bool(method)), chosen, config, checkpoint, tick).model


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("setting", [{"ema": 0.9}, {"batch_norm": "frozen"}])
def test_a_method_trains_as_if_the_schedule_had_its_settings(setting: dict[str, object]) -> None:
    words = " ".join(f"{name}={value}" for name, value in setting.items())
    by_schedule = update("IDA", replace(SCHEDULE, **setting))  # type: ignore[arg-type]
    by_method = update(f"IDA {words}")
    assert same(by_method.state_dict(), by_schedule.state_dict())
    assert not same(by_method.state_dict(), update("IDA").state_dict())
    assert by_method.lineage[-1].config == by_schedule.lineage[-1].config


def test_without_dropout_a_network_trains_as_if_it_had_none() -> None:
    network = BackboneConfig("resnet12", 2)  # has DropBlock
    start = start_model(network, HeadConfig(), data(0).train, 0, None)
    without = copy.deepcopy(start)
    for module in without.embedding.modules():
        if isinstance(module, DropBlock):
            module.keep = 1
    schedule = replace(SCHEDULE, epochs=1)
    off = update("FT dropout=off", schedule, start).state_dict()
    assert same(off, update("FT", schedule, without).state_dict())
    assert not same(off, update("FT", schedule, start).state_dict())


@pytest.mark.parametrize("head", ["prototype", "ecm"])
def test_merging_interpolates_between_old_and_new_weights(head: str) -> None:
    old, new = base(head).state_dict(), update("FT", start=base(head)).state_dict()
    merged = update("FT merge=0.25", start=base(head)).state_dict()
    for name, value in merged.items():
        if value.is_floating_point():
            expected = 0.75 * new[name].double() + 0.25 * old[name].double()
            torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-6)
        else:
            assert torch.equal(value, new[name])
    unchanged = update("FT merge=1", start=base(head)).state_dict()
    weights = {name for name, value in old.items() if value.is_floating_point()}
    assert all(torch.equal(unchanged[name], old[name]) for name in weights)
    assert same(update("FT merge=0", start=base(head)).state_dict(), new)


@pytest.mark.parametrize(("n_new", "share"), [(32, 0.15), (64, 0.0)])
def test_automatic_merging_is_by_the_classes_of_the_round(n_new: int, share: float) -> None:
    few = data(1).train
    few = replace(few, classes=few.classes[:n_new], class_rows=few.class_rows[:n_new])
    delivery = replace(data(1), train=few)
    config = TrainConfig(EpisodeShape(3, 2, 3), replace(SCHEDULE, epochs=1), 0)
    auto, fixed = (
        train_round(base(), delivery, parse_method(f"FT merge={merge}"), config).model
        for merge in ("auto", share)
    )
    assert same(auto.state_dict(), fixed.state_dict())


def test_anchors_and_validation_are_those_of_the_merged_model() -> None:
    model = update("FT merge=1")
    pool = data(1).train
    expected = base().with_anchors_of(pool).anchors_of(pool.classes)
    assert torch.equal(model.anchors_of(pool.classes), expected)
    nothing = update("FT", replace(SCHEDULE, epochs=0))  # the same network, validated
    assert model.lineage[-1].val_accuracy == nothing.lineage[-1].val_accuracy


@pytest.mark.parametrize("annealing", ["plateau", "cosine"])
@pytest.mark.parametrize("n_done", [3, 6])  # stopped in the second epoch, and after the last one
def test_a_stopped_round_merges_once(tmp_path: Path, annealing: str, n_done: int) -> None:
    schedule = replace(SCHEDULE, annealing=annealing)  # type: ignore[arg-type]
    whole = update("IDA ema=0.8 merge=0.5", schedule)
    path, done = tmp_path / "training.safetensors", 0

    def stop(n: int) -> None:
        nonlocal done
        done += n
        if done > n_done:
            raise KeyboardInterrupt

    if n_done < 6:
        with pytest.raises(KeyboardInterrupt):
            update("IDA ema=0.8 merge=0.5", schedule, checkpoint=path, tick=stop)
    else:
        update("IDA ema=0.8 merge=0.5", schedule, checkpoint=path)
    continued = update("IDA ema=0.8 merge=0.5", schedule, checkpoint=path)
    assert same(continued.state_dict(), whole.state_dict())
    assert torch.equal(continued.anchors, whole.anchors)
    with pytest.raises(KedgeError, match="other options"):  # its last epoch is merged already
        update("IDA ema=0.8 merge=0.5", replace(schedule, epochs=3), checkpoint=path)
