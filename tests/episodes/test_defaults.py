"""What is chosen where nobody has chosen, and that what was asked for is left alone."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from kedge.config import (
    BackboneConfig,
    EpisodeShape,
    Schedule,
)
from kedge.episodes.defaults import (
    BackboneWish,
    EpisodeWish,
    ScheduleWish,
    choose_backbone,
    choose_schedule,
    choose_ways,
    fit_images,
    say_shape,
)
from kedge.errors import KedgeError

FREE = EpisodeWish()


# ── network and schedule ─────────────────────────────────────────────────────────────────────


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
    chosen, reasons = choose_backbone(BackboneWish(), n_images, size, gpu)
    assert chosen == BackboneConfig(backbone, width)
    assert [line.split(":")[0] for line in reasons] == [
        f"--backbone {backbone}",
        f"--width {width}",
    ]
    assert reason in reasons[0]


def test_network_that_was_asked_for_is_left_alone() -> None:
    wish = BackboneWish("resnet12-wide", 7)
    assert choose_backbone(wish, 10, 16, gpu=False) == (BackboneConfig("resnet12-wide", 7), [])
    chosen, reasons = choose_backbone(BackboneWish("resnet12"), 10, 84, gpu=False)
    assert chosen == BackboneConfig("resnet12", 64)  # the width is that of the network
    assert len(reasons) == 1
    with pytest.raises(KedgeError, match="--width"):
        choose_backbone(BackboneWish(width=0), 10, 84, gpu=False)


def test_schedule_grows_with_the_classes_and_with_a_gpu() -> None:
    def steps(n_classes: int, gpu: bool) -> int:
        chosen, reasons = choose_schedule(ScheduleWish(), n_classes, gpu)
        assert reasons[0].startswith(f"--epochs {chosen.epochs} --episodes {chosen.episodes}: ")
        return chosen.epochs * chosen.episodes

    on_cpu, on_gpu = ([steps(n, gpu) for n in (6, 60, 6000)] for gpu in (False, True))
    assert on_cpu == sorted(set(on_cpu))
    assert all(fast > slow for fast, slow in zip(on_gpu, on_cpu, strict=True))
    assert on_cpu[-1] <= 4000  # minutes, not hours


def test_schedule_that_was_asked_for_is_left_alone() -> None:
    given = Schedule(epochs=3, episodes=4, lr=0.5)
    assert choose_schedule(given, 6000, gpu=True) == (given, [])
    chosen, reasons = choose_schedule(ScheduleWish(epochs=3, lr=0.5), 20, gpu=False)
    assert (chosen.epochs, chosen.lr) == (3, 0.5)
    assert [line.split(":")[0] for line in reasons] == [f"--episodes {chosen.episodes}"]


@pytest.mark.parametrize("batch", [1, 3, 7])
def test_episodes_are_a_multiple_of_the_batch(batch: int) -> None:
    chosen, _ = choose_schedule(ScheduleWish(batch=batch), 20, gpu=False)
    assert chosen.episodes % batch == 0


# ── episodes ─────────────────────────────────────────────────────────────────────────────────


def fitted(counts: list[int], wish: EpisodeWish = FREE) -> tuple[object, int, int]:
    """Shots, queries, and how many classes can be used."""
    fit = fit_images([np.array(counts)], wish)
    assert fit is not None
    assert all(counts[i] >= fit.need for i in fit.usable[0])
    return fit.n_shot, fit.n_query, len(fit.usable[0])


@pytest.mark.parametrize(
    ("images", "shots", "queries"),
    [(2, 1, 1), (3, 1, 2), (5, 2, 3), (8, 4, 4), (12, 5, 7), (20, 5, 15), (5000, 5, 15)],
)
def test_shots_and_queries_fit_the_images(images: int, shots: int, queries: int) -> None:
    assert fitted([images] * 10) == (shots, queries, 10)


def test_a_few_small_classes_are_left_out_and_many_make_episodes_small() -> None:
    assert fitted([40] * 19 + [2]) == (5, 15, 19)
    assert fitted([40] * 5 + [2]) == (5, 15, 5)
    assert fitted([40] * 10 + [8] * 10) == (4, 4, 20)
    assert fitted([5000] + [5] * 5999) == (2, 3, 6000)


def test_given_shots_or_queries_are_kept() -> None:
    assert fitted([12] * 5, EpisodeWish(n_shot=1)) == (1, 11, 5)
    assert fitted([12] * 5, EpisodeWish(n_query=10)) == (2, 10, 5)
    assert fitted([12] * 5, EpisodeWish(n_shot=(1, 4), n_query=2)) == ((1, 4), 2, 5)
    assert fitted([12] * 5 + [7], EpisodeWish(n_shot=4, n_query=4)) == (4, 4, 5)
    for wish in (EpisodeWish(n_shot=12), EpisodeWish(n_query=12), EpisodeShape(5, 10, 3)):
        assert fit_images([np.array([12] * 5)], wish) is None


def test_of_two_pools_both_have_room() -> None:
    fit = fit_images([np.array([40] * 5), np.array([6] * 4 + [1])], FREE)
    assert fit is not None
    assert [len(usable) for usable in fit.usable] == [5, 4]
    assert fit.need == 6


@pytest.mark.parametrize("n_classes", [2, 3, 4, 5, 6, 9, 10, 20, 100, 6000])
def test_ways_fit_the_classes(n_classes: int) -> None:
    chosen = [choose_ways(FREE, need, n_classes) for need in range(2, 21)]
    assert all(isinstance(ways, int) and 2 <= ways <= n_classes for ways in chosen)
    assert chosen == sorted(chosen, reverse=True)  # small episodes are filled up with classes
    assert chosen[-1] == min(5, n_classes)
    assert choose_ways(EpisodeWish(n_way=77), 2, n_classes) == 77


def test_more_ways_than_usual_leave_half_of_the_classes_out() -> None:
    """So that no two episodes are the same."""
    assert [choose_ways(FREE, 2, n) for n in (9, 12, 24, 39, 40, 100)] == [5, 6, 12, 19, 20, 20]


def test_an_episode_is_never_larger_than_usual() -> None:
    for need, n_classes in itertools.product(range(2, 21), (5, 10, 50, 1000)):
        ways = choose_ways(FREE, need, n_classes)
        assert isinstance(ways, int)
        assert ways * need <= 100


def test_every_number_of_an_episode_has_its_reason() -> None:
    """As usual, or why not."""
    said = {
        shape: [reason.rpartition(", ")[2] for reason in say_shape(EpisodeWish(), shape, "why")]
        for shape in (EpisodeShape(5, 5, 15), EpisodeShape(12, 1, 4), EpisodeShape(3, 5, 15))
    }
    assert list(said.values()) == [
        ["as usual", "why", "as usual"],
        ["since of each there are few images", "why", "also into what is set apart to validate"],
        ["all that there are", "why", "as usual"],
    ]
