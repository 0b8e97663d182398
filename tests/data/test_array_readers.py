"""Data sets in pickles and arrays, as their authors wrote them and as they should not be."""

from __future__ import annotations

import mmap
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.data.conftest import encoded, in_bytes, python2

from kedge.data.decode import ImageSpec
from kedge.data.decode_pool import decode_each
from kedge.data.files import open_tree
from kedge.data.files.npz import npz_images
from kedge.data.files.unpickle import load_pickle
from kedge.data.index import ArrayImages, ImageIndex, ImageSource, names_of_numbers
from kedge.data.readers import tiered
from kedge.data.readers.pickled_arrays import Cifar100Reader, LabelledArraysReader, MiniCacheReader
from kedge.data.readers.tiered import TieredReader
from kedge.errors import KedgeError

READERS = (MiniCacheReader(), LabelledArraysReader(), TieredReader(), Cifar100Reader())
CACHE = "mini-imagenet-cache-{}.pkl"
SPLIT = "miniImageNet_category_split_{}.pickle"


# ── an independent writer ────────────────────────────────────────────────────────────────────


def noise(n: int, side: int = 84, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, side, side, 3), np.uint8)


def dump(path: Path, value: Any, protocol: int = 4) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(value, protocol))
    return path


def png_array(pixels: np.ndarray) -> np.ndarray:
    """As OpenCV's imencode gives it."""
    return np.frombuffer(encoded(pixels), np.uint8).reshape(-1, 1).copy()


# ── what is read ─────────────────────────────────────────────────────────────────────────────


def read(path: Path) -> ImageIndex:
    tree = open_tree(path)
    [reader] = [r for r in READERS if r.recognises(tree)]
    return reader.read(tree)


def refused(path: Path, *words: str) -> str:
    with pytest.raises(KedgeError) as caught:
        read(path)
    said = str(caught.value)
    assert said.endswith(".")
    assert "\n" not in said
    assert len(said) < 500 + len(str(path))
    for word in words:
        assert word in said, said
    return said


def classes(found: ImageIndex) -> list[str]:
    return [found.classes[i] for i in found.labels.tolist()]


def pixels(found: ImageIndex, numbers: list[int] | None = None) -> list[np.ndarray]:
    """As height, width, RGB; those of arrays in their own size, PNGs in the usual one."""
    fetched = found.images.fetch(list(range(len(found))) if numbers is None else numbers)
    sides = ((p, len(p) if isinstance(p, np.ndarray) else found.image_size or 0) for p in fetched)
    return [decode_each([p], ImageSpec(side, 3))[0].pixels.transpose(1, 2, 0) for p, side in sides]


def same(found: list[np.ndarray], expected: Any) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


# ── miniImageNet as a cache ──────────────────────────────────────────────────────────────────


def cache(n: int = 6, seed: int = 0) -> dict[str, Any]:
    return {
        "image_data": noise(n, seed=seed),
        "class_dict": {"n02": list(range(n // 2, n)), "n01": list(range(n // 2))},
    }


def as_bytes(value: Any) -> bytes:
    return pickle.dumps(in_bytes(value), 2)


WRITERS = [python2, as_bytes, pickle.dumps, lambda v: pickle.dumps(v, 0)]


@pytest.mark.parametrize("write", WRITERS)
def test_cache_of_every_age(tmp_path: Path, write: Callable[[Any], bytes]) -> None:
    data = cache()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / CACHE.format("train")).write_bytes(write(data))
    found = read(tmp_path)
    assert classes(found) == ["n01"] * 3 + ["n02"] * 3
    assert (found.classes, found.parts, found.remarks) == (("n01", "n02"), ("train",), ())
    same(pixels(found), data["image_data"])
    assert found.images.name(4).endswith("mini-imagenet-cache-train.pkl, image 4")


def test_cache_with_rows_in_any_order_and_some_left_out(tmp_path: Path) -> None:
    data = cache(6)
    data["class_dict"] = {"b": np.array([5, 0]), "a": (3,), "none": [], "c": np.array([[1]])}
    dump(tmp_path / CACHE.format("val"), data)
    found = read(tmp_path)
    assert classes(found) == ["b", "c", "a", "b"]
    assert found.classes == ("a", "b", "c")
    same(pixels(found), data["image_data"][[0, 1, 3, 5]])
    assert [remark[:16] for remark in found.remarks] == ["2 images skipped", "1 class skipped "]
    dump(tmp_path / CACHE.format("val"), cache(4) | {"class_dict": {0: [0, 1], 1: [2, 3]}})
    assert read(tmp_path).classes == ("val class 0000", "val class 0001")


def test_the_same_name_in_two_folders(tmp_path: Path) -> None:
    dump(tmp_path / "a" / "b" / CACHE.format("train"), cache(4, 1))
    dump(tmp_path / "a" / CACHE.format("train"), cache(6, 2))
    found = read(tmp_path)
    same(pixels(found), noise(6, seed=2))
    assert "a/b/mini" in found.remarks[0]
    dump(tmp_path / "a" / CACHE.format("val"), cache(6, 2))
    dump(tmp_path / "a" / CACHE.format("validation"), cache(6, 2))
    refused(tmp_path, "keep one")


IMAGES = noise(6, 8)
WRONG_CACHES: list[Any] = [
    {"image_data": IMAGES.astype(np.float32)},
    {"image_data": IMAGES.transpose(0, 3, 1, 2)},
    {"image_data": [1, 2]},
    {"image_data": IMAGES[:, :0]},
    {"class_dict": {"a": [0, 6]}},
    {"class_dict": {"a": [0, -1]}},
    {"class_dict": {"a": np.array([0, (1 << 64) - 1], np.uint64)}},
    {"class_dict": {"a": [True]}},
    {"class_dict": {"a": [1], "b": [0, 1]}},
    {"class_dict": {"a": []}},
    {"class_dict": [0, 1]},
    {"class_dict": {"a\nb": [9]}},
    {"class_dict": {"\ud800": [0]}},
]


def test_wrong_caches(tmp_path: Path) -> None:
    for change in WRONG_CACHES:
        record = {"image_data": IMAGES, "class_dict": {"a": [0]}} | change
        refused(tmp_path, str(dump(tmp_path / CACHE.format("train"), record)))


# ── arrays with labels ───────────────────────────────────────────────────────────────────────


def labelled(labels: list[int], seed: int = 0, side: int = 84, **more: Any) -> dict[str, Any]:
    return {"data": noise(len(labels), side, seed), "labels": labels, **more}


def test_category_split_without_names(tmp_path: Path) -> None:
    for k, name in enumerate(
        ("train_phase_train", "train_phase_val", "train_phase_test", "val", "test")
    ):
        start = {"val": 64}.get(name, 0)
        dump(tmp_path / "x" / SPLIT.format(name), labelled([start, start + 1], k))
    found = read(tmp_path)
    assert found.classes_of("test") == ("test class 0000", "test class 0001")
    assert found.classes_of("val") == ("val class 0064", "val class 0065")
    for part in ("train", "train_phase_val", "held out"):
        assert found.classes_of(part) == ("train class 0000", "train class 0001")
    alone = read(tmp_path / "x" / SPLIT.format("train_phase_test"))
    assert alone.parts == ("held out",)
    assert alone.classes == ("train class 0000", "train class 0001")


def test_names_of_some_labels_only(tmp_path: Path) -> None:
    dump(tmp_path / SPLIT.format("train_phase_train"), labelled([0, 1, 2]))
    dump(
        tmp_path / SPLIT.format("train_phase_test"),
        labelled([0, 1, 2], 1, catname2label={"n01": 0, b"n02": np.int64(1), "x": "2"}),
    )
    dump(tmp_path / SPLIT.format("val"), labelled([0], 2, catname2label={"a": 0, "b": 0}))
    dump(tmp_path / SPLIT.format("test"), labelled([0, 9], 3, catname2label=[7]))
    found = read(tmp_path)
    assert found.classes_of("train") == ("n01", "n02", "train class 0002")
    assert found.classes_of("held out") == ("n01", "n02", "train class 0002")
    assert found.classes_of("val") == ("val class 0000",)
    assert found.classes_of("test") == ("test class 0000", "test class 0009")
    assert len(found.remarks) == 3


def test_files_that_disagree_keep_their_own_names(tmp_path: Path) -> None:
    """As the numbers then do not mean the same."""
    for name, names in (("train_phase_train", {"a": 0}), ("train_phase_test", {"b": 0, "c": 1})):
        dump(tmp_path / SPLIT.format(name), labelled([0, 1], catname2label=names))
    found = read(tmp_path)
    assert found.classes_of("train") == ("a", "train class 0001")
    assert found.classes_of("held out") == ("b", "c")


def test_two_data_sets_in_one_place(tmp_path: Path) -> None:
    dump(tmp_path / "a" / "CIFAR_FS_train.pickle", labelled([0, 1]))
    dump(tmp_path / "b" / SPLIT.format("val"), labelled([0, 1]))
    refused(tmp_path, "miniImageNet", "CIFAR-FS")


WRONG_ARRAYS: list[Any] = [
    labelled([0, 1]) | {"labels": [0]},
    labelled([0, -1]),
    labelled([0, 1 << 65]),
    labelled([0, 1]) | {"data": noise(2).transpose(0, 3, 1, 2)},
    labelled([0, 1]) | {"data": None},
    {"labels": [0]},
    {},
    {"\ud800": 4, "a\nb": 3},
    [noise(1)],
]


def test_wrong_arrays(tmp_path: Path) -> None:
    for value in WRONG_ARRAYS:
        refused(tmp_path, str(dump(tmp_path / SPLIT.format("val"), value)))


# ── tieredImageNet ───────────────────────────────────────────────────────────────────────────


def labels_of(labels: list[int], **more: Any) -> dict[str, Any]:
    return {"label_specific": np.array(labels), "label_general": np.array(labels) // 2, **more}


@pytest.mark.parametrize(
    ("encode", "write"),
    [(png_array, pickle.dumps), (encoded, as_bytes), (encoded, python2), (png_array, python2)],
)
def test_tiered_pngs(
    tmp_path: Path, encode: Callable[[np.ndarray], Any], write: Callable[[Any], bytes]
) -> None:
    folder = tmp_path / "tiered-imagenet"
    folder.mkdir()
    for k, part in enumerate(("train", "val", "test")):
        images = [encode(image) for image in noise(3, seed=k)]
        (folder / f"{part}_images_png.pkl").write_bytes(write(images))
        (folder / f"{part}_labels.pkl").write_bytes(write(labels_of([1, 0, 1])))
    found = read(tmp_path)
    assert found.parts == ("train", "val", "test")
    assert classes(found)[:3] == ["train class 0001", "train class 0000", "train class 0001"]
    same(pixels(found), np.concatenate([noise(3, seed=k) for k in range(3)]))
    assert found.images.name(4).endswith("val_images_png.pkl, image 1")


def test_a_short_png_of_python_2(tmp_path: Path) -> None:
    flat = np.full((4, 4, 3), 7, np.uint8)
    assert len(encoded(flat)) < 256
    (tmp_path / "val_images_png.pkl").write_bytes(python2([encoded(flat)]))
    dump(tmp_path / "val_labels.pkl", labels_of([0]))
    same(pixels(read(tmp_path)), [np.full((84, 84, 3), 7)])


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([b"b", "a, c", "unused"], ("a, c", "b")),
        (np.array([b"b", b"a"]), ("a", "b")),
        (["a", "a"], None),
        (["a"], None),
        (np.array([1, 2]), None),
    ],
)
def test_tiered_names(tmp_path: Path, names: Any, expected: tuple[str, ...] | None) -> None:
    dump(tmp_path / "train_images_png.pkl", [encoded(image) for image in noise(2)])
    dump(tmp_path / "train_labels.pkl", labels_of([0, 1], label_specific_str=names))
    found = read(tmp_path)
    assert found.classes == (expected or ("train class 0000", "train class 0001"))
    assert len(found.remarks) == (0 if expected else 1)


def save_npz(path: Path, rgb: np.ndarray, how: str) -> None:
    """Blue first, as OpenCV has it."""
    bgr = np.ascontiguousarray(rgb[..., ::-1])
    if how == "deflated":
        np.savez_compressed(path, images=bgr)
    else:
        bgr = np.asfortranarray(bgr) if how == "Fortran" else bgr
        np.savez(path, other=np.arange(5), images=bgr, last=np.ones(3))


@pytest.mark.parametrize(
    ("how", "key"), [("stored", "labels"), ("deflated", "label_specific"), ("Fortran", "labels")]
)
def test_tiered_npz_comes_out_in_rgb(tmp_path: Path, how: str, key: str) -> None:
    for k, part in enumerate(("train", "test")):
        save_npz(tmp_path / f"{part}_images.npz", noise(5, seed=k), how)
        dump(tmp_path / f"{part}_labels.pkl", {key: [0, 1, 2, 3, 351]})
    found = read(tmp_path)
    assert found.form == "tieredImageNet as arrays"
    assert found.parts == ("train", "test")
    assert found.classes_of("test")[-1] == "test class 0351"
    both = np.concatenate([noise(5), noise(5, seed=1)])
    same(pixels(found), both)
    for numbers in ([1, 3, 4, 5, 9], [6, 8], [0], [9], [2, 7]):  # on, and back
        same(pixels(found, numbers), both[numbers])
    assert found.images.name(7).endswith("test_images.npz, image 2")


@pytest.mark.parametrize(("n", "side", "most_reads"), [(1, 200, 30), (5000, 2, 12)])
def test_interleaved_images_are_read_by_the_page(
    tmp_path: Path, n: int, side: int, most_reads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One image of a few megabytes took as many reads as it has values."""
    images = noise(n, side)
    save_npz(tmp_path / "x.npz", images, "Fortran")
    source, n_reads, real = npz_images(tmp_path / "x.npz", "images"), 0, os.preadv

    def count(*args: Any) -> int:
        nonlocal n_reads
        n_reads += 1
        return real(*args)

    monkeypatch.setattr(os, "preadv", count)
    wanted = range(n)[-3:]
    same(np.array(list(source.fetch(wanted))), images[-3:])
    assert n_reads <= most_reads


@pytest.mark.parametrize("kind", ["npz", "Fortran npz", "pickle", "transposed pickle", "PNGs"])
def test_a_file_that_becomes_shorter_is_an_error(tmp_path: Path, kind: str) -> None:
    """A mapping would end the process."""
    images = noise(40)
    if "npz" in kind:
        path = tmp_path / "stored.npz"
        save_npz(path, images, kind.split()[0])
        source: ImageSource = npz_images(path, "images")
    elif kind == "PNGs":
        path = dump(tmp_path / "x.pkl", [encoded(image) for image in images])
        source = tiered._PngImages(path)
    else:
        path = dump(tmp_path / "x.pkl", images)
        array = load_pickle(path)
        source = ArrayImages([array if kind == "pickle" else array.transpose(0, 2, 1, 3)], ["x"])
    assert len(list(source.fetch(range(40)))) == 40
    os.truncate(path, 4096)
    with pytest.raises(KedgeError, match="has become shorter"):
        list(source.fetch([39]))


def test_deflated_is_not_kept(tmp_path: Path) -> None:
    save_npz(tmp_path / "deflated.npz", noise(5), "deflated")
    deflated = npz_images(tmp_path / "deflated.npz", "images")
    halfway = deflated.fetch([1, 2, 3])
    np.testing.assert_array_equal(next(halfway), noise(5)[1])
    whole = list(deflated.fetch(range(5)))  # beside the other, which goes on afterwards
    same(whole, noise(5))
    same(list(halfway), noise(5)[2:4])


def test_both_forms_and_parts_of_each(tmp_path: Path) -> None:
    save_npz(tmp_path / "train_images.npz", noise(2, seed=8), "stored")
    dump(tmp_path / "train_images_png.pkl", [encoded(image) for image in noise(2)])
    save_npz(tmp_path / "val_images.npz", noise(2, seed=1), "deflated")
    for part in ("train", "val", "test"):
        dump(tmp_path / f"{part}_labels.pkl", labels_of([0, 1]))
    found = read(tmp_path)
    assert found.form == "tieredImageNet as pickled PNGs and arrays"
    assert [remark.split()[0] for remark in found.remarks] == [
        "train_images.npz",
        "test_labels.pkl",
    ]
    same(pixels(found, [0, 3]), [noise(2)[0], noise(2, seed=1)[1]])


def test_wrong_labels_and_images(tmp_path: Path) -> None:
    images = dump(tmp_path / "train_images_png.pkl", [encoded(image) for image in noise(2)])
    refused(tmp_path, str(images), "train_labels.pkl")
    refused(images, "train_labels.pkl")
    wrong_labels: list[Any] = [
        labels_of([0]),
        labels_of([0, -1]),
        {"label_specific": [0.5, 1]},
        {"label_general": [0, 1]},
        [0, 1],
    ]
    for labels in wrong_labels:
        refused(tmp_path, str(dump(tmp_path / "train_labels.pkl", labels)))
    dump(tmp_path / "train_labels.pkl", labels_of([0, 1]))
    wrong_images: list[Any] = [[encoded(noise(1)[0]), None], [np.zeros(5)], {}]
    for value in wrong_images:
        refused(tmp_path, str(dump(images, value)))


def npz_member(header: bytes, content: bytes = b"", magic: bytes = b"\x93NUMPY\x01\x00") -> bytes:
    return magic + struct.pack("<H", len(header)) + header + content


GOOD = b"{'descr': '|u1', 'fortran_order': False, 'shape': (2, 4, 4, 3), }      \n"


WRONG_NPZ: list[Any] = [
    npz_member(GOOD, bytes(95)),
    npz_member(GOOD.replace(b"2", b"9" * 5000), bytes(96)),
    npz_member(GOOD.replace(b"2", b"0")),
    npz_member(GOOD.replace(b"4, 4", b"99999, 99999")),
    npz_member(GOOD.replace(b"|u1", b"|O"), bytes(96)),
    npz_member(GOOD.replace(b"4, 3", b"3, 4"), bytes(96)),
    npz_member(GOOD.replace(b"2,", b"1+1,"), bytes(96)),
    npz_member(b"(" * 9000, bytes(96)),
    pickle.dumps([1]),
]


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_wrong_npz(tmp_path: Path, method: int) -> None:
    dump(tmp_path / "val_labels.pkl", labels_of([0, 1]))
    path = tmp_path / "val_images.npz"
    for member in WRONG_NPZ:
        with zipfile.ZipFile(path, "w", method) as archive:
            archive.writestr("images.npy", member)
        refused(tmp_path, str(path))
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("raws.npy", npz_member(GOOD, bytes(96)))
    content = path.read_bytes()
    refused(tmp_path, "raws.npy")
    for n in (1, 40, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:n])
        refused(tmp_path, str(path), "again")


def test_npz_of_python_2(tmp_path: Path) -> None:
    """Its numbers had an L, and later versions of the format have longer headers."""
    dump(tmp_path / "val_labels.pkl", labels_of([0, 1]))
    header = GOOD.replace(b"(2, 4", b"(2L, 4L")
    long = b"\x93NUMPY\x02\x00" + struct.pack("<I", len(header)) + header
    for start in (npz_member(header), long):
        with zipfile.ZipFile(tmp_path / "val_images.npz", "w") as archive:
            archive.writestr("images.npy", start + bytes(range(96)))
        first, second = read(tmp_path).images.fetch([0, 1])
        assert np.asarray(first)[0, 0].tolist() == [2, 1, 0]
        assert np.asarray(second)[3, 3].tolist() == [95, 94, 93]


def test_other_ways_to_pack_an_npz(tmp_path: Path) -> None:
    dump(tmp_path / "val_labels.pkl", labels_of([0, 1]))
    with zipfile.ZipFile(tmp_path / "val_images.npz", "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("images.npy", npz_member(GOOD, bytes(96)))
    refused(tmp_path, "numpy.savez")
    with zipfile.ZipFile(tmp_path / "val_images.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", npz_member(GOOD.replace(b"False", b"True"), bytes(96)))
    refused(tmp_path, "numpy.savez")


def test_damage_far_into_a_deflated_npz_costs_the_images_after_it(tmp_path: Path) -> None:
    path = tmp_path / "val_images.npz"
    save_npz(path, noise(50), "deflated")
    dump(tmp_path / "val_labels.pkl", labels_of(list(range(50))))
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 60_000] = bytes(60_000)
    path.write_bytes(content)
    found, read_later = read(tmp_path), read(tmp_path).images
    for _ in range(2):
        got = list(found.images.fetch(range(50)))
        assert len(got) == 50
        np.testing.assert_array_equal(got[20], noise(50)[20])
        assert got[-1] == b""
    assert list(found.images.fetch([49])) == [b""]
    path.unlink()
    with pytest.raises(KedgeError, match=r"val_images\.npz"):
        list(read_later.fetch([0, 49]))


# ── CIFAR-100 ────────────────────────────────────────────────────────────────────────────────

NAMES = [f"name {i}" for i in range(100)]


def batch(labels: list[int], seed: int) -> dict[str, Any]:
    """Red, green and blue one after the other."""
    images = noise(len(labels), 32, seed)
    return {
        "filenames": [f"{i}.png" for i in range(len(labels))],
        "batch_label": "one batch of one",
        "fine_labels": labels,
        "coarse_labels": [0] * len(labels),
        "data": np.stack([image.transpose(2, 0, 1).ravel() for image in images]),
    }


def cifar(folder: Path, write: Callable[[Any], bytes], meta: bool = True) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train").write_bytes(write(batch([3, 99, 3], 0)))
    (folder / "test").write_bytes(write(batch([99, 0], 1)))
    if meta:
        names = {"fine_label_names": NAMES, "coarse_label_names": ["x"]}
        (folder / "meta").write_bytes(write(names))
    return folder


@pytest.mark.parametrize("write", WRITERS)
def test_cifar_100(tmp_path: Path, write: Callable[[Any], bytes]) -> None:
    cifar(tmp_path / "a" / "b", write)
    found = read(tmp_path)
    assert found.form == "CIFAR-100 as raw pickles, train and test merged"
    assert found.parts == ()
    assert found.image_size == 32
    assert classes(found) == ["name 3", "name 99", "name 3", "name 99", "name 0"]
    same(pixels(found), np.concatenate([noise(3, 32, 0), noise(2, 32, 1)]))
    assert found.images.name(3).endswith("test, image 0")


def test_cifar_100_without_meta(tmp_path: Path) -> None:
    cifar(tmp_path / "x", python2, meta=False)
    found = read(tmp_path)
    assert found.classes == ("class 0000", "class 0003", "class 0099")
    assert list(found.classes) == names_of_numbers([0, 3, 99])  # as any other reader names them
    assert found.remarks == ()


def test_one_file_of_cifar_100(tmp_path: Path) -> None:
    cifar(tmp_path, python2)
    found = read(tmp_path / "test")
    assert found.form == "CIFAR-100 as raw pickles, one of two files"
    assert classes(found) == ["name 99", "name 0"]
    (tmp_path / "meta").unlink()
    assert classes(read(tmp_path / "test")) == ["class 0099", "class 0000"]
    assert not Cifar100Reader().recognises(open_tree(cifar(tmp_path, python2) / "meta"))
    dump(tmp_path / "meta", {"fine_label_names": ["x"] * 100})
    assert len(read(tmp_path).remarks) == 1


WRONG_CIFAR: list[Any] = [
    batch([0, 1], 0) | {"fine_labels": [0]},
    batch([0, -1], 0),
    batch([0, 1], 0) | {"data": np.zeros((2, 3071), np.uint8)},
    batch([0, 1], 0) | {"data": [1]},
    {"labels": [0], "data": 1},
]


def test_wrong_cifar_100(tmp_path: Path) -> None:
    cifar(tmp_path, python2)
    for value in WRONG_CIFAR:
        refused(tmp_path, str(dump(tmp_path / "train", value)))


def test_other_files_of_these_names_are_not_taken_for_cifar_100(tmp_path: Path) -> None:
    for folder in ("lists", "lists/more"):
        (tmp_path / folder).mkdir()
        for name in ("train", "test"):
            (tmp_path / folder / name).write_text("a.png 1\n")
    (tmp_path / "train.txt").write_text("x")
    assert not any(reader.recognises(open_tree(tmp_path)) for reader in READERS)
    cifar(tmp_path / "z" / "cifar-100-python", python2)
    assert len(read(tmp_path)) == 5


def test_large_arrays_are_not_copied(forms: dict[str, Any], tmp_path: Path) -> None:
    """Every array that is read looks into the file."""
    for form in ("mini-cache", "mini-category-split", "cifar-fs", "cifar-100"):
        images: Any = read(forms[form](tmp_path / form).data).images
        for array in getattr(images, "images", images).arrays:  # a subset has them within
            assert not array.flags.writeable
            base = array
            while isinstance(base, np.ndarray) and base.base is not None:
                base = base.base
            assert isinstance(base, memoryview | mmap.mmap), (form, type(base))
