"""Which of one's own images are practised on and which measure progress, for any number of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from kedge.config import EpisodeShape
from kedge.data.table import ImageTable
from kedge.episodes.defaults import EpisodeWish
from kedge.episodes.sampler import check_pool
from kedge.episodes.train_val_split import (
    MOST_VAL_IMAGES,
    TrainValSplit,
    split_train_val,
    test_pool,
)
from kedge.errors import KedgeError

FREE = EpisodeWish()


def images(counts: Sequence[int], prefix: str = "class") -> ImageTable:
    """Classes of so many images each."""
    names = [f"{prefix} {i:04}" for i in range(len(counts))]
    pixels = np.zeros((sum(counts), 1, 16, 16), np.uint8)
    return ImageTable.build(pixels, np.repeat(np.arange(len(counts)), counts), names, "own")


def shared(
    counts: Sequence[int], wish: EpisodeWish | EpisodeShape = FREE, seed: int = 0
) -> TrainValSplit:
    """With what holds for every way to share."""
    found = split_train_val(images(counts), None, wish, seed)
    check_pool(found.train, found.shape)
    check_pool(found.val, found.shape)
    rows = np.concatenate([found.train.rows, found.val.rows])
    assert len(set(rows.tolist())) == len(rows), "an image trains and validates"
    assert len(found.val) <= max(
        MOST_VAL_IMAGES,
        len(found.val.classes) * (found.shape.shots[1] + found.shape.n_query),
    )
    return found


@pytest.mark.parametrize(
    ("n_classes", "n_images", "apart", "shape"),
    [
        (6, 5, "images", (5, 1, 1)),
        (2, 4, "images", (2, 1, 1)),
        (6, 3, "classes", (3, 1, 2)),  # too few images to share
        (20, 40, "images", (10, 5, 5)),
        (29, 80, "images", (5, 5, 15)),
        (30, 80, "classes", (5, 5, 15)),
        (345, 100, "classes", (5, 5, 15)),
        (40, 5, "classes", (5, 2, 3)),
        (6000, 5, "classes", (20, 2, 3)),
        (40, 500, "classes", (5, 5, 15)),
        (6, 5000, "images", (5, 5, 15)),
    ],
)
def test_any_number_of_classes_and_images(
    n_classes: int, n_images: int, apart: str, shape: tuple[int, int, int]
) -> None:
    found = shared([n_images] * n_classes)
    assert found.shape == EpisodeShape(*shape)
    same = found.train.classes == found.val.classes
    assert same == (apart == "images")
    if same:
        assert len(found.train.classes) == n_classes
        assert len(found.train) >= len(found.val)
    else:
        assert len(set(found.train.classes + found.val.classes)) == n_classes
        assert len(found.val.classes) <= n_classes / 2
    options = " ".join(found.reasons)
    for option in ("--n-way", "--n-shot", "--n-query", "validation: "):
        assert options.count(option) == 1


@pytest.mark.parametrize(("n_images", "apart"), [(120, 30), (80, 20), (4, 2)])
def test_a_quarter_of_each_class_is_set_apart_or_as_much_as_an_episode_needs(
    n_images: int, apart: int
) -> None:
    found = shared([n_images] * 6)
    assert [len(rows) for rows in found.val.class_rows] == [apart] * 6
    assert [len(rows) for rows in found.train.class_rows] == [n_images - apart] * 6


def test_small_classes_are_left_out_and_that_is_said() -> None:
    found = shared([40] * 20 + [2])
    assert "class 0020" not in found.train.classes
    assert "class 0020" not in found.val.classes
    assert [line for line in found.reasons if "'class 0020' (2) has too few images" in line]
    found = shared([60] * 50 + [3, 2, 4])
    assert len(found.train.classes) + len(found.val.classes) == 50
    said = [line for line in found.reasons if "too few" in line]
    assert said[0].startswith("3 of 53 classes (such as 'class 0051' with 2) have too few images")
    assert not [line for line in shared([40] * 20).reasons if "too few images" in line]


def test_what_was_asked_for_is_neither_changed_nor_explained() -> None:
    found = shared([12] * 6, EpisodeShape(3, 2, 3))
    assert found.shape == EpisodeShape(3, 2, 3)
    assert not [line for line in found.reasons if line.startswith("--")]
    found = shared([12] * 6, EpisodeWish(n_way=(2, 3)))
    assert found.shape.n_way == (2, 3)
    assert not [line for line in found.reasons if line.startswith("--n-way")]
    found = shared([100] * 40, EpisodeWish(n_way=15))
    assert found.train.classes == found.val.classes, "15 of 40 classes are too many to spare"
    found = shared([100] * 60, EpisodeWish(n_way=15))
    assert len(found.val.classes) == 15


def test_images_to_validate_on_leave_all_others_to_train() -> None:
    table, val = images([40] * 6), images([10] * 3 + [1], "other")
    found = split_train_val(table, val, FREE, 0)
    assert len(found.train) == len(table)
    assert found.val.classes == val.classes[:3]
    assert found.shape == EpisodeShape(3, 5, 5)


def test_who_validates_follows_from_the_seed() -> None:
    for counts in ([40] * 8, [40] * 60):
        first, again, other = (shared(counts, seed=seed).val.rows.tolist() for seed in (0, 0, 1))
        assert first == again
        assert first != other


@pytest.mark.parametrize(
    ("counts", "wish", "words"),
    [
        ([40], FREE, ["own: there is 1 class", "add classes"]),
        ([40] * 6, EpisodeWish(n_way=7), ["6 classes", "needs 7", "lower --n-way"]),
        ([1, 1, 1], FREE, ["has 1 image", "2 of each class (1 shot + 1 query): add images."]),
        ([3, 3], FREE, ["has 3 images", "as many again", "0 of the 2 classes", "or add classes."]),
        ([12] * 6, EpisodeShape(3, 9, 4), ["has 12 images", "13 of each", "lower --n-shot"]),
        ([12] * 3, EpisodeWish(n_query=11), ["has 12 images", "12 of each class (1 shot + 11"]),
    ],
)
def test_too_little_is_told_as_its_owner_counts(
    counts: list[int], wish: EpisodeWish, words: list[str]
) -> None:
    with pytest.raises(KedgeError) as caught:
        split_train_val(images(counts), None, wish, 0)
    assert [word for word in words if word not in str(caught.value)] == [], caught.value


@pytest.mark.parametrize("counts", [[40, 5, 5], [400, 4, 4, 1]])
def test_one_large_class_does_not_shut_out_the_others(counts: list[int]) -> None:
    """Alone it would be worth more than all of them, but an episode needs two classes."""
    found = shared(counts)
    assert len(found.train.classes) == 3
    table, val = images([40] * 6), images(counts, "other")
    for one, other in ((table, val), (val, table)):
        both = split_train_val(one, other, FREE, 0)
        assert min(len(both.train.classes), len(both.val.classes)) >= 3
    pool, shape, _ = test_pool(images([20, 20, 2, 2, 2]), EpisodeWish(n_way=5))
    assert len(pool.classes) == shape.n_way == 5


@pytest.mark.parametrize("val", [[1, 1, 1], [40]])
def test_images_to_validate_on_must_be_enough_too(val: list[int]) -> None:
    with pytest.raises(KedgeError, match="own: "):
        split_train_val(images([40] * 6), images(val, "other"), FREE, 0)


def test_which_images_are_too_few_to_validate_on_is_told() -> None:
    few = r"needs 2 of each class .*; 2 images have 1 of the 3 classes: add images, or add classes"
    with pytest.raises(KedgeError, match=few):
        split_train_val(images([40] * 6), images([40, 1, 1], "other"), FREE, 0)


@pytest.mark.parametrize(
    ("counts", "shape", "n_unusual"),
    [
        ([100] * 20, (5, 5, 15), 0),
        ([5] * 6000, (5, 2, 3), 2),
        ([100] * 3, (3, 5, 15), 1),
        ([100] * 20 + [1], (5, 5, 15), 1),
    ],
)
def test_tests_are_the_usual_ones_where_they_can_be(
    counts: list[int], shape: tuple[int, int, int], n_unusual: int
) -> None:
    pool, chosen, unusual = test_pool(images(counts), FREE)
    assert chosen == EpisodeShape(*shape)
    assert len(unusual) == n_unusual
    assert len(pool) == sum(n for n in counts if n > 1)


def test_too_little_to_test_with_is_told() -> None:
    with pytest.raises(KedgeError, match="has 1 image, but an episode needs 2"):
        test_pool(images([1, 1]), FREE)
    with pytest.raises(KedgeError, match=r"has 20 images, .*; 2 images have 1 of the 3 classes"):
        test_pool(images([20, 1, 1]), FREE)
    with pytest.raises(KedgeError, match="there is 1 class"):
        test_pool(images([10]), FREE)
    with pytest.raises(KedgeError, match=r"2 images have 3 of the 5 .* or lower --n-way\."):
        test_pool(images([20, 20, 2, 1, 1]), EpisodeWish(n_way=5))
    with pytest.raises(KedgeError, match=r"needs 13 of each class .9 shots \+ 4 queries."):
        test_pool(images([12, 12]), EpisodeShape(2, 9, 4))


@pytest.mark.parametrize("n_tail", [23, 24, 60])
def test_a_tail_of_tiny_classes_spares_none_of_the_others(n_tail: int) -> None:
    """Of 6 classes that can be practised on all are, however many others there are."""
    found = shared([12] * 6 + [1] * n_tail)
    assert len(found.train.classes) == 6
    assert found.train.classes == found.val.classes
