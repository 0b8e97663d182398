"""Settings: what they accept, what they infer from data, and that JSON gives the same back."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kedge.config import (
    BackboneConfig,
    EpisodeOptions,
    EpisodeShape,
    HeadConfig,
    RoundOptions,
    Schedule,
    TrainConfig,
    TrainOptions,
    options_from,
)
from kedge.defaults import (
    PRETRAINED_SHAPE,
    DataSummary,
    infer_backbone,
    infer_head,
    infer_round,
    usual_shape,
)
from kedge.errors import KedgeError
from kedge.experiments.experiment import Experiment
from kedge.utils.config_io import from_dict, to_dict


@pytest.mark.parametrize(
    ("kind", "values", "option"),
    [
        (EpisodeShape, {"n_way": 1}, "--n-way is 1"),
        (EpisodeShape, {"n_way": (8, 3)}, "--n-way: .*8 3"),
        (EpisodeShape, {"n_shot": 0}, "--n-shot is 0"),
        (EpisodeShape, {"n_query": 0}, "--n-query is 0"),
        (Schedule, {"epochs": -1}, "--epochs"),
        (Schedule, {"lr": 0.0}, "--lr"),
        (Schedule, {"lr": float("nan")}, "--lr"),
        (Schedule, {"tasks_per_step": 0}, "--tasks-per-step"),
        (Schedule, {"episodes": 10, "tasks_per_step": 3}, "--tasks-per-step"),
        (BackboneConfig, {"width": 0}, "--width"),
        (HeadConfig, {"temperature": 0.0}, "--temperature"),
        (TrainConfig, {"seed": -1}, "--seed"),
        # Options are validated before any image is read.
        (EpisodeOptions, {"n_way": 1}, "--n-way"),
        (RoundOptions, {"epochs": -1}, "--epochs"),
        (TrainOptions, {"width": 5000}, "--width"),
    ],
)
def test_impossible_values_name_the_option(kind: Any, values: dict[str, Any], option: str) -> None:
    with pytest.raises(KedgeError, match=option):
        kind(**values)


# ── JSON ─────────────────────────────────────────────────────────────────────────────────────

RANGES = EpisodeShape((3, 8), (1, 5), 4)


@pytest.mark.parametrize(
    "config",
    [
        RANGES,
        TrainConfig(RANGES, Schedule(3, 4, 5, 0.5, 0, "hard", 2), 7),
        Experiment(
            methods=("NU", "IDA lambda=0.5"),
            seeds=(3, 4),
            episode=RANGES,
            backbone=BackboneConfig("resnet12", 8),
            head=HeadConfig("ecm inner_steps=5", 1.0),
            update_ways=(2, 3),
            test_ways=(5, (5, 10)),
            test_shots=((1, 2), 5),
        ),
    ],
    ids=lambda config: type(config).__name__,
)
def test_json_gives_the_same_back(config: Any) -> None:
    again = from_dict(type(config), json.loads(json.dumps(to_dict(config))))
    assert again == config
    assert hash(again) == hash(config), "lists came back as tuples, at any depth"


def test_renamed_fields_keep_their_names_in_files() -> None:
    saved = to_dict(Schedule(sampling="hard", tasks_per_step=4))
    assert (saved["tasks"], saved["batch"]) == ("hard", 4)
    assert "sampling" not in saved
    for names in (("tasks", "batch"), ("sampling", "tasks_per_step")):
        assert from_dict(Schedule, dict(zip(names, ("hard", 4), strict=True))) == Schedule(
            sampling="hard", tasks_per_step=4
        )


def test_missing_settings_are_the_defaults() -> None:
    assert from_dict(EpisodeShape, {"n_shot": [1, 5]}) == EpisodeShape(5, (1, 5), 15)
    assert from_dict(TrainConfig, {}) == TrainConfig()


@pytest.mark.parametrize(
    ("kind", "data", "word"),
    [
        (EpisodeShape, {"n_way": "many"}, "'many'"),
        (EpisodeShape, {"n_way": True}, "True"),
        (EpisodeShape, {"n_way": [3, 5, 7]}, "n_way is .3, 5, 7."),
        (EpisodeShape, {"n_query": [1, 5]}, "n_query"),
        (EpisodeShape, {"n_ways": 5}, "n_ways"),
        (EpisodeShape, [5, 5], "EpisodeShape"),
        (Schedule, {"lr": "fast"}, "'fast'"),
        (Schedule, {"tasks": "easy"}, "sampling"),
        (TrainConfig, {"episode": 5}, "EpisodeShape"),
        (Experiment, {"seeds": ["a"]}, "'a'"),
        (Experiment, {"test_ways": [[5, 10, 20]]}, "test_ways"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_wrong_types_in_json_are_one_sentence(kind: type, data: Any, word: str) -> None:
    with pytest.raises(KedgeError, match=word) as caught:
        from_dict(kind, data)
    assert "\n" not in str(caught.value)


# ── options ──────────────────────────────────────────────────────────────────────────────────


def test_options_take_numpy_numbers_and_name_wrong_types() -> None:
    options = options_from(TrainOptions, {"n_way": (np.int8(2), np.int64(3)), "lr": np.float32(1)})
    assert options == TrainOptions(n_way=(2, 3), lr=1.0)
    assert json.dumps(to_dict(options))
    wrong = {"seed": "a", "width": 8.0, "head": 3, "temperature": "x", "n_way": 2.5, "lr": "x"}
    for name, value in wrong.items():
        with pytest.raises(KedgeError, match=f"--{name.replace('_', '-')} is "):
            options_from(TrainOptions, {name: value})
    with pytest.raises(KedgeError, match=r"'n_ways'.*n_way, "):
        options_from(RoundOptions, {"n_ways": 5})


@pytest.mark.parametrize(
    ("n_images", "size", "gpu", "backbone", "width", "reason"),
    [
        (100_000, 84, True, "resnet12", 64, "GPU"),
        (100_000, 84, False, "conv4", 32, "no GPU"),
        (100_000, 28, False, "conv4", 64, "no GPU"),
        (100_000, 28, True, "conv4", 64, "28 px"),
        (300, 84, True, "conv4", 64, "300 images"),
    ],
)
def test_network_suits_images_and_device(
    n_images: int, size: int, gpu: bool, backbone: str, width: int, reason: str
) -> None:
    data = DataSummary(n_images=n_images, image_size=size, gpu=gpu)
    config, reasons = infer_backbone(TrainOptions(), data)
    assert config == BackboneConfig(backbone, width)
    assert [line.split(":")[0] for line in reasons] == [
        f"--backbone {backbone}",
        f"--width {width}",
    ]
    assert reason in reasons[0]
    given = TrainOptions(backbone="resnet12-wide", width=7)
    assert infer_backbone(given, data) == (BackboneConfig("resnet12-wide", 7), [])


def test_schedule_grows_with_the_classes_and_with_a_gpu() -> None:
    def steps(n_classes: int, gpu: bool) -> int:
        config, [reason] = infer_round(RoundOptions(), DataSummary(n_classes=n_classes, gpu=gpu))
        schedule = config.schedule
        assert reason.startswith(f"--epochs {schedule.epochs} --episodes {schedule.episodes}: ")
        return schedule.epochs * schedule.episodes

    on_cpu, on_gpu = ([steps(n, gpu) for n in (6, 60, 6000)] for gpu in (False, True))
    assert on_cpu == sorted(set(on_cpu))
    assert all(fast > slow for fast, slow in zip(on_gpu, on_cpu, strict=True))
    assert on_cpu[-1] <= 4000  # minutes, not hours


def test_given_schedule_is_not_changed() -> None:
    data = DataSummary(n_classes=20, shape=RANGES)
    config, reasons = infer_round(RoundOptions(epochs=3, episodes=4, lr=0.5, seed=6), data)
    assert config == TrainConfig(RANGES, Schedule(3, 4, 200, 0.5), 6)
    assert reasons == []
    config, [reason] = infer_round(RoundOptions(epochs=3, tasks_per_step=7), data)
    assert config.schedule.epochs == 3
    assert config.schedule.episodes % 7 == 0
    assert reason.startswith(f"--episodes {config.schedule.episodes}: ")


def test_photographs_get_a_pretrained_network_and_gentle_settings() -> None:
    photographs = DataSummary(n_images=300, image_size=160, photographs=True, pretrained=True)
    config, [why] = infer_backbone(TrainOptions(), photographs)
    assert config.backbone == "efficientnet-lite0"
    assert "photographs" in why
    head, [why] = infer_head(TrainOptions(), photographs)
    assert head.head == "unit"
    assert infer_head(TrainOptions(head="ecm"), photographs)[0] == HeadConfig("ecm", 2.0)
    assert usual_shape(photographs) == PRETRAINED_SHAPE
    first, reasons = infer_round(RoundOptions(), photographs)
    schedule = first.schedule
    assert (schedule.train, schedule.batch_norm, schedule.annealing) == ("last", "frozen", "cosine")
    assert schedule.lr < Schedule().lr
    assert all(": " in reason for reason in reasons)
    later = replace(photographs, last_train="all")
    config, _ = infer_round(RoundOptions(), later)
    assert config.schedule.train == "all"
    steps = (each.schedule.epochs * each.schedule.episodes for each in (config, first))
    assert next(steps) < next(steps)
    assert config.schedule.lr < schedule.lr, "so that anchors of earlier rounds stay true"
    config, _ = infer_round(RoundOptions(train="none"), later)
    assert config.schedule.epochs == 0
    with pytest.raises(KedgeError, match="--epochs 2: no layer trains"):
        infer_round(RoundOptions(epochs=2), replace(photographs, last_train="none"))
