"""tieredImageNet: PNGs in a pickle, or pixels in an .npz, and the labels in a pickle beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from kedge.data.decode import Picture
from kedge.data.files.file_tree import FileTree
from kedge.data.files.npz import npz_images
from kedge.data.files.pickled import (
    copies_left_out,
    fields,
    names_by_number,
    same_length,
    uppermost,
    whole_numbers,
)
from kedge.data.files.sniff import reject_failed_download
from kedge.data.files.unpickle import unpickled
from kedge.data.index import (
    ImageIndex,
    ImageSource,
    Joined,
    catalogued,
    let_go,
    numbered,
)
from kedge.data.readers.base import Reader
from kedge.errors import KedgeError

SIDE = 84  # px
PARTS = ("train", "val", "test")
# Both hold the same images. PNGs come first: they are smaller, and their channels are in order.
PNG, ARRAY = "{}_images_png.pkl", "{}_images.npz"
FILES = tuple(form.format(part) for part in PARTS for form in (PNG, ARRAY))
LABELS = {f"{part}_labels.pkl": part for part in PARTS}


class TieredReader(Reader):
    form = "tieredImageNet as pickled PNGs or arrays, with pickled labels"

    def recognises(self, tree: FileTree) -> bool:
        return bool(uppermost(tree, FILES))

    def read(self, tree: FileTree) -> ImageIndex:
        found = uppermost(tree, FILES)
        remarks, forms, files = copies_left_out(tree, found), [], []
        pictures: list[ImageSource] = []
        names: list[str] = []
        parts: list[str] = []
        for part in PARTS:
            image_files = [found[f] for form in (PNG, ARRAY) if (f := form.format(part)) in found]
            if not image_files:
                continue
            if len(image_files) == 2:
                remarks.append(
                    f"{image_files[1]} was not read, as {image_files[0]} has the same images"
                )
            name = image_files[0]
            path = tree.local(name)
            beside = f"{name[: name.rfind('/') + 1]}{part}_labels.pkl"
            if not tree.local(beside).is_file():  # even where one file alone was asked for
                raise KedgeError(
                    f"{path}: expected {part}_labels.pkl beside it, which holds the labels of "
                    "these images; put it there."
                )
            png = name.endswith(".pkl")
            pictures.append(PngImages(path) if png else npz_images(path, "images", bgr=True))
            of, said = _class_of_each(tree.local(beside), part, len(pictures[-1]))
            forms.append("pickled PNGs" if png else "arrays")
            files += [name, beside]
            names += of
            remarks += said
            parts += [part] * len(of)
        remarks += [
            f"{name} has no images beside it and was left out"
            for file, name in uppermost(tree, LABELS).items()
            if LABELS[file] not in parts
        ]
        return catalogued(
            tree,
            f"tieredImageNet as {' and '.join(dict.fromkeys(forms))}",
            names,
            Joined(pictures),
            parts=parts,
            files=files,
            remarks=remarks,
            image_size=SIDE,
        )


def _class_of_each(path: Path, part: str, n: int) -> tuple[list[str], list[str]]:
    """Each part counts its classes from 0, so a number alone is not a name."""
    record = fields(path)
    key = "label_specific" if "label_specific" in record else "labels"  # MetaOptNet's
    if key not in record:
        raise KedgeError(f"{path}: expected 'label_specific' (or 'labels') in it.")
    labels: Int64[np.ndarray, " n"] = whole_numbers(record[key], path, f"'{key}'")
    same_length(path, n, len(labels))
    known = names_by_number(record.get("label_specific_str"), labels)
    if known:
        return [known[i] for i in labels.tolist()], []
    remarks = []
    if "label_specific_str" in record:
        remarks = [f"'label_specific_str' of {path.name} does not tell all classes apart"]
    return [f"{part} {name}" for name in numbered(labels.tolist())], remarks


class PngImages(ImageSource):
    """A pickled list with the bytes of a file in each place."""

    def __init__(self, path: Path) -> None:
        self.path = path
        reject_failed_download(path)
        self.items = unpickled(path)
        if not isinstance(self.items, list | tuple):
            raise KedgeError(
                f"{path}: expected a list of encoded images but found a "
                f"{type(self.items).__name__}; this is another form, or another file of that name."
            )
        wrong = next((i for i, item in enumerate(self.items) if not _is_bytes(item)), None)
        if wrong is not None:
            raise KedgeError(
                f"{path}: expected the bytes of an encoded image in each place of the list, which "
                f"number {wrong} is not."
            )

    def __len__(self) -> int:
        return len(self.items)

    def name(self, i: int) -> str:
        return f"{self.path}, image {i}"

    def fetch(self, numbers: Sequence[int]) -> Iterator[Picture]:
        for i in numbers:
            item = self.items[i]
            if isinstance(item, str):  # a short one of Python 2
                yield item.encode("latin1", "ignore")
            else:
                yield item.tobytes() if isinstance(item, np.ndarray) else bytes(item)
        if isinstance(last := self.items[-1], np.ndarray):
            let_go(last)  # all of them are views of one file


def _is_bytes(item: Any) -> bool:
    if isinstance(item, np.ndarray):  # OpenCV makes them N×1
        return item.dtype == np.uint8 and item.size == max(item.shape, default=0)
    return isinstance(item, bytes | memoryview | str)
