"""Each form in which people have images: what is said of it, and that its pixels come out right.

The data sets are written by `conftest.py` beside this file, without any code of kedge's.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import kedge
from kedge.cli.data import _stem
from kedge.data.files.file_tree import open_tree
from kedge.data.index import ImageIndex
from kedge.data.readers import READERS, read_index
from kedge.data.table import ImageTable
from kedge.utils.text import normalize_name

TOLERANCE = 5  # levels by which JPEG changes the middle of a quarter


@pytest.fixture(scope="module")
def written(form: str, forms: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One data set of the form, in a folder of its own, which all tests share."""
    return forms[form](tmp_path_factory.mktemp(form))


@dataclass(frozen=True)
class Handled:
    """What the command said of a data set."""

    found: dict[str, Any]
    shown: str
    packed: str
    again: str
    store: Path
    of_store: dict[str, Any]


TWICE = """
import sys, kedge.cli
for words in {commands!r}:
    sys.argv = ["kedge", "data", *words]
    kedge.cli.main()
    print("\\0")
"""


@pytest.fixture(scope="module")
def handled(written: Any, ready: Any, tmp_path_factory: pytest.TempPathFactory) -> Handled:
    """The real command, in one process for all that is asked of it."""
    before = everything_below(written.data)
    out = tmp_path_factory.mktemp("packed")
    store, data = str(out / "store.images"), str(written.data)
    commands = [
        ["inspect", data, "--format", "json"],
        ["inspect", data],
        ["pack", data, "--out", store],
        ["pack", data, "--out", store],
        ["inspect", store, "--format", "json"],
    ]
    ended = ready(TWICE.format(commands=commands), cwd=out)
    assert ended.rc == 0, ended.err
    assert "Traceback" not in ended.err
    as_json, shown, packed, again, of_store, _ = ended.out.split("\0\n")
    assert everything_below(written.data) == before
    assert [path.name for path in out.iterdir()] == ["store.images"]
    return Handled(json.loads(as_json), shown, packed, again, Path(store), json.loads(of_store))


def everything_below(path: Path) -> dict[str, tuple[int, int, str]]:
    """All that could be changed by someone who should only read."""
    root = path if path.is_dir() else path.parent
    return {
        str(file): (
            file.stat().st_mtime_ns,
            file.stat().st_mode,
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


# ── each form ────────────────────────────────────────────────────────────────────────────────


def test_what_is_there_is_said(written: Any, handled: Handled) -> None:
    found, counts = handled.found, written.counts
    assert found["path"] in (str(written.data), str(written.data.parent))
    assert found["n_images"] == sum(counts.values()) == found["n_seen"]
    assert found["n_classes"] == len(counts)
    per_class = sorted(counts.values())
    assert found["least"] == per_class[0]
    assert found["median"] == np.median(per_class)
    assert found["most"] == per_class[-1]
    assert counts[found["smallest_class"]] == per_class[0]
    assert counts[found["largest_class"]] == per_class[-1]
    sizes: dict[str, int] = {}
    for images in written.images.values():
        for image in images:
            size = f"{image.shape[1]}×{image.shape[0]}"
            sizes[size] = sizes.get(size, 0) + 1
    assert found["sizes"] == sizes
    assert found["look"]["image_size"] == written.side
    assert found["look"]["n_channels"] == (1 if written.grey else 3)
    parts = {part["name"]: (part["n_images"], part["n_classes"]) for part in found["parts"]}
    assert parts == written.parts
    usual = [part for part in ("train", "val", "test", "held out") if part in parts]
    assert [part for part in parts if part in usual] == usual


def test_what_is_wrong_is_said_and_nothing_else(written: Any, handled: Handled) -> None:
    few = f"{len(written.classes)} classes have fewer than 20 images"
    remarks = handled.found["remarks"]
    assert len(remarks) == len(written.says) + 1, remarks
    for said in (*written.says, few):
        assert any(said in remark for remark in remarks), (said, remarks)
    assert not any(remark.endswith(".") for remark in remarks)


def test_table_for_people(written: Any, handled: Handled) -> None:
    first, *lines = handled.shown.splitlines()
    assert first == f"{handled.found['path']}: {handled.found['form']}"
    end = next(i for i, line in enumerate(lines) if line.startswith("  What is wrong with it"))
    assert lines[end].endswith("(all images were looked at):")
    rows: list[str] = []
    for line in lines[:end]:  # a long cell goes on in the next line
        if line.startswith("   "):
            rows[-1] += f" {line.strip()}"
        else:
            rows.append(" ".join(line.split()))
    n, classes = sum(written.counts.values()), len(written.classes)
    assert rows[:2] == [f"classes {classes}", f"images {n}"]
    titles = ("per class", "size", "split", "packed")
    assert all(row.startswith(title) for row, title in zip(rows[2:], titles, strict=True)), rows
    for part, (n, classes) in written.parts.items():
        what = "class" if classes == 1 else "classes"
        assert f"{part} {n} images of {classes} {what}" in rows[4]
    if not written.parts:
        assert rows[4] == "split none"
    remarks = [line.removeprefix("  - ").removesuffix(".") for line in lines[end + 1 :]]
    assert remarks == handled.found["remarks"]


def test_pixels_are_those_that_were_written(written: Any, handled: Handled) -> None:
    table = ImageTable.load(handled.store)
    assert list(table.classes) == written.classes
    channels = 1 if written.grey else 3
    assert table.images.shape[1:] == (channels, written.side, written.side)
    found = by_part_and_class(table)
    assert found.keys() == written.images.keys()
    for key, images in written.images.items():
        assert len(found[key]) == len(images)
        for ours, theirs in zip(in_order(found[key]), in_order(images), strict=True):
            if written.lossy:
                away = np.abs(middles(ours) - middles(theirs)).max()
                assert away <= TOLERANCE, (key, away)
            else:
                assert np.array_equal(ours, theirs), key


def test_packing(written: Any, handled: Handled) -> None:
    n, classes = sum(written.counts.values()), len(written.classes)
    channels, side = 1 if written.grey else 3, written.side
    size = f"{handled.store.stat().st_size / 1e3:.1f} kB"
    said = f"{handled.store}: {n} images of {classes} classes, {channels}×{side}×{side}, {size}"
    assert handled.packed == f"{said}\n"
    assert handled.again == f"{said}, packed before\n"


def test_packed_store_is_a_form_too(written: Any, handled: Handled) -> None:
    found, store = handled.found, handled.of_store
    for key in ("n_images", "n_classes", "least", "median", "most", "parts"):
        assert store[key] == found[key], key
    assert store["form"] == f"packed images of {found['path']}"
    assert store["sizes"] == {f"{written.side}×{written.side}": found["n_images"]}
    assert not any("checksum" in remark for remark in store["remarks"])


def test_opened_from_python_it_is_the_same(written: Any, handled: Handled) -> None:
    direct, packed = kedge.open_images(written.data), ImageTable.load(handled.store)
    assert torch.equal(direct.images, packed.images)
    assert torch.equal(direct.labels, packed.labels)
    assert (direct.classes, direct.parts) == (packed.classes, packed.parts)
    assert (direct.part is None) == (packed.part is None)
    assert direct.part is None or torch.equal(direct.part, packed.part)
    assert direct.fingerprint == packed.fingerprint


def contents(found: ImageIndex, numbers: list[int]) -> list[bytes]:
    return [
        picture.read_bytes()
        if isinstance(picture, Path)
        else picture
        if isinstance(picture, bytes)
        else picture.tobytes()
        for picture in found.images.fetch(numbers)
    ]


def test_catalogue_keeps_its_contract(written: Any) -> None:
    found = read_index(written.data)
    n = len(found)
    assert n == len(found.images) == len(found.labels) == sum(written.counts.values())
    assert list(found.classes) == written.classes
    assert dict(zip(found.classes, found.counts.tolist(), strict=True)) == written.counts
    together = contents(found, list(range(n)))
    assert all(together)
    assert [contents(found, [i])[0] for i in range(n)] == together
    assert [contents(found, [i])[0] for i in reversed(range(n))] == together[::-1]
    runs = [list(range(i, min(i + 4, n))) for i in range(0, n, 4)]
    assert [content for run in runs for content in contents(found, run)] == together
    assert contents(found, list(range(1, n, 3))) == together[1::3]
    names = [found.images.name(i) for i in range(n)]
    assert all(name.strip() for name in names)
    assert len(set(names)) == n
    for part in found.parts:
        in_part = {name for of_part, name in written.images if of_part == part}
        assert set(found.classes_of(part)) == in_part


def test_some_classes_only(written: Any) -> None:
    found = read_index(written.data)
    together = contents(found, list(range(len(found))))
    kept = set(found.classes[::2])
    some = found.select_classes(kept)
    rows = [i for i, label in enumerate(found.labels) if found.classes[label] in kept]
    assert set(some.classes) == kept
    assert [some.classes[i] for i in some.labels] == [found.classes[found.labels[i]] for i in rows]
    assert contents(some, list(range(len(some)))) == [together[i] for i in rows]
    if found.parts:
        assert [some.parts[i] for i in some.part] == [found.parts[found.part[i]] for i in rows]
    assert found.select_classes(set(found.classes)) is found
    table = kedge.open_images(written.data, classes=kept)
    assert set(table.classes) == kept
    assert len(table) == len(rows)


def test_stamp_follows_the_files(written: Any) -> None:
    found = read_index(written.data)
    images = {Path(found.images.name(i).split(", ")[0]) for i in range(len(found))}
    # The file itself, or the archive that it lies in; a few stand for all.
    files = {file if file.is_file() else written.data for file in sorted(images)[::5]}
    if found.form.startswith("Omniglot") and not all(map(Path.is_file, images)):
        files = set(written.data.glob("*.zip"))
    files |= {file for file in written.data.rglob("*.csv") if "tiered" not in file.name}
    assert files
    for file in files:
        before, times = read_index(written.data).stamp, file.stat()
        assert read_index(written.data).stamp == before
        # Written again with the same size and time, as a copy of other data may be.
        content = file.read_bytes()
        file.unlink()
        file.write_bytes(content)
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
        assert read_index(written.data).stamp != before, file


def test_one_reader_recognises_it(written: Any) -> None:
    tree = open_tree(written.data)
    names = [type(reader).__name__ for reader in READERS if reader.recognises(tree)]
    assert names[0] == written.reader
    # Folders of classes are what everything looks like that nobody else knows.
    assert names[1:] in ([], ["FolderReader"])


def test_a_folder_around_it_does_not_matter(
    form: str, forms: dict[str, Any], tmp_path: Path
) -> None:
    inner = forms[form](tmp_path / "downloads" / "deeper")
    found = read_index(inner.data if inner.data.is_file() else tmp_path)
    assert list(found.classes) == inner.classes
    assert dict(zip(found.classes, found.counts.tolist(), strict=True)) == inner.counts
    assert set(found.parts) == set(inner.parts)


def test_images_beside_a_form_are_named(form: str, forms: dict[str, Any], tmp_path: Path) -> None:
    """Class folders that nobody read would be missed too late."""
    written = forms[form](tmp_path)
    if written.data.is_file() or written.reader == "FolderReader":
        return  # nothing else was given, or these are classes as well
    before = read_index(written.data).remarks
    for i in range(3):
        save(tmp_path / "pets" / "cat" / f"{i}.png", i)
    save(tmp_path / ".pets" / "cat" / "hidden.png", 9)
    found = read_index(written.data)
    assert list(found.classes) == written.classes
    (said,) = set(found.remarks) - set(before)
    where = "are in no list" if written.reader == "ImageListReader" else "lie beside what was read ("
    assert said.startswith(f"3 images {where}")
    assert said.endswith(" and were left out, the first is pets/cat/0.png")


def test_class_folders_beside_a_benchmark_are_spoken_of(
    forms: dict[str, Any], ready: Any, tmp_path: Path
) -> None:
    forms["omniglot-zips"](tmp_path / "mixed" / "omniglot")
    for name in ("cat", "dog"):
        save(tmp_path / "mixed" / name / "0.png", 1)
    ended = ready.kedge("data", "inspect", tmp_path / "mixed")
    assert ended.rc == 0, ended.err
    assert "2 images lie beside what was read (Omniglot) and were left out" in ended.out
    assert "Nothing is wrong" not in ended.out


def test_parquet_files_beside_another_form_are_named(forms: dict[str, Any], tmp_path: Path) -> None:
    forms["mini-cache"](tmp_path)
    forms["parquet"](tmp_path)
    assert read_index(tmp_path).remarks == (
        "4 Parquet files lie beside what was read (miniImageNet as cache pickles) and were left "
        "out, the first is data/test-00000-of-00001.parquet",
    )


def test_installed_command(kedge: Any, forms: dict[str, Any], tmp_path: Path) -> None:
    """Once without any short cut of the tests."""
    found = forms["class-folders"](tmp_path / "pets")
    ended = kedge("data", "pack", found.data, cwd=tmp_path)
    assert ended.rc == 0, ended.err
    size = f"{(tmp_path / 'pets-48px.images').stat().st_size / 1e3:.1f} kB"
    assert ended.out == f"pets-48px.images: 18 images of 3 classes, 3×48×48, {size}\n"


@pytest.mark.parametrize(
    "ending", ["csv", "jsonl", "tsv", "parquet", "pkl", "npz", "zip", "tar", "TAR.gz", "tbz2"]
)
def test_the_name_of_a_store_has_no_ending_of_the_file(tmp_path: Path, ending: str) -> None:
    (tmp_path / "pets.v2").mkdir()
    (tmp_path / f"pets.v2.{ending}").touch()
    assert _stem(tmp_path / f"pets.v2.{ending}") == _stem(tmp_path / "pets.v2") == "pets.v2"


def test_store_is_not_packed_again(forms: dict[str, Any], ready: Any, tmp_path: Path) -> None:
    store = tmp_path / "store.images"
    assert ready.kedge("data", "pack", forms["zip"](tmp_path).data, "--out", store).rc == 0
    ended = ready.kedge("data", "pack", store)
    assert ended.sentence == f"{store}: these images are packed already."


def test_data_set_object(forms: dict[str, Any], tmp_path: Path) -> None:
    """Any object with images and labels gives what its folder gives."""
    folder = forms["split-folders"](tmp_path / "folders")
    flat = [
        (Image.fromarray(image), name)
        for (_, name), images in sorted(folder.images.items(), key=lambda item: item[0][1])
        for image in images
    ]

    class DataSet:
        classes = folder.classes

        def __len__(self) -> int:
            return len(flat)

        def __getitem__(self, i: int) -> tuple[Image.Image, int]:
            if not 0 <= i < len(flat):
                raise IndexError(i)
            return flat[i][0], folder.classes.index(flat[i][1])

    given, read = kedge.open_images(DataSet()), kedge.open_images(folder.data)
    assert given.classes == read.classes
    assert torch.equal(given.labels, read.labels)
    assert torch.equal(given.images, read.images)


# ── traps ────────────────────────────────────────────────────────────────────────────────────

PAGE = "\n <!DOCTYPE html><html><head><title>Quota exceeded</title></head></html>"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"
INSTEAD = {
    "page": (PAGE, "this is a web page and not the data; the download went wrong, get it again."),
    "pointer": (
        POINTER,
        "this is a Git LFS pointer and not the data; fetch them with 'git lfs pull'.",
    ),
    "nothing": ("", "this file is empty; get it again."),
}
# The form, and that of its files which is not what it seems.
IMPOSTORS = {
    "mini-cache": "mini-imagenet-cache-val.pkl",
    "mini-category-split": "miniImageNet_category_split_test.pickle",
    "parquet": "data/validation-00000-of-00001.parquet",
    "tiered-png": "val_images_png.pkl",
    "tiered-png-bytes": "test_labels.pkl",
    "tiered-npz": "train_images.npz",
    "cifar-fs": "CIFAR_FS_test.pickle",
    "cifar-100": "cifar-100-python/test",
    "omniglot-zips": "images_evaluation.zip",
    "zip": "pets.zip",
    "tar": "pets.tar",
    "tar-gz": "pets.tar.gz",
    "csv-alone": "list.csv",
    "json-lines-alone": "list.jsonl",
}


@pytest.fixture
def inspect(ready: Any) -> Callable[..., dict[str, Any]]:
    def run(*words: str | Path) -> dict[str, Any]:
        ended = ready.kedge("data", "inspect", *words, "--format", "json")
        assert ended.rc == 0, ended.err
        return json.loads(ended.out)

    return run


@pytest.fixture
def refusal(ready: Any) -> Callable[[Path], str]:
    return lambda path: ready.kedge("data", "inspect", path).sentence


@pytest.mark.parametrize("what", INSTEAD)
@pytest.mark.parametrize("of", IMPOSTORS)
def test_something_else_in_place_of_the_data(
    forms: dict[str, Any], tmp_path: Path, of: str, what: str
) -> None:
    """Whether the file is given or the folder around it."""
    content, said = INSTEAD[what]
    written = forms[of](tmp_path)
    file = tmp_path / IMPOSTORS[of]
    file.write_text(content)
    for path in {file, written.data}:
        if path.name == "test_labels.pkl":  # which nobody would give
            continue
        with pytest.raises(kedge.KedgeError) as caught:
            read_index(path)
        assert str(caught.value) == f"{file}: {said}"


def test_web_page_in_place_of_one_list_of_several(
    forms: dict[str, Any], inspect: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    """The others are read, and the loss is said."""
    written = forms["ravi"](tmp_path)
    (tmp_path / "val.csv").write_text(PAGE)
    found = inspect(written.data)
    assert [part["name"] for part in found["parts"]] == ["train", "test"]
    assert found["remarks"][0] == (
        "1 further list lies elsewhere or has no classes and was left out: val.csv"
    )


def test_web_page_by_the_command(
    forms: dict[str, Any], refusal: Callable[[Path], str], tmp_path: Path
) -> None:
    file = tmp_path / "images.tar"
    file.write_text(PAGE)
    assert refusal(file) == f"{file}: {INSTEAD['page'][1]}"


@pytest.mark.parametrize("share", [0.05, 0.5, 0.97])
@pytest.mark.parametrize("of", [name for name in IMPOSTORS if name[-5:] != "alone"])
def test_truncated_file(forms: dict[str, Any], tmp_path: Path, of: str, share: float) -> None:
    written = forms[of](tmp_path)
    file = tmp_path / IMPOSTORS[of]
    content = file.read_bytes().rstrip(b"\0")  # with which a .tar is filled up
    file.write_bytes(content[: int(share * len(content))])
    with pytest.raises(kedge.KedgeError) as caught:
        read_index(written.data)
    said = str(caught.value)
    assert said.startswith(f"{file}: ")
    assert any(word in said for word in ("truncated", "damaged", "get it again", "ends")), said


def test_truncated_archive_by_the_command(
    forms: dict[str, Any], refusal: Callable[[Path], str], tmp_path: Path
) -> None:
    file = forms["tar-gz"](tmp_path).data
    file.write_bytes(file.read_bytes()[:-20])
    said = refusal(file)
    assert said.startswith(f"{file}: this archive is truncated or damaged, or not an archive (")
    assert said.endswith("); get it again.")


def save(path: Path, seed: int, side: int = 20) -> Path:
    """A photograph, if one does not look too closely."""
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


def test_nothing_is_wrong(two: Path, ready: Any) -> None:
    ended = ready.kedge("data", "inspect", two)
    assert ended.rc == 0
    assert ended.out.splitlines()[-1] == ("  Nothing is wrong with it (all images were looked at).")


def test_classes_with_few_images(two: Path, inspect: Callable[..., dict[str, Any]]) -> None:
    for i in range(19):
        save(two / "fox" / f"{i}.png", 100 + i)
    found = inspect(two)
    assert found["remarks"] == [
        "1 class has fewer than 20 images, which 5 shots and 15 queries need; the fewest has "
        "'fox' (19): 'kedge train' makes do with fewer, to 'kedge bench' give --n-shot or --n-query"
    ]
    assert (found["least"], found["median"], found["most"]) == (19, 25, 25)


def test_exact_copies_within_a_class(
    two: Path, inspect: Callable[..., dict[str, Any]], ready: Any, tmp_path: Path
) -> None:
    first = (two / "cat" / "01.png").read_bytes()
    for i in range(3):
        (two / "cat" / f"copy {i}.png").write_bytes(first)
    (two / "dog" / "not a copy within.png").write_bytes(first)
    said = (
        "3 images are exact copies of another of the same class (in 'cat'): an example to learn "
        "from may then be asked as a query too"
    )
    assert inspect(two)["remarks"] == [said]
    ended = ready.kedge("data", "pack", two, "--out", tmp_path / "out")
    assert ended.err == f"kedge: {said}.\n"


def test_empty_folders(refusal: Callable[[Path], str], tmp_path: Path) -> None:
    folder = tmp_path / "nothing"
    folder.mkdir()
    known = "one sub-folder per class with images in it"
    said = refusal(folder)
    assert said.startswith(f"{folder}: this folder holds no form of images that kedge knows; ")
    assert known in said
    for name in ("cat", "dog"):
        (folder / name).mkdir()
    assert refusal(folder).startswith(f"{folder}: this folder holds no form of images")
    assert refusal(tmp_path / "elsewhere").startswith(f"{tmp_path / 'elsewhere'}: nothing is there")


def test_empty_folder_among_others(two: Path, inspect: Callable[..., dict[str, Any]]) -> None:
    (two / "eel").mkdir()
    found = inspect(two)
    assert found["n_classes"] == 2
    assert found["remarks"] == ["1 folder is empty and was left out: eel"]


@pytest.mark.parametrize("kind", ["half", "text", "pointer", "empty", "zeros"])
def test_damaged_image_among_many(
    two: Path, inspect: Callable[..., dict[str, Any]], ready: Any, tmp_path: Path, kind: str
) -> None:
    bad = two / "cat" / "17.png"
    content = bad.read_bytes()
    instead = {
        "half": content[: len(content) // 2],
        "text": b"not an image",
        "pointer": POINTER.encode(),
        "empty": b"",
        "zeros": bytes(len(content)),
    }
    bad.write_bytes(instead[kind])
    found = inspect(two)
    assert (found["n_images"], found["least"], found["smallest_class"]) == (50, 24, "cat")
    [said] = found["remarks"]
    said_of = "1 of 50 images cannot be read and will be left out, the first is"
    assert said == f"{said_of} {bad} (no image, or damaged)"
    out = tmp_path / "two.images"
    ended = ready.kedge("data", "pack", two, "--out", out)
    assert ended.rc == 0
    assert ended.out.startswith(f"{out}: 49 images of 2 classes, ")
    [line] = ended.err.splitlines()
    assert line.startswith("kedge: 1 of 50 images could not be read and was left out, the first ")
    assert str(bad) in line
    table = ImageTable.load(out)
    assert table.counts.tolist() == [24, 25]


def test_damaged_image_within_an_archive(
    two: Path, inspect: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    path = tmp_path / "two.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(two.rglob("*.png")):
            archive.write(file, file.relative_to(two))
        place = archive.getinfo("dog/30.png").header_offset + 60
    content = bytearray(path.read_bytes())
    content[place : place + 50] = bytes(50)
    path.write_bytes(content)
    found = inspect(path)
    assert found["n_images"] == 50
    [said] = found["remarks"]
    assert said.startswith("1 of 50 images cannot be read and will be left out, the first is ")
    assert said.endswith("dog/30.png (no image, or damaged)")


def test_mixed_modes(
    two: Path, inspect: Callable[..., dict[str, Any]], ready: Any, tmp_path: Path
) -> None:
    """Each a red square on paper, or what is left of it."""
    red = Image.new("RGB", (20, 20), (200, 0, 0))
    deep = np.full((20, 20), 0x4C00, np.uint16)
    clear = Image.new("RGBA", (20, 20), (0, 0, 0, 0))
    images = {
        "cmyk.tif": Image.new("CMYK", (20, 20), (0, 255, 255, 55)),
        "deep.png": Image.fromarray(deep),
        "grey.png": Image.new("L", (20, 20), 0x4C),
        "one.png": Image.new("1", (20, 20), 1),
        "palette.png": red.quantize(4),
        "through.png": clear,
        "both.png": Image.new("LA", (20, 20), (10, 0)),
    }
    for name, image in images.items():
        image.save(two / "cat" / name)
    found = inspect(two)
    [said] = found["remarks"]
    assert said.startswith("images of several modes (50 RGB, ")
    assert said.endswith("): all are brought to the same")
    for mode in ("CMYK", "I;16", "L", "1", "P", "RGBA", "LA"):
        assert f"1 {mode}" in said, said
    assert found["modes"]["RGB"] == 50
    out = tmp_path / "out"
    assert ready.kedge("data", "pack", two, "--out", out).rc == 0
    table = ImageTable.load(out)
    names = sorted(file.name for file in (two / "cat").iterdir())
    middle = {name: table.images[i, :, 10, 10].tolist() for i, name in enumerate(names)}
    assert middle["cmyk.tif"] == [200, 0, 0]
    assert middle["deep.png"] == middle["grey.png"] == [0x4C] * 3
    assert middle["one.png"] == middle["through.png"] == middle["both.png"] == [255] * 3
    assert middle["palette.png"] == [200, 0, 0]


def test_photograph_of_a_turned_camera(
    two: Path, inspect: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    upright = np.zeros((64, 64, 3), np.uint8)
    upright[:32] = 255  # bright above
    turned = Image.fromarray(np.rot90(upright).copy())
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter clockwise
    turned.save(two / "cat" / "turned.jpg", exif=exif)
    assert inspect(two)["remarks"] == [
        "1 photograph was taken with a turned camera: it is set upright"
    ]
    table = kedge.open_images(two, image_size=64)
    image = table.images[25].float().mean(0)
    assert float(image[:24].mean()) > 250
    assert float(image[40:].mean()) < 5


def test_background_is_no_class(
    two: Path, inspect: Callable[..., dict[str, Any]], ready: Any, tmp_path: Path
) -> None:
    for i in range(20):
        save(two / "BACKGROUND_Google" / f"{i}.png", 100 + i)
    assert inspect(two)["remarks"] == [
        "BACKGROUND_Google looks like a background, which is no class: leave it out with 'kedge "
        "data pack' and --without BACKGROUND_Google"
    ]
    out = tmp_path / "out"
    ended = ready.kedge("data", "pack", two, "--out", out, "--without", "BACKGROUND_Google")
    assert ended.out.startswith(f"{out}: 50 images of 2 classes, ")
    assert ended.err == ""
    assert ImageTable.load(out).classes == ("cat", "dog")


def test_not_all_classes_can_be_left_out(two: Path, ready: Any, tmp_path: Path) -> None:
    ended = ready.kedge("data", "pack", two, "--out", tmp_path / "out", "--without", "cat", "dog")
    assert ended.sentence == f"--without: these are all classes of {two}; leave some to pack."


ODD = (
    *("a b", " lead", "trail ", "-dash", "--flag", "[bold]x", "a,b;c", "'q\"", "%s {0}", "~"),
    *(
        "日本",
        "é",
        "e\u0301",
        "🐈",
        "CON",
        "a\\b",
        "tab\tx",
        "line\nfeed",
        "\x1b[31mred",
        "100%",
        "#1",
    ),
)


def test_names_of_any_characters(
    two: Path, inspect: Callable[..., dict[str, Any]], ready: Any, tmp_path: Path
) -> None:
    for k, name in enumerate(ODD):
        for i in range(2):  # of which one is a copy, so that the name of a class is said
            save(two / name / f"{i}.png", 1000 + k)
    found = inspect(two)
    names = {normalize_name(name) for name in ODD}
    assert found["n_classes"] == 2 + len(names)
    shown = ready.kedge("data", "inspect", two)
    assert shown.rc == 0
    assert all(line.isprintable() for line in shown.out.splitlines()), shown.out
    assert len(shown.out.splitlines()) == 8 + len(found["remarks"])
    out = tmp_path / "out"
    packed = ready.kedge("data", "pack", two, "--out", out)
    assert packed.rc == 0, packed.err
    assert ImageTable.load(out).classes == tuple(sorted((*names, "cat", "dog")))
    assert all(line.isprintable() for line in packed.err.splitlines()), packed.err
    assert inspect(out)["n_classes"] == 2 + len(names)


def test_endings_in_capitals_hidden_files_and_links(
    two: Path, inspect: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    for i, name in enumerate(("A.PNG", "b.JpEg", "c.JPG", "d.TIFF")):
        save(two / "cat" / name, 200 + i)
    for name in (".hidden.png", "._d.png", ".git/e.png", "__MACOSX/f.png"):
        save(two / "cat" / name, 300)
    save(two / ".cache" / "g.png", 300)
    (two / "cat" / "notes.txt").write_text("not an image")
    elsewhere = save(tmp_path / "elsewhere" / "h.png", 400).parent
    for i in range(20):
        save(elsewhere / f"{i}.png", 500 + i)
    (two / "eel").symlink_to(elsewhere, target_is_directory=True)
    (two / "dog" / "linked.png").symlink_to(elsewhere / "0.png")
    (two / "dog" / "broken.png").symlink_to(tmp_path / "gone.png")
    (two / "dog" / "around").symlink_to(two, target_is_directory=True)
    found = inspect(two)
    assert found["n_classes"] == 3
    assert found["n_images"] == 50 + 4 + 21 + 1
    assert found["remarks"] == [
        "1 link leads nowhere and was left out: dog/broken.png",
        "1 folder is reached by links in circles and was left out: dog/around",
    ]


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_members_that_lead_out_of_an_archive(
    two: Path, inspect: Callable[..., dict[str, Any]], tmp_path: Path, kind: str
) -> None:
    path = tmp_path / f"two.{kind}"
    files = {str(file.relative_to(two)): file.read_bytes() for file in sorted(two.rglob("*.png"))}
    image = files["dog/30.png"]
    files |= {"../out.png": image, "cat/../../out.png": image, "/out.png": image}
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in files.items():
                archive.writestr(name, content)
    else:
        with tarfile.open(path, "w") as archive:
            for name, content in files.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    found = inspect(path)
    assert found["n_images"] == 50
    assert found["remarks"] == [
        "3 members of the archive have names that lead out of it and were left out, the first is "
        "../out.png"
    ]
