"""`mini-imagenet-cache-{train,val,test}.pkl`: an array, and which rows of it make up a class."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from kedge.data.files.file_tree import FileTree
from kedge.data.files.pickled import (
    class_name,
    copies_left_out,
    fields,
    is_whole,
    pixels_of,
    uppermost,
    whole_numbers,
)
from kedge.data.index import (
    PART_NAMES,
    ArrayImages,
    ImageIndex,
    catalogued,
)
from kedge.data.readers.base import Reader
from kedge.errors import KedgeError
from kedge.utils.text import counted, left_out

FILES = {
    f"mini-imagenet-cache-{part}.pkl": PART_NAMES[part]
    for part in ("train", "val", "validation", "test")
}
NOT_NAMED = "\0"  # sorts first, and is the name of no class


class MiniCacheReader(Reader):
    form = "miniImageNet as cache pickles"

    def recognises(self, tree: FileTree) -> bool:
        return bool(uppermost(tree, FILES))

    def read(self, tree: FileTree) -> ImageIndex:
        found = uppermost(tree, FILES)
        arrays, names, parts, remarks = [], [], [], copies_left_out(tree, found)
        for file, name in found.items():
            if FILES[file] in parts:
                raise KedgeError(
                    f"{tree.path / name}: there is a file for the part '{FILES[file]}' already; "
                    "keep one of them."
                )
            path = tree.local(name)
            record = fields(path, "image_data", "class_dict")
            pixels = pixels_of(record["image_data"], path, "image_data")
            of = _class_of_each(record["class_dict"], path, FILES[file], len(pixels))
            remarks += _remarks(record["class_dict"], of, path)
            arrays.append(pixels)
            names += of
            parts += [FILES[file]] * len(of)
        return catalogued(
            tree,
            self.form,
            names,
            ArrayImages(arrays, [str(tree.path / name) for name in found.values()]),
            parts=parts,
            files=list(found.values()),
            remarks=remarks,
        ).only(set(names) - {NOT_NAMED})


def _class_of_each(by_class: Any, path: Path, part: str, n: int) -> list[str]:
    if not isinstance(by_class, dict) or not by_class:
        raise KedgeError(f"{path}: expected 'class_dict' to be a dict of classes and their images.")
    classes = [_named(key, part, path) for key in by_class]
    number = np.full(n, -1, np.int64)
    for k, value in enumerate(by_class.values()):
        rows = whole_numbers(value, path, f"the images of {classes[k]!r} in 'class_dict'")
        if rows.max(initial=-1) >= n:
            raise KedgeError(
                f"{path}: class {classes[k]!r} has image {rows.max()}, but the file has only "
                f"{counted(n, 'image')}; get it again."
            )
        taken = rows[(number[rows] >= 0) & (number[rows] != k)]
        if len(taken):
            other = classes[number[taken[0]]]
            raise KedgeError(
                f"{path}: image {taken[0]} is both of class {other!r} and of class {classes[k]!r}."
            )
        number[rows] = k
    if n and number.max() < 0:
        raise KedgeError(f"{path}: 'class_dict' names none of the {n} images.")
    return [classes[k] if k >= 0 else NOT_NAMED for k in number.tolist()]


def _named(key: Any, part: str, path: Path) -> str:
    if is_whole(key) and key >= 0:  # numbers start again in each file, so they are not enough
        return f"{part} class {key:04}"
    name = class_name(key)
    if not name or name == NOT_NAMED:
        raise KedgeError(f"{path}: expected names of classes in 'class_dict', not {key!a:.80}.")
    return name


def _remarks(by_class: dict[Any, Any], of: Iterable[str], path: Path) -> list[str]:
    return [
        *left_out(
            [f"image {i}" for i, name in enumerate(of) if name == NOT_NAMED],
            f"image of {path.name} is of no class",
            f"images of {path.name} are of no class",
        ),
        *left_out(
            sorted(class_name(key) or str(key) for key, rows in by_class.items() if not len(rows)),
            f"class of {path.name} has no image",
            f"classes of {path.name} have no image",
        ),
    ]
