"""Episode shapes inferred from numbers of images, and that given numbers are left alone."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from kedge.config import EpisodeOptions, EpisodeShape
from kedge.episodes.shape_fit import explain_shape, fit_shape, fit_ways

FREE = EpisodeOptions()


def fitted(counts: list[int], options: EpisodeOptions = FREE) -> tuple[object, int, int]:
    """Shots, queries, and the number of classes that have enough images for them."""
    fit = fit_shape([np.array(counts)], options)
    assert all(counts[i] >= fit.images_per_class for i in fit.usable[0])
    return fit.n_shot, fit.n_query, len(fit.usable[0])


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([2] * 10, (1, 1, 10)),
        ([3] * 10, (1, 2, 10)),
        ([12] * 10, (5, 7, 10)),
        ([5000] * 10, (5, 15, 10)),
        # A few small classes are left out; many of them make all episodes small.
        ([40] * 5 + [2], (5, 15, 5)),
        ([40] * 10 + [8] * 10, (4, 4, 20)),
        ([5000] + [5] * 5999, (2, 3, 6000)),
    ],
)
def test_shots_and_queries_fit_the_images(counts: list[int], expected: tuple[int, ...]) -> None:
    assert fitted(counts) == expected


def test_given_shots_or_queries_are_kept() -> None:
    assert fitted([12] * 5, EpisodeOptions(n_shot=1)) == (1, 11, 5)
    assert fitted([12] * 5, EpisodeOptions(n_query=10)) == (2, 10, 5)
    assert fitted([12] * 5, EpisodeOptions(n_shot=(1, 4), n_query=2)) == ((1, 4), 2, 5)
    assert fitted([12] * 5 + [7], EpisodeOptions(n_shot=4, n_query=4)) == (4, 4, 5)
    for given in ({"n_shot": 12}, {"n_query": 12}, {"n_shot": 10, "n_query": 3}):
        assert fit_shape([np.array([12] * 5)], EpisodeOptions(**given)) is None


def test_two_pools_must_both_have_enough() -> None:
    fit = fit_shape([np.array([40] * 5), np.array([6] * 4 + [1])], FREE)
    assert [len(usable) for usable in fit.usable] == [5, 4]
    assert fit.images_per_class == 6


def test_ways_fill_small_episodes_but_leave_half_of_the_classes_out() -> None:
    for n_classes in (2, 5, 9, 100, 6000):
        ways = [fit_ways(FREE, images, n_classes) for images in range(2, 21)]
        assert ways == sorted(ways, reverse=True)
        assert ways[-1] == min(5, n_classes)
        assert fit_ways(EpisodeOptions(n_way=77), 2, n_classes) == 77
    assert [fit_ways(FREE, 2, n) for n in (9, 12, 24, 39, 40, 100)] == [5, 6, 12, 19, 20, 20]
    for images, n_classes in itertools.product(range(2, 21), (5, 10, 50, 1000)):
        ways = fit_ways(FREE, images, n_classes)
        assert isinstance(ways, int)
        assert ways * images <= 100, "as many images as a 5-way 5-shot episode has"


def test_every_inferred_number_has_a_reason() -> None:
    lines = explain_shape(FREE, EpisodeShape(12, 1, 4), "because")
    assert [line.split(":")[0] for line in lines] == ["--n-way 12", "--n-shot 1", "--n-query 4"]
    assert "few images" in lines[0]
    assert lines[1].endswith("because")
    default = explain_shape(FREE, EpisodeShape(), "because")
    assert [line.endswith("default") for line in default] == [True, False, True]
    assert explain_shape(EpisodeOptions(3, 2, 1), EpisodeShape(3, 2, 1), "because") == []
