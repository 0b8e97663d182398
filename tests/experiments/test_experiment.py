"""Settings of an experiment: what is accepted, and which episodes follow from them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kedge.benchmarks import get_protocol
from kedge.benchmarks.base import Benchmark, Split
from kedge.config import BackboneConfig, EpisodeShape, HeadConfig
from kedge.data.drawings import load_drawings
from kedge.errors import KedgeError
from kedge.experiments.experiment import Experiment, check_experiment
from kedge.utils.config_io import to_dict

SMALL = Experiment(episode=EpisodeShape(n_way=3, n_shot=1, n_query=2))


def test_values_from_python_become_values_of_json() -> None:
    given = Experiment(
        seeds=range(2), eval_episodes=np.int64(40), test_ways=[5, (3, np.int64(8))], data=Path("x")
    )
    assert (given.seeds, given.test_ways) == ((0, 1), (5, (3, 8)))
    assert json.dumps([given.eval_episodes, given.data]) == '[40, "x"]'
    assert json.loads(json.dumps(to_dict(given)))["test_ways"] == [5, [3, 8]]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"protocol": "imagenet"}, r"'imagenet'.*drawings"),
        ({"methods": ()}, "--methods"),
        ({"methods": ("IDA", "ida")}, "twice"),
        ({"methods": ("LwF",)}, r"'LwF'.*IDA"),
        ({"seeds": (-1,)}, "--seeds"),
        ({"seeds": (0, 0)}, "twice"),
        ({"seeds": 0}, "--seeds is 0"),
        ({"eval_episodes": 1}, "--eval-episodes"),
        ({"update_ways": 1}, "--update-ways is 1"),
        ({"update_shots": (3, 1)}, "--update-shots"),
        ({"test_ways": (5, 1)}, "--test-ways is 1"),
        ({"test_ways": ("5",)}, "--test-ways"),
        ({"test_shots": (1, 1)}, "twice"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_impossible_settings_are_refused_when_built(change: dict[str, Any], word: str) -> None:
    with pytest.raises(KedgeError, match=word) as caught:
        replace(SMALL, **change)
    assert "\n" not in str(caught.value)


def test_shapes_are_those_of_the_first_round_unless_others_are_given() -> None:
    plain = Experiment(episode=EpisodeShape((3, 8), (1, 5), 4))
    assert plain.update_episode == plain.episode
    assert plain.test_shapes == (plain.episode,)
    other = replace(plain, update_shots=1, test_ways=(3, (5, 10)), test_shots=(1, 5))
    assert other.update_episode == EpisodeShape((3, 8), 1, 4)
    ways_and_shots = [(3, 1), ((5, 10), 1), (3, 5), ((5, 10), 5)]
    assert other.test_shapes == tuple(EpisodeShape(k, s, 4) for k, s in ways_and_shots)


def test_every_pool_is_tested_in_every_shape(few: dict[int, str]) -> None:
    """The first shape has no name, so that a pool keeps its name when shapes are added."""
    pools = get_protocol(few[2]).benchmark(0).test_pools(1)
    specs = replace(SMALL, test_ways=(3, 2), test_shots=(1, (1, 2))).eval_specs(pools)
    suffixes = ["", " at 2-way 1-shot", " at 3-way 1–2-shot", " at 2-way 1–2-shot"]
    names = [f"{pool}{suffix}" for suffix in suffixes for pool in ("old", "new", "unseen")]
    assert [spec.name for spec in specs] == names
    shapes = [EpisodeShape(k, s, 2) for s in (1, (1, 2)) for k in (3, 2)]
    assert [spec.shape for spec in specs] == [shape for shape in shapes for _ in range(3)]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"episode": EpisodeShape(3, 20, 15)}, "images"),
        ({"test_ways": (5,)}, "4 class"),
        ({"update_ways": (3, 5)}, "4 class"),
        ({"test_shots": (1, 9)}, "images"),
        ({"backbone": BackboneConfig("vgg")}, "'vgg'"),
        ({"head": HeadConfig("ecm stepz=5")}, "stepz"),
        ({"methods": ("EIML exemplars=2",), "update_shots": 2}, "EIML"),
    ],
)
def test_what_cannot_work_is_found_before_training(
    change: dict[str, Any], word: str, few: dict[int, str]
) -> None:
    possible = replace(SMALL, protocol=few[2])
    assert len(check_experiment(possible).classes) == 16
    with pytest.raises(KedgeError, match=word):
        check_experiment(replace(possible, **change))


def test_settings_are_chosen_without_unseen_classes() -> None:
    plain = replace(SMALL, protocol="drawings-random")
    usual, tuning = (each.benchmark(3) for each in (plain, replace(plain, test_on="validation")))
    chosen, measured = tuning.split.val, tuning.split.unseen["unseen"]
    assert chosen + measured == usual.split.val
    assert len(chosen) == len(measured)
    assert tuning.split.rounds == usual.split.rounds
    [unseen] = [pool for pool in tuning.test_pools(1) if pool.name == "unseen"]
    assert unseen.classes == measured
    assert tuning.round_data(1).val.classes == chosen


def test_a_protocol_that_validates_on_trained_classes_has_none_to_choose_by() -> None:
    split = Split(0, (("a", "b"), ("c",)), ("a", "b"), {"unseen": ("d",)}, 1)
    with pytest.raises(KedgeError, match="--test-on validation"):
        Benchmark(load_drawings(), split).on_validation_classes()
