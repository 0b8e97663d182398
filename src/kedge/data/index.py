"""What lies there, wherever that is: one entry per picture, none of them decoded yet."""

from __future__ import annotations

import hashlib
import mmap
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64, UInt8

from kedge.data.decode import Picture, looks_like_image
from kedge.data.files.file_tree import FileTree
from kedge.data.files.parquet_file import holds_images, is_parquet
from kedge.errors import KedgeError
from kedge.utils.text import (
    counted,
    first_of,
    left_out,
    plain_name,
)

PART_NAMES = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
    "eval": "test",
    "evaluation": "test",
}
BACKGROUND = ("background_google", "background", "_background_noise_", "clutter", "257.clutter")
HELD_OUT = "held out"  # the part that holds further images of the classes of "train"


class ImageSource(ABC):
    """Pictures by number, cheap to hold. They are read when they are fetched."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def name(self, i: int) -> str:
        """Of one picture, for people: a file, or a file and a row."""

    @abstractmethod
    def fetch(self, numbers: Sequence[int]) -> Iterator[Picture]:
        """One picture for each number, ascending. What cannot be read is `b""`."""


@dataclass(frozen=True, eq=False)
class ImageIndex:
    """What lies on disk: one entry per picture."""

    path: Path
    form: str  # in words, for people: "Tiny-ImageNet as its folders"
    classes: tuple[str, ...]
    labels: Int64[np.ndarray, " n"]
    pictures: ImageSource
    stamp: str  # changes when the data on disk do
    parts: tuple[str, ...] = ()  # of the split that the data come with: "train", "val", "test"
    part: UInt8[np.ndarray, " n_or_none"] = field(default_factory=lambda: np.zeros(0, np.uint8))
    remarks: tuple[str, ...] = ()  # what is wrong with them
    image_size: int | None = None  # to which these images are usually brought
    inverted: bool = False  # dark on white, usually shown the other way round

    def __post_init__(self) -> None:
        n = len(self.pictures)
        if n == 0 or not self.classes:
            raise KedgeError(f"{self.path}: no image was found ({self.form}).")
        if len(self.labels) != n:
            raise KedgeError(
                f"{self.path}: {counted(n, 'image')} but {counted(len(self.labels), 'label')}."
            )
        if int(self.labels.min()) < 0 or int(self.labels.max()) >= len(self.classes):
            raise KedgeError(
                f"{self.path}: some labels are not among the "
                f"{counted(len(self.classes), 'class', 'classes')}."
            )
        if len(set(self.classes)) != len(self.classes):
            raise KedgeError(f"{self.path}: two classes have the same name.")
        if len(self.part) != (n if self.parts else 0):
            raise KedgeError(f"{self.path}: the parts of the split do not cover all images.")
        self._name_plainly()

    def _name_plainly(self) -> None:
        """All readers' names come through here. Those that become the same are one class: taken
        for two, one of them could be trained on and the other be "unseen"."""
        called = [plain_name(name) for name in self.classes]
        if called == list(self.classes):
            return
        classes = sorted(set(called))
        order = {name: i for i, name in enumerate(classes)}
        number = np.array([order[name] for name in called], dtype=np.int64)
        object.__setattr__(self, "classes", tuple(classes))
        object.__setattr__(self, "labels", number[self.labels])
        twice = [name for name, n in Counter(called).items() if n > 1]
        if twice:
            remark = (
                f"{counted(len(twice), 'class is', 'classes are')} written in several ways, which "
                "differ in blanks or accents only: their images were joined"
                f"{first_of(twice)}"
            )
            object.__setattr__(self, "remarks", (*self.remarks, remark))

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def counts(self) -> Int64[np.ndarray, " classes"]:
        """Images per class."""
        return np.bincount(self.labels, minlength=len(self.classes))

    @property
    def noticed(self) -> tuple[str, ...]:
        """All that is to be said of these images, and of the names of their classes."""
        background = [name for name in self.classes if name.lower() in BACKGROUND]
        return self.remarks + tuple(
            f"{name} looks like a background, which is no class: leave it out with 'kedge data "
            f"pack' and --without {name}"
            for name in background[:1]
        )

    def classes_of(self, part: str) -> tuple[str, ...]:
        """Those with an image in a part of the split."""
        there = np.unique(self.labels[self.part == self.parts.index(part)])
        return tuple(self.classes[i] for i in there)

    def only(self, classes: Collection[str]) -> ImageIndex:
        """The images of these classes; those that are not here are not missed."""
        wanted = {plain_name(name) for name in classes}
        kept = [i for i, name in enumerate(self.classes) if name in wanted]
        if len(kept) == len(self.classes):
            return self
        new = np.full(len(self.classes), -1, dtype=np.int64)
        new[kept] = np.arange(len(kept))
        numbers = np.flatnonzero(new[self.labels] >= 0)
        return replace(
            self,
            classes=tuple(self.classes[i] for i in kept),
            labels=new[self.labels[numbers]],
            pictures=_Some(self.pictures, numbers),
            part=self.part[numbers] if self.parts else self.part,
        )


class FileImages(ImageSource):
    """Each picture is a file of a tree."""

    def __init__(self, tree: FileTree, names: Sequence[str]) -> None:
        self.tree, self.names = tree, names

    def __len__(self) -> int:
        return len(self.names)

    def name(self, i: int) -> str:
        return str(self.tree.path / self.names[i])

    def fetch(self, numbers: Sequence[int]) -> Iterator[Picture]:
        return (self.tree.picture(self.names[i]) for i in numbers)


class ArrayImages(ImageSource):
    """Pictures that are pixels already, in arrays (mapped, as a rule) one after the other."""

    def __init__(
        self, arrays: Sequence[np.ndarray], names: Sequence[str], bgr: bool = False
    ) -> None:
        self.arrays, self.names, self.bgr = arrays, names, bgr  # N×H×W×3 or N×H×W, uint8
        self.ends = np.cumsum([len(array) for array in arrays]).tolist()

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    def name(self, i: int) -> str:
        k, row = self._place(i)
        return f"{self.names[k]}, image {row}"

    def fetch(self, numbers: Sequence[int]) -> Iterator[Picture]:
        for i in numbers:
            k, row = self._place(i)
            image = np.array(self.arrays[k][row])
            yield image[..., ::-1] if self.bgr else image
        for array in self.arrays:
            let_go(array)

    def _place(self, i: int) -> tuple[int, int]:
        k = int(np.searchsorted(self.ends, i, side="right"))
        return k, i - (self.ends[k - 1] if k else 0)


class Joined(ImageSource):
    """Those of several places, one after the other."""

    def __init__(self, several: Sequence[ImageSource]) -> None:
        self.several = several
        self.starts = [0, *accumulate(len(pictures) for pictures in several)]

    def __len__(self) -> int:
        return self.starts[-1]

    def name(self, i: int) -> str:
        k = self._place(i)
        return self.several[k].name(i - self.starts[k])

    def fetch(self, numbers: Sequence[int]) -> Iterator[Picture]:
        for k, run in groupby(numbers, self._place):
            yield from self.several[k].fetch([i - self.starts[k] for i in run])

    def _place(self, i: int) -> int:
        return bisect_right(self.starts, i) - 1


def let_go(array: np.ndarray) -> None:
    """Of an array that is mapped from a file: what was read of it need not stay in memory."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        base.madvise(mmap.MADV_DONTNEED)


class _Some(ImageSource):
    def __init__(self, pictures: ImageSource, numbers: np.ndarray) -> None:
        self.pictures, self.numbers = pictures, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def name(self, i: int) -> str:
        return self.pictures.name(int(self.numbers[i]))

    def fetch(self, numbers: Sequence[int]) -> Iterator[Picture]:
        return self.pictures.fetch(self.numbers[np.asarray(numbers, dtype=np.int64)].tolist())


def catalogued(
    tree: FileTree,
    form: str,
    names: Sequence[str],
    pictures: ImageSource,
    *,
    parts: Sequence[str] = (),
    files: Sequence[str] | None = None,
    told: Sequence[str] = (),
    remarks: Sequence[str] = (),
    image_size: int | None = None,
    inverted: bool = False,
) -> ImageIndex:
    """From each picture's class name (and its part of the split, if there is one).

    `files` are those of the tree that the data were read from; all of them if not given. `told`
    are those that were left out, as the remarks say or on purpose.
    """
    files = tree.names if files is None else files
    classes = tuple(sorted(set(names)))
    number = {name: i for i, name in enumerate(classes)}
    found = sorted(set(parts), key=_part_order)
    return ImageIndex(
        tree.path,
        form,
        classes,
        np.fromiter((number[name] for name in names), np.int64, len(names)),
        pictures,
        stamped(tree, files),
        tuple(found),
        np.array([found.index(p) for p in parts], dtype=np.uint8),
        (*tree.remarks, *remarks, *not_read(tree, form, [*files, *told])),
        image_size,
        inverted,
    )


def not_read(tree: FileTree, form: str, known: Sequence[str]) -> tuple[str, ...]:
    """Remarks on images, and on Parquet files of them, of which the reader of a form knows nothing:
    somebody may have put them there to be read."""
    read = set(known)
    others = [name for name in tree.names if name not in read]
    beside = f"beside what was read ({form})"
    return (
        *left_out(
            [name for name in others if looks_like_image(name)],
            f"image lies {beside}",
            f"images lie {beside}",
        ),
        *left_out(
            [name for name in others if is_parquet(name) and _may_hold_images(tree, name)],
            f"Parquet file lies {beside}",
            f"Parquet files lie {beside}",
        ),
    )


def _may_hold_images(tree: FileTree, name: str) -> bool:
    """And is no mere table that describes those beside it."""
    try:
        return holds_images(tree.local(name))
    except (KedgeError, OSError):  # damaged, or within an archive
        return True


def stamped(tree: FileTree, files: Sequence[str]) -> str:
    """Changes when a file is added, removed, renamed or written."""
    sha = hashlib.sha256()
    for name in files:
        sha.update(f"{name}\0{tree.stamp(name)}\0".encode())
    return sha.hexdigest()


def _part_order(part: str) -> tuple[int, str]:
    usual = ("train", "val", "test", HELD_OUT)
    return (usual.index(part) if part in usual else len(usual), part)


def numbered(labels: Sequence[int | str]) -> list[str]:
    """Names for classes that have numbers, with enough zeros to sort; other names are kept."""
    most = max((label for label in labels if isinstance(label, int)), default=0)
    width = max(4, len(str(most)))
    return [f"class {x:0{width}d}" if isinstance(x, int) else x for x in labels]


def distinct(names: Sequence[str]) -> tuple[str, ...]:
    """Some lists hold a name twice, as ImageNet's has two cranes: these get their label as well."""
    count = Counter(names)
    return tuple(f"{name} ({i})" if count[name] > 1 else name for i, name in enumerate(names))


def spread(n: int, most: int) -> list[int]:
    """So many numbers below n at most, evenly spread."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).astype(np.int64)).tolist()
