"""CIFAR-100 as published: `cifar-100-python/{train,test,meta}`, pickles of Python 2.

Train and test hold different images of the same classes, which is no few-shot split, so they are
read as one set.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from kedge.data.files.file_tree import FileTree
from kedge.data.files.pickle_fields import class_names, load_dict, non_negative_ints
from kedge.data.index import ArrayImages, ImageIndex, build_index, names_of_numbers
from kedge.data.readers.base import Reader
from kedge.errors import KedgeError

SIDE = 32  # px
FILES = ("train", "test", "meta")
PICKLE_STARTS = (*(bytes([0x80, protocol]) for protocol in range(6)), b"(dp", b"}q")


class Cifar100Reader(Reader):
    form = "CIFAR-100 as raw pickles"

    def recognises(self, tree: FileTree) -> bool:
        return bool(_find_files(tree))

    def read(self, tree: FileTree) -> ImageIndex:
        paths = _find_files(tree)
        image_files = [paths[file] for file in ("train", "test") if file in paths]
        arrays, labels = [], []
        for name in image_files:
            path = tree.local_path(name)
            record = load_dict(path, "data", "fine_labels")
            arrays.append(_pixels(record["data"], path))
            n = len(arrays[-1])
            labels.append(non_negative_ints(record["fine_labels"], path, "'fine_labels'", n))
        all_labels, names, remarks = np.concatenate(labels), [], []
        if "meta" in paths:
            meta = load_dict(tree.local_path(paths["meta"]), "fine_label_names")
            names = class_names(meta["fine_label_names"], all_labels)
            if not names:
                remarks = ["'fine_label_names' of meta does not name all classes and was not used"]
        numbers = all_labels.tolist()
        merged = "train and test merged" if len(image_files) == 2 else "one of two files"
        return build_index(
            tree,
            f"{self.form}, {merged}",
            [names[i] for i in numbers] if names else names_of_numbers(numbers),
            ArrayImages(arrays, [str(tree.path / name) for name in image_files]),
            files=list(paths.values()),
            remarks=remarks,
            image_size=SIDE,
        )


def _find_files(tree: FileTree) -> dict[str, str]:
    """Paths by file name, from the folder nearest to the root that has them.

    The names are common, so unless all three are there, the files must be pickles.
    """
    folders: dict[str, set[str]] = {}
    for name in tree.names:
        folder, slash, file = name.rpartition("/")
        if file in FILES:
            folders.setdefault(folder + slash, set()).add(file)
    single = len(tree.names) == 1  # the user gave one file
    for folder in sorted(folders, key=lambda f: (f.count("/"), f[:-1])):
        files = folders[folder]
        enough = files >= {"train", "test"} or (single and files != {"meta"})
        if files == set(FILES) or (enough and all(_is_pickle(tree, folder + f) for f in files)):
            if single and _is_pickle(tree, f"{folder}meta"):
                files = files | {"meta"}
            return {file: folder + file for file in FILES if file in files}
    return {}


def _is_pickle(tree: FileTree, name: str) -> bool:
    try:
        path = tree.local_path(name)
        if not path.is_file():  # reading from a pipe could block
            return False
        with open(path, "rb") as file:
            return file.read(3).startswith(PICKLE_STARTS)
    except (KedgeError, OSError):
        return False


def _pixels(value: object, path: Path) -> UInt8[np.ndarray, "n 32 32 3"]:
    """RGB images from rows of 1,024 red, 1,024 green and 1,024 blue values."""
    n = 3 * SIDE * SIDE
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8 or value.shape[1:] != (n,):
        found = f"shape {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
        raise KedgeError(f"{path}: expected 'data' to be uint8 of shape images×{n}, not {found}.")
    return value.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
