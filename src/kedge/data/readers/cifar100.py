"""CIFAR-100 as it is published: `cifar-100-python/{train,test,meta}`, pickles of Python 2.

Its two parts hold other images of the same classes, which is no split for few-shot learning, so
they are read as one set.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from kedge.data.files.file_tree import FileTree
from kedge.data.files.pickled import (
    fields,
    names_by_number,
    same_length,
    whole_numbers,
)
from kedge.data.index import (
    ArrayImages,
    ImageIndex,
    catalogued,
    numbered,
)
from kedge.data.readers.base import Reader
from kedge.errors import KedgeError

SIDE = 32  # px
PICKLED = (*(bytes([0x80, protocol]) for protocol in range(6)), b"(dp", b"}q")


class Cifar100Reader(Reader):
    form = "CIFAR-100 as raw pickles"

    def recognises(self, tree: FileTree) -> bool:
        return bool(_found(tree))

    def read(self, tree: FileTree) -> ImageIndex:
        found = _found(tree)
        images = [found[file] for file in ("train", "test") if file in found]
        if not images:
            raise KedgeError(f"{tree.path}: expected the files train, test and meta of CIFAR-100.")
        arrays, labels = [], []
        for name in images:
            path = tree.local(name)
            record = fields(path, "data", "fine_labels")
            arrays.append(_pixels(record["data"], path))
            labels.append(whole_numbers(record["fine_labels"], path, "'fine_labels'"))
            same_length(path, len(arrays[-1]), len(labels[-1]))
        numbers = np.concatenate(labels)
        names, remarks = [], []
        if "meta" in found:
            meta = fields(tree.local(found["meta"]), "fine_label_names")
            names = names_by_number(meta["fine_label_names"], numbers)
            if not names:
                remarks = ["'fine_label_names' of meta does not name all classes and was not used"]
        return catalogued(
            tree,
            f"{self.form}, {'train and test merged' if len(images) == 2 else 'one of two files'}",
            [names[i] for i in numbers.tolist()] if names else numbered(numbers.tolist()),
            ArrayImages(arrays, [str(tree.path / name) for name in images]),
            files=list(found.values()),
            remarks=remarks,
            image_size=SIDE,
        )


def _found(tree: FileTree) -> dict[str, str]:
    """The files in the uppermost folder that has them; their names alone say little."""
    folders: dict[str, set[str]] = {}
    for name in tree.names:
        folder, _, file = name.rpartition("/")
        if file in ("train", "test", "meta"):
            folders.setdefault(folder, set()).add(file)
    for folder in sorted(folders, key=lambda f: (f.count("/") + bool(f), f)):
        there = folders[folder]
        way = f"{folder}/" if folder else ""
        if there == {"train", "test", "meta"} or (
            (there >= {"train", "test"} or (len(tree.names) == 1 and there != {"meta"}))
            and all(_pickled(tree, f"{way}{file}") for file in there)
        ):
            if len(tree.names) == 1 and _pickled(tree, f"{way}meta"):  # it was not asked for
                there = there | {"meta"}
            return {file: f"{way}{file}" for file in ("train", "test", "meta") if file in there}
    return {}


def _pickled(tree: FileTree, name: str) -> bool:
    try:
        path = tree.local(name)
        if not path.is_file():  # a pipe, say, of which nobody knows when it speaks
            return False
        with open(path, "rb") as file:
            return file.read(3).startswith(PICKLED)
    except (KedgeError, OSError):
        return False


def _pixels(value: object, path: Path) -> UInt8[np.ndarray, "n 32 32 3"]:
    """All of red, then all of green, then all of blue, row by row."""
    n = 3 * SIDE * SIDE
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8 or value.shape[1:] != (n,):
        found = f"shape {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
        raise KedgeError(f"{path}: expected 'data' to be uint8 of shape images×{n}, not {found}.")
    return value.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
