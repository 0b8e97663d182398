"""Which of a user's images train and which validate, for any number of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from kedge.config import EpisodeOptions, EpisodeShape, RoundOptions
from kedge.data.table import ImageTable
from kedge.episodes import train_val_split
from kedge.episodes.sampler import check_pool
from kedge.episodes.train_val_split import (
    MAX_VAL_IMAGES,
    TrainValSplit,
    open_validation,
    select_test_part,
    select_test_pool,
    select_train_part,
    split_train_val,
)
from kedge.errors import KedgeError

FREE = EpisodeOptions()


def images(counts: Sequence[int], prefix: str = "class") -> ImageTable:
    names = [f"{prefix} {i:04}" for i in range(len(counts))]
    pixels = np.zeros((sum(counts), 1, 16, 16), np.uint8)
    return ImageTable.build(pixels, np.repeat(np.arange(len(counts)), counts), names, "own")


def split_of(counts: Sequence[int], options: EpisodeOptions = FREE, seed: int = 0) -> TrainValSplit:
    """A split, checked for what must hold of any."""
    split = split_train_val(images(counts), None, options, seed)
    check_pool(split.train, split.shape)
    check_pool(split.val, split.shape)
    rows = np.concatenate([split.train.rows, split.val.rows])
    assert len(set(rows.tolist())) == len(rows), "an image trains and validates"
    needed = len(split.val.classes) * (split.shape.shots[1] + split.shape.n_query)
    assert len(split.val) <= max(MAX_VAL_IMAGES, needed)
    return split


@pytest.mark.parametrize(
    ("n_classes", "n_images", "val", "shape"),
    [
        (6, 5, "images", (5, 1, 1)),
        (2, 4, "images", (2, 1, 1)),
        (6, 3, "classes", (3, 1, 2)),  # too few images to divide those of a class
        (20, 40, "images", (10, 5, 5)),
        (29, 80, "images", (5, 5, 15)),
        (30, 80, "classes", (5, 5, 15)),
        (40, 5, "classes", (5, 2, 3)),
        (6000, 5, "classes", (20, 2, 3)),
        (6, 5000, "images", (5, 5, 15)),
    ],
)
def test_any_number_of_classes_and_images(
    n_classes: int, n_images: int, val: str, shape: tuple[int, int, int]
) -> None:
    split = split_of([n_images] * n_classes)
    assert split.shape == EpisodeShape(*shape)
    if val == "images":
        assert split.train.classes == split.val.classes
        assert len(split.train.classes) == n_classes
        assert len(split.train) >= len(split.val)
    else:
        assert len(set(split.train.classes + split.val.classes)) == n_classes
        assert len(split.val.classes) <= n_classes / 2
    reasons = " ".join(split.reasons)
    for option in ("--n-way", "--n-shot", "--n-query", "validation: "):
        assert reasons.count(option) == 1


@pytest.mark.parametrize(("n_images", "n_val"), [(120, 30), (80, 20), (4, 2)])
def test_a_quarter_of_each_class_validates_or_what_an_episode_needs(
    n_images: int, n_val: int
) -> None:
    split = split_of([n_images] * 6)
    assert [len(rows) for rows in split.val.class_rows] == [n_val] * 6
    assert [len(rows) for rows in split.train.class_rows] == [n_images - n_val] * 6


def test_small_classes_are_left_out_and_reported() -> None:
    split = split_of([40] * 20 + [2])
    assert "class 0020" not in split.train.classes + split.val.classes
    assert any("'class 0020' with 2" in line for line in split.reasons)
    split = split_of([60] * 50 + [3, 2, 4])
    assert len(split.train.classes) + len(split.val.classes) == 50
    assert any(line.startswith("3 of 53 classes") and "0051" in line for line in split.reasons)
    assert not any("too few images" in line for line in split_of([40] * 20).reasons)
    split = split_of([12] * 6 + [1] * 60)  # a long tail costs the others nothing
    assert len(split.train.classes) == 6
    assert split.train.classes == split.val.classes


def test_given_numbers_are_neither_changed_nor_explained() -> None:
    split = split_of([12] * 6, EpisodeOptions(3, 2, 3))
    assert split.shape == EpisodeShape(3, 2, 3)
    assert not any(line.startswith("--") for line in split.reasons)
    assert split_of([12] * 6, EpisodeOptions(n_way=(2, 3))).shape.n_way == (2, 3)
    split = split_of([100] * 40, EpisodeOptions(n_way=15))
    assert split.train.classes == split.val.classes, "15 of 40 classes are too many to set apart"
    assert len(split_of([100] * 60, EpisodeOptions(n_way=15)).val.classes) == 15


def test_split_depends_on_the_seed_alone() -> None:
    for counts in ([40] * 8, [40] * 60):
        rows, again, other = (split_of(counts, seed=seed).val.rows.tolist() for seed in (0, 0, 1))
        assert rows == again
        assert rows != other


@pytest.mark.parametrize("counts", [[40, 5, 5], [400, 4, 4, 1]])
def test_one_large_class_does_not_exclude_the_others(counts: list[int]) -> None:
    assert len(split_of(counts).train.classes) == 3
    table, val = images([40] * 6), images(counts, "other")
    for one, other in ((table, val), (val, table)):
        split = split_train_val(one, other, FREE, 0)
        assert min(len(split.train.classes), len(split.val.classes)) >= 3


@pytest.mark.parametrize(
    ("counts", "options", "words"),
    [
        ([40], {}, ["own: it has 1 class", "add classes"]),
        ([40] * 6, {"n_way": 7}, ["6 classes", "7", "--n-way"]),
        ([1, 1, 1], {}, ["1 image", "needs 2", "add images"]),
        ([3, 3], {}, ["3 images", "0 of 2 classes"]),
        ([12] * 6, {"n_way": 3, "n_shot": 9, "n_query": 4}, ["12 images", "13", "--n-shot"]),
        ([12] * 3, {"n_query": 11}, ["12 images", "needs 12", "--n-query"]),
    ],
)
def test_too_few_images_are_counted(
    counts: list[int], options: dict[str, int], words: list[str]
) -> None:
    with pytest.raises(KedgeError) as caught:
        split_train_val(images(counts), None, EpisodeOptions(**options), 0)
    assert [word for word in words if word not in str(caught.value)] == [], caught.value


# ── validation images that are given ─────────────────────────────────────────────────────────


def test_given_validation_images_leave_all_others_to_train_but_a_fifth() -> None:
    table, val = images([40] * 5 + [21]), images([10] * 3 + [1], "other")
    split = split_train_val(table, val, FREE, 0)
    assert split.held_back.counts.tolist() == [8] * 5 + [4]
    assert not set(split.held_back.rows.tolist()) & set(split.train.rows.tolist())
    assert len(split.train) + len(split.held_back) == len(table)
    assert split.val.classes == val.classes[:3]
    assert split.shape == EpisodeShape(3, 5, 5)
    for counts in ([1, 1, 1], [40], [40, 1, 1]):
        with pytest.raises(KedgeError, match="own: "):
            split_train_val(table, images(counts, "other"), FREE, 0)


@pytest.mark.parametrize(("size", "n"), [(9, 0), (10, 2), (80, 16), (200, 25)])
def test_as_many_images_are_held_back_as_tell_something_and_no_more(size: int, n: int) -> None:
    """A fifth of a class of 10 or more, and at most 1000 of all."""
    split = split_train_val(images([size] * 40), None, RoundOptions(n_shot=1, n_query=1), 0)
    assert split.few_shot.classes, "whole classes validate"
    assert split.held_back.counts.tolist() == [n] * 40
    assert not set(split.held_back.rows.tolist()) & set(split.train.rows.tolist())


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    notes: list[str] = []
    monkeypatch.setattr(train_val_split.progress, "note", notes.append)
    return notes


def with_parts(table: ImageTable, *parts: str) -> ImageTable:
    """The classes in turn in each of the parts."""
    part = (table.labels % len(parts)).to(torch.uint8)
    return replace(table, parts=parts, part=part)


def test_each_purpose_uses_its_own_part(notes: list[str]) -> None:
    table = images([10] * 9)
    split = with_parts(table, "train", "val", "test")
    train, val = select_train_part(split)
    assert (train.classes, val.classes) == (table.classes[0::3], table.classes[1::3])
    assert select_test_part(split).classes == table.classes[2::3]
    assert [("train" in note, "val" in note, "test" in note) for note in notes] == [
        (True, True, False),
        (False, False, True),
    ]
    assert select_train_part(split, validate=False)[1] is None
    assert select_train_part(table) == (table, None)
    assert select_test_part(table) is table
    without = with_parts(table, "train", "val")
    assert select_test_part(without).classes == table.classes[1::2], "never what was trained on"


def test_the_test_part_never_validates(notes: list[str]) -> None:
    table = images([10] * 6)
    for parts, n in ((("train", "val", "test"), 20), (("train", "more", "test"), 40)):
        chosen = open_validation(with_parts(table, *parts), table)
        assert len(chosen) == n
    assert len(notes) == 2
    with pytest.raises(KedgeError, match=r"1×20×20.*1×16×16"):
        open_validation(
            ImageTable.build(np.zeros((4, 20, 20), np.uint8), [0, 0, 1, 1], "ab"), table
        )


# ── test episodes ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("counts", "shape", "n_reasons"),
    [
        ([100] * 20, (5, 5, 15), 0),
        ([5] * 6000, (5, 2, 3), 2),
        ([100] * 3, (3, 5, 15), 1),
        ([100] * 20 + [1], (5, 5, 15), 1),
        ([100] * 20 + [8], (5, 5, 3), 1),  # fewer queries, no class is left out
        ([8] * 20 + [5, 30], (5, 4, 1), 2),
    ],
)
def test_test_episodes_are_the_default_ones_where_possible(
    counts: list[int], shape: tuple[int, int, int], n_reasons: int
) -> None:
    pool, found, reasons = select_test_pool(images(counts), FREE)
    assert found == EpisodeShape(*shape)
    assert len(reasons) == n_reasons
    assert len(pool) == sum(n for n in counts if n > 1)


class Unsearched(tuple[str, ...]):
    """Names in which nothing may be searched: for each of 20,000 classes it takes seconds."""

    def index(self, *args: object) -> int:  # type: ignore[override]
        raise AssertionError("a search through all classes")


def test_many_classes_take_linear_time() -> None:
    n = 40
    images = torch.zeros((12 * n, 1, 16, 16), dtype=torch.uint8)
    labels = torch.arange(n).repeat_interleave(12)
    table = ImageTable(images, labels, Unsearched(f"{i:02}" for i in range(n)), "made up")
    split = split_train_val(table, None, RoundOptions(n_shot=1, n_query=1), 0)
    assert len(split.held_back) == 2 * n
    by_image = split_train_val(table, None, RoundOptions(n_way=35, n_shot=1, n_query=1), 0)
    assert len(by_image.train.classes) == n
