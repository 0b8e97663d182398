"""The images of a data set before decoding: where each is, its class and its part of the split."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby
from pathlib import Path

import numpy as np
from jaxtyping import Int64, UInt8

from kedge.data.decode import RawImage, looks_like_image
from kedge.data.files.file_tree import FileTree
from kedge.data.files.mapped_file import read_array, release_pages
from kedge.data.files.parquet_file import holds_images, is_parquet
from kedge.data.remarks import Remark, lost
from kedge.errors import KedgeError, require
from kedge.utils.text import display_name, first_example, normalize_name, pluralize

PART_NAMES = {  # usual names of the parts of a split → ours
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
BACKGROUND = ("background_google", "background", "_background_noise_", "clutter", "257.clutter")
HELD_OUT = "held out"  # the part that holds further images of the classes of "train"


class ImageSource(ABC):
    """A sequence of undecoded images, each of which is read only when it is fetched."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def name(self, i: int) -> str:
        """A unique name of image i for messages: its file, or file and row."""

    @abstractmethod
    def fetch(self, numbers: Sequence[int]) -> Iterator[RawImage]:
        """The images with these numbers, which must ascend; `b""` for one that cannot be read."""


@dataclass(frozen=True, eq=False)
class ImageIndex:
    """The images of a data set with their classes, none of them decoded yet."""

    path: Path
    form: str  # the kind of data set in words: "Tiny-ImageNet as its folders"
    classes: tuple[str, ...]
    labels: Int64[np.ndarray, " n"]
    images: ImageSource
    stamp: str  # changes when the data on disk change
    parts: tuple[str, ...] = ()  # of the data set's own split: "train", "val", "test"
    part: UInt8[np.ndarray, " n_or_none"] = field(default_factory=lambda: np.zeros(0, np.uint8))
    remarks: tuple[str, ...] = ()  # what users should know; see data/remarks.py
    image_size: int | None = None  # the usual size of this data set
    inverted: bool = False  # drawn dark on white, but usually shown white on dark
    empty_classes: tuple[str, ...] = ()  # of which there is no image

    def __post_init__(self) -> None:
        path, labels, n, n_classes = self.path, self.labels, len(self.images), len(self.classes)
        require(n > 0 and n_classes > 0, f"{path}: no image was found ({self.form}).")
        require(len(labels) == n, f"{path}: {n} images but {len(labels)} labels.")
        ok = int(labels.min()) >= 0 and int(labels.max()) < n_classes
        require(ok, f"{path}: some labels are not among the {n_classes} classes.")
        require(len(set(self.classes)) == n_classes, f"{path}: two classes have the same name.")
        ok = len(self.part) == (n if self.parts else 0)
        require(ok, f"{path}: the parts of the split do not cover all images.")
        names = [normalize_name(name) for name in self.classes]
        if names != list(self.classes):
            self._merge_classes(names)

    def _merge_classes(self, names: list[str]) -> None:
        """Merge classes of one name: one could be trained on while the other counts as unseen."""
        classes, new_labels = np.unique(np.array(names, dtype=object), return_inverse=True)
        object.__setattr__(self, "classes", tuple(classes))
        object.__setattr__(self, "labels", new_labels.reshape(-1)[self.labels])
        if merged := [name for name, n in Counter(names).items() if n > 1]:
            remark = (
                f"{pluralize(len(merged), 'class is', 'classes are')} written in several ways that "
                f"differ in blanks or accents only; their images were joined{first_example(merged)}"
            )
            object.__setattr__(self, "remarks", (*self.remarks, remark))

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def counts(self) -> Int64[np.ndarray, " classes"]:
        """Images per class."""
        return np.bincount(self.labels, minlength=len(self.classes))

    @property
    def all_remarks(self) -> tuple[str, ...]:
        """The remarks, and one on a class that looks like a background."""
        for name in self.classes:
            if name.lower() in BACKGROUND:
                what = (
                    f"{name} looks like a background, not a class; leave it out with 'kedge data "
                    f"pack' and --exclude {name}"
                )
                return *self.remarks, Remark(what, "label")
        return self.remarks

    def rename(self, names: Sequence[str]) -> ImageIndex:
        """The index with other class names; classes that get the same name are one class."""
        classes, new_labels = np.unique(np.array(names, dtype=object), return_inverse=True)
        stamp = hashlib.sha256("\0".join((self.stamp, *names)).encode()).hexdigest()
        labels = new_labels.reshape(-1)[self.labels]
        with_images = set(names)
        empty = tuple(name for name in self.empty_classes if name not in with_images)
        return replace(
            self, classes=tuple(classes), labels=labels, stamp=stamp, empty_classes=empty
        )

    def short_name(self, i: int) -> str:
        """The name of an image for messages about this data set: its path within it."""
        name = self.images.name(i)
        within = name.removeprefix(f"{self.path}/")
        return display_name(name.removeprefix(f"{self.path.parent}/") if within == name else within)

    def classes_of(self, part: str) -> tuple[str, ...]:
        """The classes with an image in a part of the split."""
        labels = np.unique(self.labels[self.part == self.parts.index(part)])
        return tuple(self.classes[i] for i in labels)

    def select_classes(self, classes: Collection[str]) -> ImageIndex:
        """The images of these classes; names that are not in the index are ignored."""
        wanted = {normalize_name(name) for name in classes}
        kept = [i for i, name in enumerate(self.classes) if name in wanted]
        if len(kept) == len(self.classes):
            return self
        return self.select(np.flatnonzero(np.isin(self.labels, kept)))

    def select(self, numbers: Int64[np.ndarray, " m"]) -> ImageIndex:
        """The images with these numbers, in this order, and their classes."""
        used, labels = np.unique(self.labels[numbers], return_inverse=True)
        classes, images = tuple(self.classes[i] for i in used), _SubsetImages(self.images, numbers)
        part = self.part[numbers] if self.parts else self.part
        return replace(self, classes=classes, labels=labels.reshape(-1), images=images, part=part)


class FileImages(ImageSource):
    """Files of a tree, one image each."""

    def __init__(self, tree: FileTree, names: Sequence[str]) -> None:
        self.tree, self.names = tree, names

    def __len__(self) -> int:
        return len(self.names)

    def name(self, i: int) -> str:
        return str(self.tree.path / self.names[i])

    def fetch(self, numbers: Sequence[int]) -> Iterator[RawImage]:
        return (self.tree.image(self.names[i]) for i in numbers)


class ArrayImages(ImageSource):
    """Images of several arrays (N×H×W×3 or N×H×W, uint8), which are usually memory-mapped."""

    def __init__(self, arrays: Sequence[np.ndarray], names: Sequence[str], bgr: bool = False):
        self.arrays, self.names, self.bgr = arrays, names, bgr
        self.starts = [0, *accumulate(len(array) for array in arrays)]

    def __len__(self) -> int:
        return self.starts[-1]

    def name(self, i: int) -> str:
        k = bisect_right(self.starts, i) - 1
        return f"{self.names[k]}, image {i - self.starts[k]}"

    def fetch(self, numbers: Sequence[int]) -> Iterator[RawImage]:
        for i in numbers:
            k = bisect_right(self.starts, i) - 1
            image = read_array(self.arrays[k][i - self.starts[k]])
            yield image[..., ::-1] if self.bgr else image
        for array in self.arrays:
            release_pages(array)


class ConcatImages(ImageSource):
    """The images of several sources, one source after the other."""

    def __init__(self, sources: Sequence[ImageSource]) -> None:
        self.sources, self.starts = sources, [0, *accumulate(map(len, sources))]

    def __len__(self) -> int:
        return self.starts[-1]

    def name(self, i: int) -> str:
        k = self._source(i)
        return self.sources[k].name(i - self.starts[k])

    def fetch(self, numbers: Sequence[int]) -> Iterator[RawImage]:
        for k, run in groupby(numbers, self._source):
            yield from self.sources[k].fetch([i - self.starts[k] for i in run])

    def _source(self, i: int) -> int:
        return bisect_right(self.starts, i) - 1


class _SubsetImages(ImageSource):
    def __init__(self, images: ImageSource, numbers: np.ndarray) -> None:
        self.images, self.numbers = images, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def name(self, i: int) -> str:
        return self.images.name(int(self.numbers[i]))

    def fetch(self, numbers: Sequence[int]) -> Iterator[RawImage]:
        return self.images.fetch(self.numbers[np.asarray(numbers, dtype=np.int64)].tolist())


def build_index(
    tree: FileTree,
    form: str,
    names: Sequence[str],
    images: ImageSource,
    *,
    parts: Sequence[str] = (),
    files: Sequence[str] | None = None,
    ignored: Sequence[str] = (),
    remarks: Sequence[str] = (),
    image_size: int | None = None,
    inverted: bool = False,
) -> ImageIndex:
    """An index from the class name (and the part of the split, if any) of each image.

    `files` hold the data, by default all of the tree; `ignored` ones are not remarked upon.
    """
    files = tree.names if files is None else files
    classes = tuple(sorted(set(names)))
    label = {name: i for i, name in enumerate(classes)}
    labels = np.fromiter((label[name] for name in names), np.int64, len(names))
    present = set(parts)
    usual_parts = [p for p in ("train", "val", "test", HELD_OUT) if p in present]
    all_parts = (*usual_parts, *sorted(present - {*usual_parts}))
    part = np.array([all_parts.index(name) for name in parts], dtype=np.uint8)
    all_remarks = (*tree.remarks, *remarks, *unread_remarks(tree, form, [*files, *ignored]))
    stamp, look = tree_stamp(tree, files), (image_size, inverted)
    return ImageIndex(
        tree.path, form, classes, labels, images, stamp, all_parts, part, all_remarks, *look
    )


def unread_remarks(tree: FileTree, form: str, known: Collection[str]) -> tuple[str, ...]:
    """Remarks on image files and Parquet files that the reader of this form did not use."""
    read, reason = set(known), f"not part of the data set that was read: {form}"
    others = [name for name in tree.names if name not in read]
    images = [name for name in others if looks_like_image(name)]
    parquet = [name for name in others if is_parquet(name) and _may_hold_images(tree, name)]
    kinds = ((images, "image"), (parquet, "Parquet file"))
    return tuple(remark for names, kind in kinds for remark in lost(names, kind, reason))


def _may_hold_images(tree: FileTree, name: str) -> bool:
    """Whether a Parquet file may hold images, rather than a table that describes them."""
    try:
        return holds_images(tree.local_path(name))
    except (KedgeError, OSError):  # damaged, or within an archive
        return True


def tree_stamp(tree: FileTree, files: Sequence[str]) -> str:
    """A hash that changes when a file is added, removed, renamed or written."""
    sha = hashlib.sha256()
    for name in files:
        sha.update(f"{name}\0{tree.stamp(name)}\0".encode())
    return sha.hexdigest()


def names_of_numbers(labels: Sequence[int | str]) -> list[str]:
    """Class names for numeric labels, zero-padded so that they sort; other names are kept."""
    most = max((label for label in labels if isinstance(label, int)), default=0)
    width = max(4, len(str(most)))
    return [f"class {x:0{width}d}" if isinstance(x, int) else x for x in labels]


def unique_names(names: Sequence[str]) -> tuple[str, ...]:
    """Names with the label appended to those that occur twice, as "crane" does in ImageNet."""
    count = Counter(names)
    return tuple(f"{name} ({i})" if count[name] > 1 else name for i, name in enumerate(names))


def evenly_spaced(n: int, most: int) -> list[int]:
    """At most `most` numbers below n, evenly spaced."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).astype(np.int64)).tolist()
