"""Images that are given as Python objects: arrays, tensors, lists, and other people's data sets."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Subset, TensorDataset

from kedge.data.decode import ImageSpec
from kedge.data.decode_pool import decode_each
from kedge.data.in_memory import index_in_memory
from kedge.data.in_memory.objects import IN_MEMORY
from kedge.data.index import ImageIndex
from kedge.data.open import open_images
from kedge.errors import KedgeError

RNG = np.random.default_rng(0)
COLOUR = RNG.integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)
GREY = RNG.integers(0, 256, (6, 8, 8), dtype=np.uint8)
LABELS = [2, 0, 1, 1, 0, 2]


def images(found: ImageIndex, n_channels: int = 3) -> list[np.ndarray]:
    """Height×width×channels, as they come out in the end."""
    raws = found.images.fetch(range(len(found)))
    decoded = decode_each([*raws], ImageSpec(8, n_channels))
    return [each.pixels.transpose(1, 2, 0) for each in decoded]


def same(found: ImageIndex, expected: np.ndarray) -> bool:
    got = np.stack(images(found, 1 if expected.ndim == 3 else 3))
    return np.array_equal(got[..., 0] if expected.ndim == 3 else got, expected)


def named(found: ImageIndex) -> list[str]:
    return [found.classes[i] for i in found.labels]


def sentence(given: object) -> str:
    with pytest.raises(KedgeError) as caught:
        index_in_memory(given)
    said = str(caught.value)
    assert said.endswith(".")
    assert "\n" not in said
    return said


class DataSet:
    """As torchvision's are, with whatever else is asked for."""

    def __init__(self, items: Sequence[Any], **attributes: Any) -> None:
        self.items, self.asked = items, 0
        for name, value in attributes.items():
            setattr(self, name, value)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> Any:
        assert type(i) is int
        self.asked += 1
        item = self.items[i]
        if isinstance(item, Exception):
            raise item
        return item() if callable(item) else item


# ── images and labels ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (COLOUR, COLOUR),
        (GREY, GREY),
        (GREY[..., None], GREY),
        (GREY[:, None], GREY),
        (COLOUR.transpose(0, 3, 1, 2), COLOUR),
        (torch.from_numpy(COLOUR).permute(0, 3, 1, 2), COLOUR),
        (torch.from_numpy(GREY)[:, None], GREY),
        (COLOUR.astype(np.float16) / 255, COLOUR),
        ((torch.from_numpy(GREY) / 255).requires_grad_(), GREY),
        (list(COLOUR), COLOUR),
        ([Image.fromarray(image) for image in COLOUR], COLOUR),
        ([Image.fromarray(image) for image in GREY], GREY),
    ],
)
def test_layouts(given: Any, expected: np.ndarray) -> None:
    found = index_in_memory((given, LABELS))
    assert same(found, expected)
    assert named(found) == [f"class {label:04}" for label in LABELS]
    first = given[0]
    floats = "float" in str(getattr(first, "dtype", ""))
    assert any("floats" in remark for remark in found.remarks) == floats
    assert str(found.path) == "images given in memory"
    assert found.parts == ()


def test_all_values_survive_floats() -> None:
    every = np.arange(256, dtype=np.uint8).reshape(1, 16, 16)
    found = index_in_memory((torch.from_numpy(every) / 255, [0]))
    assert np.array_equal(next(found.images.fetch([0])), every[0])


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor, lambda x: np.array(x)[:, None]])
def test_labels_that_are_numbers(kind: Callable[[Any], Any]) -> None:
    assert named(index_in_memory((COLOUR, kind(LABELS))))[:2] == ["class 0002", "class 0000"]
    called = index_in_memory((COLOUR, kind(LABELS), ["x", "y", "a", "without images"]))
    assert named(called) == ["a", "x", "y", "y", "x", "a"]
    assert same(called, COLOUR)


def test_labels_that_are_names() -> None:
    names = [["ant", "bat", "cat"][label] for label in LABELS]
    for labels in (names, np.array(names), np.array(names, dtype=object)):
        for given in ((COLOUR, labels), (COLOUR, labels, ["cat", "bat", "ant", "dog"])):
            assert named(index_in_memory(given)) == names


def test_names_that_are_tuples_or_occur_twice() -> None:
    names = [("crane",), ("dog", "hound"), ("crane",)]
    found = index_in_memory((COLOUR, LABELS, names))
    assert found.classes == ("crane (0)", "crane (2)", "dog, hound")
    assert named(found)[:3] == ["crane (2)", "crane (0)", "dog, hound"]


def test_paths(tmp_path: Path) -> None:
    files = [tmp_path / f"{i}.png" for i in range(6)]
    for file, image in zip(files, COLOUR, strict=True):
        Image.fromarray(image).save(file)
    for given in (files, [str(file) for file in files], np.array([str(file) for file in files])):
        found = index_in_memory((given, LABELS))
        assert same(found, COLOUR)
        assert found.images.name(3) == str(files[3])
    files[2].unlink()
    found = index_in_memory((files, LABELS))
    assert [p == b"" for p in found.images.fetch(range(6))] == [False] * 2 + [True] + [False] * 3
    assert "no.png" in sentence(([tmp_path / "no.png"], [0]))


def test_images_of_different_sizes() -> None:
    given = [RNG.integers(0, 256, (5 + i, 9, 3), dtype=np.uint8) for i in range(3)]
    ragged = np.empty(3, dtype=object)
    ragged[:] = given
    for some in (given, ragged):
        found = index_in_memory((some, [0, 1, 0]))
        raws = list(found.images.fetch(range(3)))
        assert all(np.array_equal(a, b) for a, b in zip(raws, given, strict=True))


@pytest.mark.parametrize("mode", ["1", "LA", "P", "RGBA", "CMYK", "I;16", "YCbCr"])
def test_modes_of_pillow(mode: str) -> None:
    ramp = np.tile(np.linspace(0, 255, 8).astype(np.uint8), (8, 1))
    plain = Image.fromarray(ramp)
    image = Image.fromarray(ramp.astype(np.uint16) * 257) if mode == "I;16" else plain.convert(mode)
    (got,) = images(index_in_memory(([image], [0])))
    assert np.abs(got.astype(int) - ramp[..., None]).max() <= (255 if mode == "1" else 3)


def test_transparency_shows_white() -> None:
    clear = np.zeros((1, 8, 8, 4), dtype=np.uint8)
    for given in (clear, clear.transpose(0, 3, 1, 2), [Image.fromarray(clear[0])]):
        (got,) = images(index_in_memory((given, [0])))
        assert (got == 255).all()


def test_a_camera_that_was_turned() -> None:
    image = Image.fromarray(COLOUR[0])
    image.getexif()[0x0112] = 3
    (got,) = images(index_in_memory(([image], [0])))
    assert np.array_equal(got, COLOUR[0][::-1, ::-1])


# ── by class ─────────────────────────────────────────────────────────────────────────────────


def test_mapping(tmp_path: Path) -> None:
    path = tmp_path / "x.png"
    Image.fromarray(COLOUR[5]).save(path)
    given = {
        "cat": COLOUR[:2],
        "ant": [COLOUR[2], Image.fromarray(COLOUR[3]), torch.from_numpy(COLOUR[4]), path],
        "none": [],
    }
    found = index_in_memory(given)
    assert found.classes == ("ant", "cat")
    assert named(found) == ["cat"] * 2 + ["ant"] * 4
    assert same(found, COLOUR)
    assert [remark[-4:] for remark in found.remarks] == ["none"]
    assert found.images.name(1) == "image of 'cat', 1"
    assert found.images.name(5) == str(path)
    assert index_in_memory({3: GREY, 11: GREY}).classes == ("class 0003", "class 0011")


# ── data sets ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("attribute", ["targets", "labels", "_labels"])
def test_labels_at_hand_are_not_asked_for(attribute: str) -> None:
    items = [(Image.fromarray(COLOUR[i % 6]), i % 3) for i in range(600)]
    labels = torch.tensor([i % 3 for i in range(600)])
    given = DataSet(items, classes=["b", "c", "a"], **{attribute: labels})
    found = index_in_memory(given)
    assert given.asked < 40
    assert named(found)[:4] == ["b", "c", "a", "b"]
    assert same(found, np.concatenate([COLOUR] * 100))
    assert (found.remarks, found.images.name(17)) == ((), "item 17")


@pytest.mark.parametrize("label", [int, str, np.array, torch.tensor])
def test_labels_that_must_be_asked_for(label: Callable[[Any], Any]) -> None:
    given = DataSet([(image, label(i)) for image, i in zip(COLOUR, LABELS, strict=True)])
    found = index_in_memory(given)
    expected = [str(i) if label is str else f"class {i:04}" for i in LABELS]
    assert named(found) == expected
    assert same(found, COLOUR)


def test_labels_at_hand_that_are_wrong() -> None:
    """A `target_transform` changes what items say, but neither `targets` nor `classes`."""
    items = [(image, i + 1) for image, i in zip(COLOUR, LABELS, strict=True)]
    found = index_in_memory(DataSet(items, targets=LABELS, classes=["a", "b", "c", "d"]))
    assert named(found)[:3] == ["class 0003", "class 0001", "class 0002"]
    assert "do not fit" in found.remarks[0]
    for wrong in (LABELS[:3], [[1, 0]] * 6, "abcdef"):
        found = index_in_memory(DataSet(items, targets=wrong))
        assert named(found)[:3] == ["class 0003", "class 0001", "class 0002"]


def test_data_sets_of_torch() -> None:
    tensors = torch.from_numpy(COLOUR).permute(0, 3, 1, 2) / 255
    whole = TensorDataset(tensors, torch.tensor(LABELS))
    found = index_in_memory(whole)
    assert same(found, COLOUR)
    assert named(found)[0] == "class 0002"
    items = list(zip(COLOUR, LABELS, strict=True)) * 100
    owner = DataSet(items, targets=LABELS * 100, classes=["x", "y", "z"])
    part = Subset(owner, list(range(1, 600, 2)))
    found = index_in_memory(part)
    assert owner.asked < 40
    assert named(found)[:3] == ["x", "y", "z"]
    assert same(found, np.concatenate([COLOUR[1::2]] * 100))


def test_a_list_of_pairs_is_a_data_set() -> None:
    pairs = list(zip(COLOUR, LABELS, strict=True))
    assert same(index_in_memory(pairs), COLOUR)
    assert same(index_in_memory(tuple(pairs[:2])), COLOUR[:2])


def test_items_that_raise() -> None:
    items: list[Any] = [(image, i) for image, i in zip(COLOUR, LABELS, strict=True)] * 4
    items[0], items[7] = OSError("truncated"), ValueError("broken")
    at_hand = index_in_memory(DataSet(items, targets=LABELS * 4))
    raws = list(at_hand.images.fetch(range(24)))
    assert [i for i, raw in enumerate(raws) if isinstance(raw, bytes)] == [0, 7]
    asked = index_in_memory(DataSet(items))
    assert len(asked) == 22
    assert asked.remarks[0].startswith("2 items skipped")
    assert asked.images.name(0) == "item 1"
    assert np.array_equal(next(asked.images.fetch([6])), COLOUR[2])


def test_random_transforms_are_named() -> None:
    items = [(lambda i=i: (RNG.integers(0, 256, (8, 8), dtype=np.uint8), i)) for i in LABELS]
    found = index_in_memory(DataSet(items))
    assert "without random transforms" in found.remarks[0]
    assert found.stamp == index_in_memory(DataSet(items)).stamp


# ── what is wrong ────────────────────────────────────────────────────────────────────────────

WRONG: list[object] = [
    5,
    COLOUR,
    (COLOUR, LABELS[:-1]),
    (COLOUR[0], LABELS),
    (COLOUR[..., :2], LABELS),
    (COLOUR.astype(np.int64), LABELS),
    (COLOUR / 127.5 - 1, LABELS),
    (COLOUR * np.nan, LABELS),
    (torch.zeros(6, 3, 8, 8, dtype=torch.bfloat16), LABELS),
    (iter(COLOUR), LABELS),
    (COLOUR, "labels"),
    (COLOUR, np.eye(6)),
    (COLOUR, [0.5] * 6),
    (COLOUR, [0, 1, "x", 0, 1, 0]),
    (COLOUR, [0, 1, -1, 0, 1, 0]),
    (COLOUR, LABELS, ["a", "b"]),
    (COLOUR, LABELS, [1, 2, 3]),
    ([None] * 6, LABELS),
    ([], []),
    {},
    {"a": COLOUR[0]},
    {"a": "x.png"},
    {None: COLOUR},
    [],
    list(COLOUR),
    [("no.png", 0)],
    DataSet([TypeError("not callable")] * 9),
]


def test_wrong_things() -> None:
    for given in WRONG:
        assert str(IN_MEMORY) in sentence(given)


def test_stamps() -> None:
    def stamp(*given: Any) -> str:
        return index_in_memory(given).stamp

    again = COLOUR.copy()
    assert stamp(again, LABELS) == stamp(COLOUR, LABELS)
    assert stamp(COLOUR, [*LABELS[:-2], 2, 0]) != stamp(COLOUR, LABELS)
    assert stamp(COLOUR, LABELS, ["a", "b", "c"]) != stamp(COLOUR, LABELS)
    again[3, 4, 4, 1] ^= 1
    assert stamp(again, LABELS) != stamp(COLOUR, LABELS)
    items = list(zip(COLOUR, LABELS, strict=True))
    assert index_in_memory(items).stamp == index_in_memory(DataSet(items).items).stamp
    assert index_in_memory(items).stamp != index_in_memory(items[:-1]).stamp


def test_large_arrays_are_not_copied(tmp_path: Path) -> None:
    """A mapped array, of which the file is empty."""
    mapped = np.memmap(tmp_path / "x", np.uint8, "w+", shape=(12_000, 84, 84, 3))
    found = index_in_memory((mapped, np.arange(12_000) % 7))
    (raw,) = found.images.fetch([11_999])
    assert isinstance(raw, np.ndarray)
    assert np.shares_memory(raw, mapped)


def test_torch_is_not_imported() -> None:
    code = (
        "import sys, numpy as np; import kedge.data.in_memory.objects as g; "
        "before = 'torch' in sys.modules; "
        "g.to_raw_image(np.zeros((4, 4), np.uint8)); assert ('torch' in sys.modules) == before"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


# ── labels that are not those of the items ───────────────────────────────────────────────────


def many(relabelled: Callable[[int], int] = int) -> tuple[list[Any], list[int]]:
    """A thousand items of a hundred classes, and the labels before they are changed. What is
    changed is so rare that looking at a few items cannot find it."""
    before = [i // 10 for i in range(1000)]
    return [(COLOUR[i % 6], relabelled(label)) for i, label in enumerate(before)], before


def merged(label: int) -> int:
    return 4 if label in (5, 6, 7, 8) else label


def test_target_transform_counts() -> None:
    names = [f"n{i}" for i in range(100)]
    items, before = many(merged)
    given = DataSet(items, targets=before, classes=names, target_transform=merged)
    for each, n in ((given, 1000), (Subset(given, list(range(900))), 900)):
        found = index_in_memory(each)
        assert named(found) == [f"class {label:04}" for _, label in items[:n]]
        assert "do not fit" in found.remarks[0]  # the names are of the labels before
    items, before = many()
    found = index_in_memory(DataSet(items, targets=before, classes=names, target_transform=int))
    assert named(found) == [f"n{label}" for label in before]  # it changes none of them
    assert found.remarks == ()


class Wrapper:
    """Passes on what it has not itself, as many do."""

    def __init__(self, inner: DataSet, relabelled: Callable[[int], int]) -> None:
        self.inner, self.relabelled = inner, relabelled

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, i: int) -> Any:
        image, label = self.inner[i]
        return image, self.relabelled(label)


def test_wrapper_counts_and_not_what_is_within() -> None:
    items, before = many()
    inner = DataSet(items, targets=before, classes=[f"n{i}" for i in range(100)])
    found = index_in_memory(Wrapper(inner, merged))
    assert named(found) == [f"class {merged(label):04}" for label in before]
    assert len(found.classes) == 96
    found = index_in_memory(Wrapper(inner, int))
    assert named(found) == [f"n{label}" for label in before]


# ── a look that inverts ──────────────────────────────────────────────────────────────────────

NEGATIVE = ImageSpec(8, 1, inverted=True)


def test_originals_are_inverted_as_files_are(tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.png" for i in range(6)]
    for path, image in zip(paths, GREY, strict=True):
        Image.fromarray(image).save(path)
    deep = [Image.fromarray(image.astype(np.uint16) << 8) for image in GREY]
    encoded = [path.read_bytes() for path in paths]
    for given in (list(map(Image.fromarray, GREY)), deep, paths, encoded):
        data_set = DataSet(list(zip(given, [0] * 6, strict=True)))
        for source in ({"?": given}, (given, [0] * 6), Subset(data_set, range(6))):
            table = open_images(source, spec=NEGATIVE)
            assert np.array_equal(table.images[:, 0].numpy(), 255 - GREY)
            assert table.inverted


def test_arrays_are_not_inverted_again() -> None:
    tensor = torch.from_numpy(GREY)
    for given in (GREY, tensor, list(GREY), list(tensor), tensor / 255):
        data_set = DataSet(list(zip(given, [0] * 6, strict=True)))
        for source in ({"?": given}, (given, [0] * 6), data_set):
            table = open_images(source, spec=NEGATIVE)
            assert np.array_equal(table.images[:, 0].numpy(), GREY)
    clear = np.zeros((8, 8, 4), np.uint8)  # laid on white, and white it stays
    assert (open_images({"?": [clear]}, spec=NEGATIVE).images == 255).all()
    mixed = {"array": GREY[:1], "raw": [Image.fromarray(GREY[0])]}
    array, raw = open_images(mixed, spec=NEGATIVE).images[:, 0].numpy()
    assert np.array_equal(array, 255 - raw)
