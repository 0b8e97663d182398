"""The contract of every data set format: what is found in it, and that its pixels come out right.

The data sets are written by `conftest.py` beside this file, without any code of kedge's.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import kedge
from kedge.data.files import open_tree
from kedge.data.index import ImageIndex
from kedge.data.inspect import Inspection, inspect_index
from kedge.data.readers import READERS, read_index
from kedge.data.table import ImageTable

# What is wrong with images is asserted by their remarks; warnings are tested in test_progress.py.
pytestmark = pytest.mark.filterwarnings("ignore::kedge.errors.KedgeWarning")

TOLERANCE = 5  # levels by which JPEG changes the middle of a quarter


@pytest.fixture(scope="module")
def written(form: str, forms: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One data set of the format, in a folder of its own, which all tests share."""
    return forms[form](tmp_path_factory.mktemp(form))


def everything_below(path: Path) -> dict[str, tuple[int, str]]:
    """All that reading must not change."""
    root = path if path.is_dir() else path.parent
    return {
        str(file): (
            file.stat().st_mtime_ns,
            hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else "",
        )
        for file in (root, *sorted(root.rglob("*")))
    }


def middles(image: np.ndarray) -> np.ndarray:
    """Of the four quarters: all that is certain of an image that was compressed or resized."""
    high, wide = image.shape[:2]
    return image[high // 4 :: high // 2, wide // 4 :: wide // 2][:2, :2].astype(np.int64)


def by_part_and_class(table: ImageTable) -> dict[tuple[str, str], list[np.ndarray]]:
    found: dict[tuple[str, str], list[np.ndarray]] = {}
    for row, label in enumerate(table.labels.tolist()):
        part = "" if table.part is None else table.parts[int(table.part[row])]
        image = table.images[row].permute(1, 2, 0).expand(-1, -1, 3).numpy()
        found.setdefault((part, table.classes[label]), []).append(image)
    return found


def in_order(images: list[np.ndarray]) -> list[np.ndarray]:
    """By the green quarter, which says which image of a class this is, then by all of it."""

    def key(image: np.ndarray) -> list[int]:
        values = middles(image).reshape(-1).tolist()
        return [values[4], *values]

    return sorted(images, key=key)


def contents(index: ImageIndex, numbers: list[int]) -> list[bytes]:
    def content(raw: Any) -> bytes:
        raw = raw.read_bytes() if isinstance(raw, Path) else raw
        return raw if isinstance(raw, bytes) else raw.tobytes()

    return list(map(content, index.images.fetch(numbers)))


# ── each format ──────────────────────────────────────────────────────────────────────────────


def test_one_reader_recognises_it(written: Any) -> None:
    tree = open_tree(written.data)
    names = [type(reader).__name__ for reader in READERS if reader.recognises(tree)]
    assert names[0] == written.reader
    assert names[1:] in ([], ["FolderReader"])  # the most general format


def test_inspection(written: Any) -> None:
    found, counts = inspect_index(read_index(written.data)), written.counts
    assert found.path == str(written.data)
    assert found.n_images == sum(counts.values()) == found.n_seen
    assert (found.least, found.most) == (min(counts.values()), max(counts.values()))
    sizes: dict[str, int] = {}
    for images in written.images.values():
        for image in images:
            size = f"{image.shape[1]}×{image.shape[0]}"
            sizes[size] = sizes.get(size, 0) + 1
    assert found.sizes == sizes
    assert found.spec.image_size == written.side
    assert found.spec.n_channels == (1 if written.grey else 3)
    assert {p.name: (p.n_images, p.n_classes) for p in found.parts} == written.parts
    expected = (*written.says, "fewer than")
    assert len(found.remarks) == len(expected), found.remarks
    for words in expected:
        assert any(words in remark for remark in found.remarks), (words, found.remarks)


def test_index_keeps_its_contract(written: Any) -> None:
    index = read_index(written.data)
    n = len(index)
    assert n == len(index.images) == len(index.labels)
    assert dict(zip(index.classes, index.counts.tolist(), strict=True)) == written.counts
    together = contents(index, list(range(n)))
    assert all(together)
    assert [contents(index, [i])[0] for i in reversed(range(n))] == together[::-1]
    runs = [list(range(i, min(i + 4, n))) for i in range(0, n, 4)]
    assert [content for run in runs for content in contents(index, run)] == together
    assert len({index.images.name(i).strip() for i in range(n)}) == n
    for part in index.parts:
        in_part = {name for of_part, name in written.images if of_part == part}
        assert set(index.classes_of(part)) == in_part
    kept = set(index.classes[::2])
    some = index.select_classes(kept)
    rows = [i for i, label in enumerate(index.labels) if index.classes[label] in kept]
    assert [some.classes[i] for i in some.labels] == [index.classes[index.labels[i]] for i in rows]
    assert contents(some, list(range(len(some)))) == [together[i] for i in rows]


def test_pixels_are_those_that_were_written(written: Any) -> None:
    before = everything_below(written.data)
    table = kedge.open_images(written.data)
    assert everything_below(written.data) == before
    assert list(table.classes) == written.classes
    assert table.images.shape[1:] == (1 if written.grey else 3, written.side, written.side)
    found = by_part_and_class(table)
    assert found.keys() == written.images.keys()
    for key, images in written.images.items():
        for ours, theirs in zip(in_order(found[key]), in_order(images), strict=True):
            if written.lossy:
                assert np.abs(middles(ours) - middles(theirs)).max() <= TOLERANCE, key
            else:
                assert np.array_equal(ours, theirs), key


def test_stamp_follows_the_files(written: Any) -> None:
    index = read_index(written.data)
    images = {Path(index.images.name(i).split(", ")[0]) for i in range(len(index))}
    files = {file if file.is_file() else written.data for file in sorted(images)[::5]}
    if index.form == "Omniglot" and not all(map(Path.is_file, images)):
        files = set(written.data.glob("*.zip"))
    files |= {file for file in written.data.rglob("*.csv") if "tiered" not in file.name}
    for file in files:
        before, times = read_index(written.data).stamp, file.stat()
        assert read_index(written.data).stamp == before
        # Written again with the same size and time, as a copy of other data may be.
        content = file.read_bytes()
        file.unlink()
        file.write_bytes(content)
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
        assert read_index(written.data).stamp != before, file


def test_a_folder_around_it_does_not_matter(
    form: str, forms: dict[str, Any], tmp_path: Path
) -> None:
    """And images that do not belong to the format are mentioned."""
    inner = forms[form](tmp_path / "downloads" / "deeper")
    data = inner.data if inner.data.is_file() else tmp_path
    before = read_index(data)
    assert dict(zip(before.classes, before.counts.tolist(), strict=True)) == inner.counts
    assert set(before.parts) == set(inner.parts)
    if inner.data.is_file() or inner.reader == "FolderReader":
        return
    for i in range(3):
        save(tmp_path / "pets" / "cat" / f"{i}.png", i)
    after = read_index(data)
    assert list(after.classes) == inner.classes
    (remark,) = set(after.remarks) - set(before.remarks)
    assert remark.startswith("3 images skipped")
    assert remark.endswith("pets/cat/0.png")


def test_parquet_files_beside_another_format_are_named(
    forms: dict[str, Any], tmp_path: Path
) -> None:
    forms["mini-cache"](tmp_path)
    forms["parquet"](tmp_path)
    (remark,) = read_index(tmp_path).remarks
    assert remark.startswith("4 Parquet files skipped")


@pytest.mark.slow
def test_installed_command(kedge: Any, forms: dict[str, Any], tmp_path: Path) -> None:
    """Once through the real command: inspect, pack, and inspect what was packed."""
    data = forms["class-folders"](tmp_path / "pets").data
    ended = kedge("data", "inspect", data, "--json", cwd=tmp_path)
    assert json.loads(ended.out)["n_images"] == 18
    ended = kedge("data", "pack", data, cwd=tmp_path)
    assert ended.rc == 0, ended.err
    assert ended.out.startswith("pets-48px.images: 18 images of 3 classes, 3×48×48")
    packed = kedge("data", "inspect", "pets-48px.images", cwd=tmp_path)
    assert "18" in packed.out


# ── other files in place of the data ─────────────────────────────────────────────────────────

PAGE = "\n <!DOCTYPE html><html><head><title>Quota exceeded</title></head></html>"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"
REPLACEMENTS = {PAGE: "web page", POINTER: "git lfs pull", "": "empty"}
REPLACED = {  # one file of each format
    "mini-cache": "mini-imagenet-cache-val.pkl",
    "mini-category-split": "miniImageNet_category_split_test.pickle",
    "parquet": "data/validation-00000-of-00001.parquet",
    "tiered-png": "val_images_png.pkl",
    "tiered-npz": "train_images.npz",
    "cifar-100": "cifar-100-python/test",
    "omniglot-zips": "images_evaluation.zip",
    "zip": "pets.zip",
    "tar-gz": "pets.tar.gz",
    "csv-alone": "list.csv",
}


@pytest.mark.parametrize("name", REPLACED)
def test_failed_download(forms: dict[str, Any], tmp_path: Path, name: str) -> None:
    data, file = forms[name](tmp_path).data, tmp_path / REPLACED[name]
    content = file.read_bytes().rstrip(b"\0")  # with which a .tar is filled up
    for text, words in REPLACEMENTS.items():
        file.write_text(text)
        for path in {file, data}:
            with pytest.raises(kedge.KedgeError, match=words) as caught:
                read_index(path)
            assert str(caught.value).startswith(f"{file}: ")
    for share in (0.05, 0.5, 0.97) if name != "csv-alone" else ():
        file.write_bytes(content[: int(share * len(content))])
        with pytest.raises(kedge.KedgeError, match=r"truncated|damaged|again|ends") as caught:
            read_index(data)
        assert str(caught.value).startswith(f"{file}: ")


def test_unknown_folders(tmp_path: Path) -> None:
    (tmp_path / "nothing" / "cat").mkdir(parents=True)
    for name in ("nothing", "elsewhere"):
        with pytest.raises(kedge.KedgeError, match=name):
            read_index(tmp_path / name)
    save(tmp_path / "loose" / "1.png", 1)
    with pytest.raises(kedge.KedgeError, match="parent folder"):
        read_index(tmp_path / "loose")


# ── what the inspection reports ──────────────────────────────────────────────────────────────


def save(path: Path, seed: int, side: int = 20) -> Path:
    """An image of noise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), np.uint8)
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """Two classes of 25 images."""
    folder = tmp_path / "two"
    for i in range(50):
        save(folder / ("cat" if i % 2 else "dog") / f"{i:02}.png", i)
    return folder


def inspected(path: Path) -> Inspection:
    return inspect_index(read_index(path))


def test_remarks_on_images(two: Path) -> None:
    assert inspected(two).remarks == ()
    content = (two / "cat" / "01.png").read_bytes()
    (two / "cat" / "copy.png").write_bytes(content)
    assert "1 image" in inspected(two).remarks[0]
    assert "cop" in inspected(two).remarks[0]
    (two / "cat" / "copy.png").unlink()
    for bad in (content[: len(content) // 2], b"text", b"", bytes(len(content))):
        (two / "cat" / "17.png").write_bytes(bad)
        found = inspected(two)
        assert (found.n_images, found.least, found.smallest_class) == (50, 24, "cat")
        assert str(two / "cat" / "17.png") in found.remarks[0]
        assert kedge.open_images(two).counts.tolist() == [24, 25]


def test_background_is_no_class(two: Path) -> None:
    for i in range(20):
        save(two / "BACKGROUND_Google" / f"{i}.png", 100 + i)
    (remark,) = inspected(two).remarks
    assert "BACKGROUND_Google" in remark
    index = read_index(two).select_classes({"cat", "dog"})
    assert inspect_index(index).remarks == ()


def test_data_set_object(forms: dict[str, Any], tmp_path: Path) -> None:
    """An object with images and labels gives what its folder gives."""
    folder = forms["split-folders"](tmp_path / "folders")
    pairs = [
        (Image.fromarray(image), folder.classes.index(name))
        for (_, name), images in sorted(folder.images.items(), key=lambda item: item[0][1])
        for image in images
    ]
    labels = [label for _, label in pairs]
    given = kedge.open_images(([image for image, _ in pairs], labels, folder.classes))
    read = kedge.open_images(folder.data)
    assert given.classes == read.classes
    assert torch.equal(given.labels, read.labels)
    assert torch.equal(given.images, read.images)
