"""Image tables: any array layout in, the same images out, and errors for broken files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from kedge.data.table import ImageTable
from kedge.errors import KedgeError
from kedge.utils.atomic_io import save_tensors

Plainly = Callable[[dict[str, str]], dict[str, dict[str, Any]]]
RNG = np.random.default_rng(0)
COLOUR = RNG.integers(0, 256, (7, 20, 20, 3), dtype=np.uint8)  # N × H × W × C
LABELS = [2, 0, 1, 1, 0, 1, 1]  # unsorted; 2, 4 and 1 images
CLASSES = ("ape", "bee", "cat")


@pytest.fixture
def table() -> ImageTable:
    return ImageTable.build(COLOUR, LABELS, CLASSES)


@pytest.fixture
def packed(table: ImageTable, tmp_path: Path) -> Path:
    table.save(tmp_path / "images.safetensors")
    return tmp_path / "images.safetensors"


def test_images_follow_their_labels_when_they_are_sorted(table: ImageTable) -> None:
    assert table.labels.tolist() == [0, 0, 1, 1, 1, 1, 2]
    assert table.counts.tolist() == [2, 4, 1]
    assert table.rows_of("bee").tolist() == [2, 3, 4, 5]
    with pytest.raises(KedgeError, match="dog"):
        table.rows_of("dog")
    for name, places in (("ape", [1, 4]), ("bee", [2, 3, 5, 6]), ("cat", [0])):
        expected = COLOUR[places].transpose(0, 3, 1, 2)
        np.testing.assert_array_equal(table.images[table.rows_of(name)].numpy(), expected)


def test_every_layout_gives_the_same_table(table: ImageTable) -> None:
    """Also mirrored and read-only arrays, as OpenCV and memory-mapped files hand out."""
    stored = COLOUR[..., ::-1].copy()
    stored.setflags(write=False)
    for images in (COLOUR.transpose(0, 3, 1, 2), torch.from_numpy(COLOUR), stored[..., ::-1]):
        other = ImageTable.build(images, torch.tensor(LABELS), list(CLASSES))
        assert other.fingerprint == table.fingerprint
    assert (ImageTable.build(stored, LABELS, CLASSES).images == table.images.flip(1)).all()
    grey = COLOUR[..., 0]
    for images in (grey, grey[:, None], grey[..., None]):
        pixels = ImageTable.build(images, LABELS, CLASSES).images
        assert pixels.shape == (7, 1, 20, 20)
        np.testing.assert_array_equal(pixels[6, 0].numpy(), grey[0])


def test_fingerprint_sees_pixels_labels_and_names(table: ImageTable) -> None:
    pixels = COLOUR.copy()
    pixels[3, 5, 5, 1] ^= 1
    others = [
        ImageTable.build(pixels, LABELS, CLASSES),
        ImageTable.build(COLOUR, [2, 0, 1, 1, 0, 1, 2], CLASSES),
        ImageTable.build(COLOUR, LABELS, ("ape", "bee", "cow")),
    ]
    assert len({table.fingerprint, *(other.fingerprint for other in others)}) == 4


@pytest.mark.parametrize(
    ("images", "labels", "classes", "complaint"),
    [
        (COLOUR[..., :2], LABELS, CLASSES, "1 or 3 channels"),
        (COLOUR, LABELS[:6], CLASSES, "7 images but 6 labels"),
        (COLOUR, LABELS, CLASSES[:2], "labels"),
        (COLOUR, [-1, *LABELS[1:]], CLASSES, "labels"),
        (COLOUR, LABELS, ("ape", "caf\u00e9", "cafe\u0301"), "the same name"),
    ],
)
def test_inconsistent_arrays_are_refused(
    images: np.ndarray, labels: list[int], classes: tuple[str, ...], complaint: str
) -> None:
    with pytest.raises(KedgeError, match=complaint):
        ImageTable.build(images, labels, classes, "photos.npy")


def test_load_gives_back_what_was_saved(packed: Path, table: ImageTable) -> None:
    loaded = ImageTable.load(packed)
    assert torch.equal(loaded.images, table.images)
    assert torch.equal(loaded.labels, table.labels)
    assert loaded.classes == table.classes
    assert loaded.fingerprint == table.fingerprint
    assert loaded.source == str(packed)


def test_damaged_and_other_files_are_refused(packed: Path, tmp_path: Path) -> None:
    content, path = packed.read_bytes(), tmp_path / "other"
    with pytest.raises(KedgeError, match="other: there is no"):
        ImageTable.load(path)
    cases = (
        content[:0],
        content[:8],
        content[:60],
        content[:-1],
        b"text\n",
        bytes(100),
        b"\xff" * 99,
    )
    for case in cases:
        path.write_bytes(case)
        with pytest.raises(KedgeError, match=r"other: .*packed image file, or damaged") as caught:
            ImageTable.load(path)
        assert "\n" not in str(caught.value)
    save_file({"weight": torch.zeros(3)}, path)
    with pytest.raises(KedgeError, match="not a packed image file that kedge wrote"):
        ImageTable.load(path)
    save_tensors(path, {"images": torch.zeros(3)}, {"method": "EIML"})
    with pytest.raises(KedgeError, match="another file of kedge"):
        ImageTable.load(path)


IMAGES = torch.zeros(2, 1, 16, 16, dtype=torch.uint8)
TWO = torch.tensor([0, 1])
GOOD = {"format": "kedge-images-1", "classes": ["a", "b"], "source": "", "fingerprint": ""}
FORGED: dict[str, tuple[object, dict[str, torch.Tensor]]] = {
    "no labels": (GOOD, {"images": IMAGES}),
    "labels of another type": (GOOD, {"images": IMAGES, "labels": TWO.double()}),
    "label of no class": (GOOD, {"images": IMAGES, "labels": TWO * 7}),
    "images of another type": (GOOD, {"images": IMAGES.float(), "labels": TWO}),
    "classes are a number": (GOOD | {"classes": 3}, {"images": IMAGES, "labels": TWO}),
    "another format": (GOOD | {"format": "kedge-images-9"}, {"images": IMAGES, "labels": TWO}),
    "no object": ([], {"images": IMAGES, "labels": TWO}),
}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory, plainly: Plainly) -> dict[str, Any]:
    """What comes of loading each forged file, and of images that are no bytes."""
    folder = tmp_path_factory.mktemp("forged")
    expressions = {"floats": "kedge.ImageTable.build([[[0.5]]], [0], ['a'], 'floats.npy')"}
    for name, (about, tensors) in FORGED.items():
        path = folder / f"{name}.npy"
        save_file(tensors, path, {"kedge": json.dumps(about)})
        expressions[name] = f"kedge.ImageTable.load({str(path)!r})"
    return plainly(expressions)


@pytest.mark.parametrize("name", [*FORGED, "floats"])
def test_forged_files_are_refused(loaded: dict[str, Any], name: str) -> None:
    kind, _, sentence = loaded[name]["said"].partition(": ")
    assert kind == "KedgeError", loaded[name]["said"][:200]
    assert f"{name}.npy: " in sentence


def test_loading_keeps_no_file_open(packed: Path) -> None:
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else None
    tables = [ImageTable.load(packed) for _ in range(20)]
    if before is not None:
        assert len(os.listdir("/proc/self/fd")) <= before + 1
    packed.unlink()  # small files are in memory
    assert tables[0].images.shape == (7, 3, 20, 20)
