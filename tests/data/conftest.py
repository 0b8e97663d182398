"""Small data sets in every form that people have, written without any code of kedge's.

`forms` has a function for each, which writes one into a folder and says what must be found there.
"""

from __future__ import annotations

import csv
import io
import json
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from kedge.data import decode_pool
from kedge.data.process_pool import ProcessPool

# Real classes of miniImageNet, some images of each, and where they are in the split.
SPLIT = {
    "train": {"n01532829": 4, "n01558993": 3},
    "val": {"n01855672": 3},
    "test": {"n01930112": 3, "n02099601": 5},
}
WNIDS = [wnid for classes in SPLIT.values() for wnid in classes]


@dataclass(frozen=True)
class Written:
    """A data set on disk, and what is in it."""

    data: Path  # what a user gives to kedge
    images: dict[tuple[str, str], list[np.ndarray]]  # by part ("" where there is none) and class
    reader: str  # the name of its class
    side: int  # px to which it is packed
    lossy: bool = False  # JPEG, or another size: only the middle of each quarter is certain
    grey: bool = False
    says: tuple[str, ...] = ()  # all that is said of it, but for classes with few images

    @property
    def classes(self) -> list[str]:
        return sorted({name for _, name in self.images})

    @property
    def counts(self) -> dict[str, int]:
        per_class = dict.fromkeys(self.classes, 0)
        for (_, name), images in self.images.items():
            per_class[name] += len(images)
        return per_class

    @property
    def parts(self) -> dict[str, tuple[int, int]]:
        """Images and classes of each."""
        found: dict[str, tuple[int, int]] = {}
        for (part, _), images in self.images.items():
            if part:
                n, classes = found.get(part, (0, 0))
                found[part] = (n + len(images), classes + 1)
        return found


@pytest.fixture
def own_workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For a test that starts workers in another way: they must not serve other tests."""
    pool = ProcessPool(decode_pool.DecodeWorker, decode_pool.MEMORY)
    monkeypatch.setattr(decode_pool, "_POOL", pool)
    yield
    pool.close()


Write = Callable[[Path], Written]


def picture(k: int, i: int, wide: int, high: int = 0) -> np.ndarray:
    """Image i of class k: a red, a green, a blue and a grey quarter, no two alike in all sets."""
    high = high or wide
    image = np.empty((high, wide, 3), np.uint8)
    y, x = high // 2, wide // 2
    image[:y, :x] = 250 - 10 * k, 10, 30
    image[:y, x:] = 20, 240 - 12 * i, 40
    image[y:, :x] = 30, 15, 230 - 7 * k
    image[y:, x:] = 60 + 8 * k + 5 * i
    return image


def pictures(n_of: dict[str, int], wide: int, high: int = 0) -> dict[str, list[np.ndarray]]:
    return {
        name: [picture(WNIDS.index(name), i, wide, high) for i in range(n)]
        for name, n in n_of.items()
    }


def by_part(wide: int, high: int = 0) -> dict[tuple[str, str], list[np.ndarray]]:
    return {
        (part, name): images
        for part, n_of in SPLIT.items()
        for name, images in pictures(n_of, wide, high).items()
    }


def encoded(image: np.ndarray, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    how = {"quality": 95, "subsampling": 0} if kind == "JPEG" else {}
    Image.fromarray(image).save(file, kind, **how)
    return file.getvalue()


def put(path: Path, content: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def put_csv(path: Path, *rows: tuple[str, ...]) -> Path:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return put(path, text.getvalue())


def python2(value: Any) -> bytes:
    """A pickle of Python 2, in which text and the bytes of arrays are strings alike."""
    return b"\x80\x02" + _python2(value) + b"."


def _python2(value: Any) -> bytes:
    if isinstance(value, bool) or value is None:
        return {True: b"\x88", False: b"\x89", None: b"N"}[value]
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    if isinstance(value, str | bytes):
        raw = value.encode("latin1") if isinstance(value, str) else value
        short = len(raw) < 256
        return (b"U" + bytes([len(raw)]) if short else b"T" + struct.pack("<i", len(raw))) + raw
    if isinstance(value, list):
        return b"](" + b"".join(map(_python2, value)) + b"e"
    if isinstance(value, tuple):
        return b"(" + b"".join(map(_python2, value)) + b"t"
    if isinstance(value, dict):
        return b"}(" + b"".join(_python2(k) + _python2(v) for k, v in value.items()) + b"u"
    assert isinstance(value, np.ndarray)
    order, code = value.dtype.str[0], value.dtype.str[1:]
    dtype = b"cnumpy\ndtype\n" + _python2((code, 0, 1)) + b"R"
    dtype += _python2((3, order, None, None, None, -1, -1, 0)) + b"b"
    empty = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR"
    state = b"(K\x01" + _python2(value.shape) + dtype + b"\x89" + _python2(value.tobytes()) + b"tb"
    return empty + state


def in_bytes(value: Any) -> Any:
    """As a file of Python 2 comes out of Python 3 with encoding="bytes"."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict):
        return {in_bytes(k): in_bytes(v) for k, v in value.items()}
    return [in_bytes(v) for v in value] if isinstance(value, list) else value


# ── miniImageNet ─────────────────────────────────────────────────────────────────────────────


def cache(folder: Path, keys: Callable[[Any], Any] = lambda x: x, val: str = "val") -> Written:
    images = by_part(84)
    for part, n_of in SPLIT.items():
        array = np.concatenate([images[part, name] for name in n_of])
        ends = np.cumsum(list(n_of.values())).tolist()
        rows = {n: list(range(e - n_of[n], e)) for n, e in zip(n_of, ends, strict=True)}
        record = keys({"image_data": array, "class_dict": rows})
        name = f"mini-imagenet-cache-{val if part == 'val' else part}.pkl"
        put(folder / name, pickle.dumps(record, 4))
    return Written(folder, images, "MiniCacheReader", 84)


def category_split(folder: Path) -> Written:
    images = {}
    first = {"train": 0, "val": 64, "test": 80}
    files = {
        "train_phase_train": ("train", "train", 0),
        "train_phase_val": ("train_phase_val", "train", 5),
        "train_phase_test": ("held out", "train", 8),
        "val": ("val", "val", 0),
        "test": ("test", "test", 0),
    }
    for file, (part, classes, start) in files.items():
        label = {name: first[classes] + k for k, name in enumerate(SPLIT[classes])}
        array, labels = [], []
        for name, n in SPLIT[classes].items():
            n = n if start == 0 else 2
            these = [picture(WNIDS.index(name), start + i, 84) for i in range(n)]
            images[part, name] = these
            array += these
            labels += [label[name]] * n
        record = {"data": np.stack(array), "labels": labels, "catname2label": label}
        put(folder / f"miniImageNet_category_split_{file}.pickle", python2(record))
    return Written(folder, images, "LabelledArraysReader", 84)


def ravi(folder: Path) -> Written:
    images = by_part(96, 64)
    for part in SPLIT:
        rows = [("filename", "label")]
        for (of_part, name), these in images.items():
            for i, image in enumerate(these if of_part == part else ()):
                rows.append((f"{name}{i + 1:08}.jpg", name))
                put(folder / "images" / rows[-1][0], encoded(image, "JPEG"))
        put_csv(folder / f"{part}.csv", *rows)
    return Written(folder, images, "ImageListReader", 64, lossy=True)


def ilsvrc(folder: Path, columns: str) -> Written:
    """Folders as ImageNet has them, of whose images only some are listed. Their numbers have
    different lengths: the third by number is the first by name."""
    numbers = [2, 31, 100, 1005, 20_000, 30_000, 7, 8]
    images = {}
    for part, n_of in SPLIT.items():
        rows = [tuple(columns.split(","))]
        for name, n in n_of.items():
            of_class = numbers[: n + 2]
            for i, number in enumerate(sorted(of_class)):
                image = encoded(picture(WNIDS.index(name), i, 96, 64), "JPEG")
                file = f"{name}_{number}.JPEG"
                put(folder / "ILSVRC" / "train" / name / file, image)
                if i >= 2:  # the first two are not listed
                    rows.append(
                        {
                            "filename,label": (f"{name}{i + 1:08}.jpg", name),
                            "filename,class": (file, name),
                            "class_name,image_name": (name, file),
                        }[columns]
                    )
            images[part, name] = [picture(WNIDS.index(name), i, 96, 64) for i in range(2, n + 2)]
        put_csv(folder / f"{part}.csv", *rows)
    return Written(folder, images, "ImageListReader", 64, lossy=True)


def split_folders(folder: Path) -> Written:
    images = by_part(24)
    for (part, name), these in images.items():
        for i, image in enumerate(these):
            put(folder / part / name / f"{i}.png", encoded(image))
    return Written(folder, images, "FolderReader", 24)


def parquet(folder: Path, by_image: bool = False) -> Written:
    images: dict[tuple[str, str], list[np.ndarray]] = by_part(24)
    if by_image:
        images = {
            (part, name): [picture(k, 3 * j + i, 24) for i in range(3)]
            for j, part in enumerate(("train", "val", "test"))
            for k, name in enumerate(WNIDS)
        }
    feature = {"label": {"names": WNIDS, "_type": "ClassLabel"}, "image": {"_type": "Image"}}
    metadata = {"huggingface": json.dumps({"info": {"features": feature}})}
    for part in SPLIT:
        rows = [
            (WNIDS.index(name), {"bytes": encoded(image), "path": f"{name}_{i}.png"})
            for (of_part, name), these in images.items()
            for i, image in enumerate(these)
            if of_part == part
        ]
        shards = 2 if part == "train" else 1
        for k in range(shards):
            table = pa.table(
                {
                    "image": pa.array([image for _, image in rows[k::shards]]),
                    "label": pa.array([label for label, _ in rows[k::shards]], pa.int64()),
                }
            )
            called = "validation" if part == "val" else part
            path = folder / "data" / f"{called}-{k:05}-of-{shards:05}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(table.replace_schema_metadata(metadata), path, row_group_size=4)
    says = ("5 of the 5 classes of val", "5 of the 5 classes of test")
    return Written(folder, images, "ParquetReader", 24, says=says if by_image else ())


# ── tieredImageNet ───────────────────────────────────────────────────────────────────────────


def tiered(folder: Path, png: bool, keys: Callable[[Any], Any] = lambda x: x) -> Written:
    images = {}
    for part, n_of in SPLIT.items():
        these = pictures(n_of, 84)
        labels = [k for k, name in enumerate(these) for _ in these[name]]
        record = {"label_specific": np.array(labels), "label_general": np.zeros(len(labels), int)}
        put(folder / f"{part}_labels.pkl", pickle.dumps(keys(record), 2))
        every = [image for name in these for image in these[name]]
        if png:  # as OpenCV's imencode gives them: arrays of N×1
            packed = [np.frombuffer(encoded(image), np.uint8)[:, None].copy() for image in every]
            put(folder / f"{part}_images_png.pkl", pickle.dumps(packed, 4))
        else:
            save = np.savez_compressed if part == "val" else np.savez
            save(folder / f"{part}_images.npz", images=np.stack(every)[..., ::-1])
        for k, name in enumerate(these):
            images[part, f"{part} class {k:04}"] = these[name]
    return Written(folder, images, "TieredReader", 84)


def ilsvrc_with_class_list(folder: Path) -> Written:
    """The lists say to which class of the split a WordNet id belongs, and name no image."""
    images = {("", name): these for (_, name), these in by_part(96, 64).items()}
    for (_, name), these in images.items():
        for i, image in enumerate(these):
            put(folder / "train" / name / f"{name}_{i}.JPEG", encoded(image, "JPEG"))
    put_csv(folder / "tiered_train.csv", ("class_id", "parent"), *((n, "animal") for n in WNIDS))
    images = {("train", name): these for (_, name), these in images.items()}
    return Written(folder, images, "FolderReader", 64, lossy=True)


# ── CIFAR ────────────────────────────────────────────────────────────────────────────────────


def cifar_fs(folder: Path) -> Written:
    images = {}
    for part, n_of in SPLIT.items():
        these = pictures(n_of, 32)
        first = {"train": 0, "val": 64, "test": 80}[part]
        labels = [first + k for k, name in enumerate(these) for _ in these[name]]
        array = np.concatenate([these[name] for name in these])
        record = {"data": array, "labels": labels}
        put(folder / f"CIFAR_FS_{part}.pickle", python2(record))
        for k, name in enumerate(these):
            images[part, f"{part} class {first + k:04}"] = these[name]
    return Written(folder, images, "LabelledArraysReader", 32)


def cifar_folders(folder: Path) -> Written:
    images = by_part(32)
    for (_, name), these in images.items():
        for i, image in enumerate(these):
            put(folder / "cifar100" / "data" / name / f"{i}.png", encoded(image))
    for part, n_of in SPLIT.items():
        put(folder / f"cifar100/splits/bertinetto/{part}.txt", "\n".join(n_of) + "\n")
    return Written(folder, images, "CifarFoldersReader", 32)


def cifar_100(folder: Path) -> Written:
    """Planes of colour, and images of all classes in both files."""
    images = {("", name): [picture(k, i, 32) for i in range(4)] for k, name in enumerate(WNIDS)}
    place = folder / "cifar-100-python"
    for j, part in enumerate(("train", "test")):
        rows = [(k, images["", n][i]) for i in (j, 2 + j) for k, n in enumerate(WNIDS)]
        planes = np.stack([image.transpose(2, 0, 1).reshape(-1) for _, image in rows])
        labels = [k for k, _ in rows]
        names = [f"{part}_{i}.png" for i in range(len(rows))]
        record = {
            "batch_label": part,
            "coarse_labels": [0] * len(rows),
            "data": planes,
            "filenames": names,
            "fine_labels": labels,
        }
        put(place / part, python2(record))
    meta = {"coarse_label_names": ["animals"], "fine_label_names": WNIDS}
    put(place / "meta", python2(meta))
    return Written(folder, images, "Cifar100Reader", 32)


# ── Omniglot and Tiny-ImageNet ───────────────────────────────────────────────────────────────


def drawing(k: int, i: int) -> np.ndarray:
    """Dark on white, 1 bit: which of four quarters are dark says which drawing this is."""
    image = np.full((105, 105), 255, np.uint8)
    for quarter in range(4):
        y, x = 52 * (quarter // 2), 52 * (quarter % 2)
        image[y : y + 52, x : x + 52] = 0 if (k + 5 * i) >> quarter & 1 else 255
    return image


def omniglot(folder: Path, zips: bool = False) -> Written:
    alphabets = {
        "images_background": ("train", "Greek/character01", "Greek/character02"),
        "images_evaluation": ("test", "Tengwar/character01", "Ge_ez/character01"),
    }
    images = {}
    number = 0
    for half, (part, *names) in alphabets.items():
        files = {}
        for name in names:
            drawn = [drawing(number, i) for i in range(3)]
            for i, image in enumerate(drawn):
                file = io.BytesIO()
                Image.fromarray(image).convert("1").save(file, "PNG")
                files[f"{half}/{name}/{number:04}_{i:02}.png"] = file.getvalue()
            images[part, name] = [255 - np.stack([image] * 3, -1) for image in drawn]
            number += 1
        if zips:
            folder.mkdir(parents=True, exist_ok=True)
            with zipfile.ZipFile(folder / f"{half}.zip", "w") as archive:
                for name, content in files.items():
                    archive.writestr(zipfile.ZipInfo(name), content)
        else:
            for name, content in files.items():
                put(folder / name, content)
    return Written(folder, images, "OmniglotReader", 28, lossy=True, grey=True)


def tiny_imagenet(folder: Path) -> Written:
    place = folder / "tiny-imagenet-200"
    images, said = {}, []
    for k, name in enumerate(WNIDS):
        images["train", name] = [picture(k, i, 64) for i in range(4)]
        images["val", name] = [picture(k, i, 64) for i in range(4, 6)]
        for i, image in enumerate(images["train", name]):
            put(place / "train" / name / "images" / f"{name}_{i}.JPEG", encoded(image, "JPEG"))
        put(place / "train" / name / f"{name}_boxes.txt", f"{name}_0.JPEG\t0\t0\t62\t62\n")
        for image in images["val", name]:
            file = f"val_{len(said)}.JPEG"
            put(place / "val" / "images" / file, encoded(image, "JPEG"))
            said.append(f"{file}\t{name}\t0\t32\t44\t62\n")
    put(place / "val" / "val_annotations.txt", "".join(said))
    put(place / "test" / "images" / "test_0.JPEG", encoded(picture(0, 9, 64), "JPEG"))
    put(place / "wnids.txt", "\n".join(WNIDS))
    put(place / "words.txt", "".join(f"{name}\ta word, another\n" for name in WNIDS))
    says = ("1 image skipped (test", "5 of the 5 classes of val")
    return Written(folder, images, "TinyImageNetReader", 64, lossy=True, says=says)


# ── everyone else ────────────────────────────────────────────────────────────────────────────


def class_folders(folder: Path) -> Written:
    """Of many types and sizes."""
    kinds = {"PNG": "png", "JPEG": "JPG", "BMP": "bmp", "TIFF": "tif", "WEBP": "webp", "GIF": "Gif"}
    images = {}
    for k, name in enumerate(("cat", "dog & wolf", "ünï 日本")):
        images["", name] = [picture(k, i, 32 + 16 * i, 32 + 16 * k) for i in range(len(kinds))]
        for i, kind in enumerate(kinds):
            content = encoded(images["", name][i], kind)
            put(folder / name / f"{i}.{kinds[kind]}", content)
    says = ("modes", "nearly the same")
    return Written(folder, images, "FolderReader", 48, lossy=True, says=says)


def plain(n: int = 3) -> dict[tuple[str, str], list[np.ndarray]]:
    return {("", name): [picture(k, i, 20) for i in range(n)] for k, name in enumerate("abc")}


def archive(folder: Path, name: str) -> Written:
    """Class folders within a folder of the archive's name."""
    images = plain()
    members = {
        f"pets/{of}/{i}.png": encoded(image)
        for (_, of), these in images.items()
        for i, image in enumerate(these)
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    if name.endswith(".zip"):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
            for member, content in members.items():
                packed.writestr(zipfile.ZipInfo(member), content, zipfile.ZIP_DEFLATED)
    else:
        with tarfile.open(path, {".tar": "w"}.get(path.suffix, f"w:{path.suffix[1:]}")) as tar:
            for member, content in members.items():
                info = tarfile.TarInfo(member)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return Written(path, images, "FolderReader", 20)


def listed(folder: Path, as_json: bool = False, file_alone: bool = False) -> Written:
    images = plain()
    rows = []
    for (_, name), these in images.items():
        for i, image in enumerate(these):
            path = f"pictures/{'xyz'[i]}/{name}{i}.png"  # folders are not classes here
            put(folder / path, encoded(image))
            rows.append((path, name))
    if as_json:
        lines = (json.dumps({"path": path, "class": name}) for path, name in rows)
        path = put(folder / "list.jsonl", "\n".join(lines))
    else:
        path = put_csv(folder / "list.csv", ("path", "class"), *rows)
    return Written(path if file_alone else folder, images, "ImageListReader", 20)


def one_of(write: Write, name: str, part: str) -> Write:
    """Only one file of a data set is given, and only that counts."""

    def alone(folder: Path) -> Written:
        whole = write(folder)
        images = {key: these for key, these in whole.images.items() if key[0] == part}
        return replace(whole, data=folder / name, images=images, says=())

    return alone


FORMS: dict[str, Write] = {
    "mini-cache": cache,
    "mini-cache-bytes": lambda folder: cache(folder, in_bytes, "validation"),
    "mini-cache-one-file": one_of(cache, "mini-imagenet-cache-test.pkl", "test"),
    "mini-category-split": category_split,
    "ravi": ravi,
    "ilsvrc-by-rank": lambda folder: ilsvrc(folder, "filename,label"),
    "ilsvrc-class-image": lambda folder: ilsvrc(folder, "class_name,image_name"),
    "ilsvrc-file-class": lambda folder: ilsvrc(folder, "filename,class"),
    "split-folders": split_folders,
    "parquet": parquet,
    "parquet-by-image": lambda folder: parquet(folder, by_image=True),
    "parquet-one-file": one_of(parquet, "data/test-00000-of-00001.parquet", "test"),
    "tiered-png": lambda folder: tiered(folder, png=True),
    "tiered-png-bytes": lambda folder: tiered(folder, png=True, keys=in_bytes),
    "tiered-npz": lambda folder: tiered(folder, png=False),
    "tiered-ilsvrc": ilsvrc_with_class_list,
    "cifar-fs": cifar_fs,
    "cifar-folders": cifar_folders,
    "cifar-100": cifar_100,
    "omniglot": omniglot,
    "omniglot-zips": lambda folder: omniglot(folder, zips=True),
    "tiny-imagenet": tiny_imagenet,
    "class-folders": class_folders,
    "zip": lambda folder: archive(folder, "pets.zip"),
    "tar": lambda folder: archive(folder, "pets.tar"),
    "tar-gz": lambda folder: archive(folder, "pets.tar.gz"),
    "csv": listed,
    "csv-alone": lambda folder: listed(folder, file_alone=True),
    "json-lines": lambda folder: listed(folder, as_json=True),
    "json-lines-alone": lambda folder: listed(folder, as_json=True, file_alone=True),
}


@pytest.fixture(scope="session")
def forms() -> dict[str, Write]:
    """A function for each form: `forms["ravi"](folder)` writes it there."""
    return FORMS


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for `form` is run for each of them."""
    if "form" in metafunc.fixturenames:
        metafunc.parametrize("form", list(FORMS), scope="module")
