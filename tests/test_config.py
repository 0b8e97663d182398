"""Settings: what they accept, how they are told, and that JSON gives the same ones back."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from kedge.config import (
    BackboneConfig,
    Count,
    EpisodeShape,
    HeadConfig,
    Schedule,
    TrainConfig,
    from_dict,
    to_dict,
)
from kedge.errors import KedgeError
from kedge.experiments.experiment import Experiment

Plainly = Callable[[dict[str, str]], dict[str, dict[str, Any]]]


def again(config: Any) -> Any:
    """Through JSON, as in every file that kedge writes."""
    return from_dict(type(config), json.loads(json.dumps(to_dict(config))))


# ── episodes ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("count", "least", "most"), [(5, 5, 5), ((3, 8), 3, 8), ((4, 4), 4, 4), (2, 2, 2)]
)
def test_a_count_is_a_number_or_a_range(count: Count, least: int, most: int) -> None:
    assert EpisodeShape(n_way=count, n_shot=1).ways == (least, most)
    assert EpisodeShape(n_way=2, n_shot=count).shots == (least, most)


@pytest.mark.parametrize(
    ("ways", "shots", "said"),
    [
        (5, 1, "5-way 1-shot"),
        ((5, 10), 1, "5–10-way 1-shot"),
        (20, (1, 5), "20-way 1–5-shot"),
        ((4, 4), (2, 2), "4-way 2-shot"),
    ],
)
def test_a_shape_in_words(ways: Count, shots: Count, said: str) -> None:
    assert str(EpisodeShape(ways, shots)) == said


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((1, 5, 15), ["--n-way", "1", "at least 2"]),
        (((1, 5), 5, 15), ["--n-way", "1", "at least 2"]),
        ((5, 0, 15), ["--n-shot", "0", "at least 1"]),
        ((5, (0, 3), 15), ["--n-shot", "0", "at least 1"]),
        ((5, 5, 0), ["--n-query", "0", "at least 1"]),
        (((8, 3), 5, 15), ["--n-way", "8 3", "lesser"]),
        ((5, (5, 1), 15), ["--n-shot", "5 1", "lesser"]),
    ],
)
def test_an_impossible_shape_names_the_option(shape: tuple[Any, ...], words: list[str]) -> None:
    with pytest.raises(KedgeError) as caught:
        EpisodeShape(*shape)
    said = str(caught.value)
    assert [word for word in words if word not in said] == [], said
    assert said.endswith(".")
    assert "\n" not in said


# ── the schedule ─────────────────────────────────────────────────────────────────────────────


def test_tasks_are_uniform_unless_hard_ones_are_asked_for() -> None:
    assert Schedule().tasks == "uniform"
    assert again(Schedule(tasks="hard")).tasks == "hard"


def test_other_tasks_are_refused(plainly: Plainly) -> None:
    tried = {str(tasks): tasks for tasks in ("easy", "", "Hard", 3, None, ["hard"])}
    build = "__import__('kedge.config').config.from_dict(kedge.Schedule, {{'tasks': {!r}}})"
    said = plainly({name: build.format(tasks) for name, tasks in tried.items()})
    sentence = "KedgeError: --tasks must be uniform or hard."
    assert {name: each["said"] for name, each in said.items()} == dict.fromkeys(tried, sentence)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"epochs": 0}, "--epochs"),
        ({"episodes": 0}, "--episodes"),
        ({"val_episodes": 0}, "--val-episodes"),
        ({"lr": 0.0}, "--lr"),
        ({"lr": float("nan")}, "--lr"),
        ({"patience": -1}, "--patience"),
    ],
)
def test_an_impossible_schedule_names_the_option(change: dict[str, Any], word: str) -> None:
    with pytest.raises(KedgeError, match=word):
        Schedule(**change)


# ── through JSON and back ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "config",
    [
        EpisodeShape(),
        EpisodeShape((3, 8), (1, 5), 4),
        EpisodeShape((3, 8), 1),
        Schedule(3, 4, 5, 0.5, 0, "hard"),
        TrainConfig(EpisodeShape((2, 3), 1), Schedule(tasks="hard"), 7),
        Experiment(),
        Experiment(
            methods=("NU", "IDA lambda=0.5"),
            seeds=(3, 4),
            episode=EpisodeShape((3, 8), (1, 5)),
            backbone=BackboneConfig("resnet12", 8),
            head=HeadConfig("ecm steps=5", 1.0),
            update_ways=(2, 3),
            update_shots=1,
            test_ways=(5, (5, 10)),
            test_shots=((1, 2), 5),
        ),
    ],
    ids=str,
)
def test_json_gives_the_same_back(config: Any) -> None:
    assert again(config) == config
    assert hash(again(config)) == hash(config), "lists came back as tuples, at any depth"


def test_what_is_not_said_is_the_default() -> None:
    assert from_dict(EpisodeShape, {"n_shot": [1, 5]}) == EpisodeShape(5, (1, 5), 15)
    assert from_dict(TrainConfig, {}) == TrainConfig()


WRONG: list[tuple[type, Any, str]] = [
    (EpisodeShape, {"n_way": "many"}, "'many' must be of type int or"),
    (EpisodeShape, {"n_way": 5.0}, "5.0 must be of type int or"),
    (EpisodeShape, {"n_way": True}, "True must be of type int or"),
    (EpisodeShape, {"n_way": None}, "None must be of type int or"),
    (EpisodeShape, {"n_way": [5]}, "must be of type int or"),
    (EpisodeShape, {"n_way": [3, 5, 7]}, "must be of type int or"),
    (EpisodeShape, {"n_way": [3, "5"]}, "must be of type int or"),
    (EpisodeShape, {"n_way": [3, [5]]}, "must be of type int or"),
    (EpisodeShape, {"n_query": [1, 5]}, "must be of type int"),
    (EpisodeShape, {"n_ways": 5}, "EpisodeShape has no setting named n_ways"),
    (EpisodeShape, {"n_way": [8, 3]}, "lesser"),
    (EpisodeShape, [5, 5], "EpisodeShape must be written as names and values"),
    (Schedule, {"lr": "fast"}, "'fast' must be of type float"),
    (Schedule, {"lr": True}, "True must be of type float"),
    (Schedule, {"val_episodes": -2}, "--val-episodes is -2: it must be at least 1"),
    (Schedule, {"epochs": 2.5}, "2.5 must be of type int"),
    (BackboneConfig, {"backbone": 4}, "4 must be of type str"),
    (TrainConfig, {"episode": 5}, "EpisodeShape must be written as names and values"),
    (TrainConfig, {"seed": -1}, "--seed is -1"),
    (Experiment, {"seeds": 3}, "3 must be of type tuple"),
    (Experiment, {"seeds": ["a"]}, "'a' must be of type int"),
    (Experiment, {"data": 3}, "3 must be of type str or NoneType"),
    (Experiment, {"test_ways": [5, "many"]}, "'many' must be of type int or"),
    (Experiment, {"test_ways": [[5, 10, 20]]}, "must be of type int or"),
    (Experiment, {"update_shots": "one"}, "'one' must be of type int or"),
]


@pytest.mark.parametrize(("kind", "data", "said"), WRONG, ids=[str(w[1]) for w in WRONG])
def test_wrong_types_get_one_sentence(kind: type, data: Any, said: str) -> None:
    with pytest.raises(KedgeError, match=said.replace(".", r"\.")) as caught:
        from_dict(kind, data)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")


# ── shapes of an experiment ──────────────────────────────────────────────────────────────────


def test_shapes_follow_the_first_round_unless_others_are_asked_for() -> None:
    plain = Experiment(episode=EpisodeShape((3, 8), (1, 5), 4))
    assert plain.update_episode == plain.episode
    assert plain.test_shapes == (plain.episode,)
    other = Experiment(
        episode=plain.episode, update_shots=1, test_ways=(3, (5, 10)), test_shots=(1, 5)
    )
    assert other.update_episode == EpisodeShape((3, 8), 1, 4)
    assert other.test_shapes == (
        EpisodeShape(3, 1, 4),
        EpisodeShape((5, 10), 1, 4),
        EpisodeShape(3, 5, 4),
        EpisodeShape((5, 10), 5, 4),
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"update_ways": 0}, "--update-ways is 0"),
        ({"update_ways": 1}, "--update-ways is 1"),
        ({"update_shots": 0}, "--update-shots is 0"),
        ({"update_shots": (3, 1)}, "lesser"),
        ({"test_ways": (5, 1)}, "--test-ways is 1"),
        ({"test_shots": (0,)}, "--test-shots is 0"),
        ({"test_ways": (5, 10, 5)}, "twice"),
        ({"test_shots": (1, 1)}, "twice"),
    ],
)
def test_impossible_shapes_of_updates_and_tests_are_refused(
    change: dict[str, Any], said: str
) -> None:
    with pytest.raises(KedgeError, match=said):
        Experiment(**change)
