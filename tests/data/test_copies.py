"""Copies within a delivery and between two: exact ones, and the same picture saved again."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from kedge.data.compare import compare
from kedge.data.copies import MOST_BITS, MOST_PAIRS, N_WORDS, near_pairs, perceptual_hashes
from kedge.data.decode import ImageSpec
from kedge.data.decode_pool import decode_each
from kedge.data.delivery import Delivery
from kedge.data.open import open_images
from kedge.data.remarks import kind_of

# What is wrong with images is asserted by their remarks; warnings are tested in test_progress.py.
pytestmark = pytest.mark.filterwarnings("ignore::kedge.errors.KedgeWarning")

Cli = Any  # of conftest.py


def photograph(seed: int, size: tuple[int, int] = (120, 90)) -> Image.Image:
    """Coarse and fine structures, as photographs have them; no two seeds are alike."""
    rng, picture = np.random.default_rng(seed), Image.new("L", size)
    for side in (2, 4, 8, 16, 32):
        noise = Image.fromarray(rng.integers(0, 256, (side, side), np.uint8))
        picture = Image.blend(picture, noise.resize(size, Image.Resampling.BICUBIC), 0.5)
    return ImageOps.colorize(ImageOps.autocontrast(picture), "navy", "yellow")


def save(image: Image.Image, path: Path, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **options)
    return path


@pytest.fixture
def flowers(tmp_path: Path) -> Path:
    """Two parts of two classes of six pictures."""
    for i in range(12):
        part, name = "test" if i % 3 == 2 else "train", "rose" if i < 6 else "tulip"
        save(photograph(i), tmp_path / "flowers" / part / name / f"{i}.png")
    return tmp_path / "flowers"


def remarks(folder: Path) -> dict[str, str]:
    """By kind; there is at most one of each here."""
    found = open_images(folder).remarks
    assert len({kind_of(remark) for remark in found}) == len(found), found
    return {kind_of(remark): remark for remark in found}


def test_exact_copies(flowers: Path) -> None:
    train, test = flowers / "train", flowers / "test"
    assert remarks(flowers) == {}
    shutil.copy(train / "rose" / "0.png", train / "tulip" / "other.png")
    assert remarks(flowers).keys() == {"label"}
    for words in ("1 picture", "rose/0.png of 'rose'", "tulip/other.png of 'tulip'"):
        assert words in remarks(flowers)["label"]
    # The example is the first one, though hashes differ in each process.
    shutil.copy(train / "rose" / "3.png", train / "tulip" / "another.png")
    assert (
        "2 pictures are in several classes, such as train/rose/0.png" in remarks(flowers)["label"]
    )
    (train / "tulip" / "another.png").unlink()
    shutil.move(train / "tulip" / "other.png", test / "rose" / "seen.png")
    assert remarks(flowers).keys() == {"leak"}
    for words in ("1 picture", "parts", "train/rose/0.png", "test/rose/seen.png"):
        assert words in remarks(flowers)["leak"]
    (test / "rose" / "seen.png").unlink()
    # The same pixels in another file.
    save(Image.open(train / "rose" / "0.png"), train / "rose" / "again.bmp")
    assert remarks(flowers)["leak"].startswith("1 image is an exact copy")


def test_the_same_picture_saved_again(flowers: Path) -> None:
    picture = Image.open(flowers / "train" / "rose" / "0.png")
    save(picture.resize((240, 180)), flowers / "test" / "tulip" / "large.jpg", quality=50)
    assert remarks(flowers).keys() == {"note"}
    for words in ("1 pair", "rose/0.png", "tulip/large.jpg", "in different classes: 1"):
        assert words in remarks(flowers)["note"]


def variants(image: Image.Image) -> list[np.ndarray]:
    """The pixels of a picture, then of it in other qualities, formats, sizes and more light."""
    brighter = image.point(lambda value: min(255, int(1.1 * value)))
    smaller = image.resize((image.width * 2 // 3, image.height * 2 // 3), Image.Resampling.LANCZOS)
    larger = image.resize((image.width * 2, image.height * 2), Image.Resampling.BILINEAR)
    kinds = {"JPEG": (image, brighter, smaller, larger), "WEBP": (image,), "PNG": (image,)}
    files = []
    for kind, copies in reversed(kinds.items()):
        for copy in copies:
            files.append(io.BytesIO())
            copy.save(files[-1], kind, quality=50)
    return [decode_each([file.getvalue()], ImageSpec(64, 3))[0].pixels for file in files]


def test_hashes_of_copies_are_close_and_others_are_not() -> None:
    """Compared with all pairs: what an equal word finds is all there is."""
    pictures = [variants(photograph(seed)) for seed in range(50)]
    n, per_picture = 50 * len(pictures[0]), len(pictures[0])
    hashes = perceptual_hashes(np.concatenate(pictures))
    bits = np.bitwise_count(hashes[:, None] ^ hashes[None]).sum(-1)
    pairs = near_pairs(hashes)
    assert pairs.tolist() == np.argwhere(np.triu(bits <= MOST_BITS, 1)).tolist()
    assert (pairs[:, 0] // per_picture == pairs[:, 1] // per_picture).all()
    # Of each picture with a copy; of real photographs 98% and more are found.
    assert (pairs[:, 0] % per_picture == 0).sum() > 0.85 * (n - 50)
    between = near_pairs(hashes, n_first=100)
    assert between.tolist() == [[i, j] for i, j in pairs.tolist() if i < 100 <= j]


def test_thousands_of_equal_hashes_are_not_compared_with_each_other() -> None:
    hashes = np.zeros((5_000, N_WORDS), np.uint16)
    hashes[:, 0] = np.arange(5_000) % 3
    assert 0 < len(near_pairs(hashes)) <= MOST_PAIRS


@pytest.fixture
def other(flowers: Path, tmp_path: Path) -> Path:
    """A second delivery: two pictures of the first, one of them resized, and a new class."""
    folder = tmp_path / "other"
    save(Image.open(flowers / "train" / "rose" / "0.png"), folder / "tulip" / "copy.png")
    picture = Image.open(flowers / "train" / "rose" / "1.png")
    save(picture.resize((80, 60)), folder / "Rose" / "small.jpg", quality=80)
    for i in range(3):
        save(photograph(100 + i), folder / "oak" / f"{i}.png")
    (folder / "oak" / "broken.png").write_bytes(b"")
    return folder


def test_compare(cli: Cli, flowers: Path, other: Path) -> None:
    ended = cli("data", "compare", flowers, other, "--json")
    found = json.loads(ended.out)
    assert found["b"] | {"form": ""} == {
        "path": str(other),
        "form": "",
        "n_images": 6,
        "n_classes": 3,
        "n_unreadable": 1,
    }
    assert found["copies"] == [
        {"a": "train/rose/0.png", "a_class": "rose", "b": "tulip/copy.png", "b_class": "tulip"}
    ]
    assert [pair["b"] for pair in found["near_copies"]] == ["Rose/small.jpg"]
    assert found["common_classes"] == ["tulip"]
    assert found["alike_names"] == [["Rose", "rose"]]
    table = cli("data", "compare", flowers, other).out
    for words in (
        "1 of the 6 images of",
        "train/rose/0.png",
        "Rose/small.jpg",
        "1: tulip",
        "'Rose'",
    ):
        assert words in table


def test_compare_with_packed_images(flowers: Path, other: Path, tmp_path: Path) -> None:
    for size in (48, 64):
        open_images(flowers, size).save(tmp_path / f"{size}.images")
    found = compare(Delivery(tmp_path / "64.images"), Delivery(other))
    assert (len(found.copies), len(found.near_copies)) == (1, 1)
    sizes = compare(Delivery(tmp_path / "48.images"), Delivery(tmp_path / "64.images"))
    assert (sizes.same_size, len(sizes.copies), len(sizes.near_copies)) == (False, 0, 12)
