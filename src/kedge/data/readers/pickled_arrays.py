"""Pickles of arrays: miniImageNet in two formats, CIFAR-FS, and CIFAR-100 as published."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import UInt8

from kedge.data.files import pickle_fields
from kedge.data.files.file_tree import FileTree
from kedge.data.index import (
    HELD_OUT,
    PART_NAMES,
    ArrayImages,
    ImageIndex,
    build_index,
    names_of_numbers,
)
from kedge.data.readers.base import Reader
from kedge.data.remarks import lost
from kedge.errors import KedgeError
from kedge.utils.regular_file import open_regular
from kedge.utils.text import display_name

CACHE_FILES = {  # the part of each
    f"mini-imagenet-cache-{part}.pkl": PART_NAMES[part]
    for part in ("train", "val", "validation", "test")
}
NO_CLASS = ""  # stands for the class of images that the file assigns to none
LABELLED_FORMS = {  # by file name: the part, and the numbering of its labels
    "miniImageNet as pickles of a category split": {
        "miniImageNet_category_split_train_phase_train.pickle": ("train", "train"),
        "miniImageNet_category_split_train_phase_val.pickle": ("train_phase_val", "train"),
        "miniImageNet_category_split_train_phase_test.pickle": (HELD_OUT, "train"),
        "miniImageNet_category_split_val.pickle": ("val", "val"),
        "miniImageNet_category_split_test.pickle": ("test", "test"),
    },
    "CIFAR-FS as pickles": {
        f"CIFAR_FS_{part}.pickle": (part, part) for part in ("train", "val", "test")
    },
}
CIFAR_SIDE = 32  # px
CIFAR_FILES = ("train", "test", "meta")
PICKLE_STARTS = (*(bytes([0x80, protocol]) for protocol in range(6)), b"(dp", b"}q")


class MiniCacheReader(Reader):
    """`mini-imagenet-cache-{train,val,test}.pkl`: an array, and where each class's images are."""

    form = "miniImageNet as cache pickles"

    def recognises(self, tree: FileTree) -> bool:
        return bool(pickle_fields.find_by_name(tree, CACHE_FILES))

    def read(self, tree: FileTree) -> ImageIndex:
        paths = pickle_fields.find_by_name(tree, CACHE_FILES)
        arrays, names, parts, remarks = [], [], [], [*pickle_fields.duplicate_remarks(tree, paths)]
        for file, name in paths.items():
            part, path = CACHE_FILES[file], tree.local_path(name)
            if part in parts:
                raise KedgeError(f"{path}: another file holds the part '{part}'; keep one of them.")
            record = pickle_fields.load_dict(path, "image_data", "class_dict")
            arrays.append(pickle_fields.check_pixels(record["image_data"], path, "image_data"))
            of_part, empty = _class_of_each(record["class_dict"], path, part, len(arrays[-1]))
            names += of_part
            parts += [part] * len(of_part)
            without = [f"image {i}" for i, name in enumerate(of_part) if name == NO_CLASS]
            remarks += lost(without, "image", f"no class in {path.name}")
            remarks += lost(sorted(empty), "class", f"no image in {path.name}")
        return build_index(
            tree,
            self.form,
            names,
            ArrayImages(arrays, [str(tree.path / name) for name in paths.values()]),
            parts=parts,
            files=list(paths.values()),
            remarks=remarks,
        ).select_classes(set(names) - {NO_CLASS})


def _class_of_each(images_of: Any, path: Path, part: str, n: int) -> tuple[list[str], list[str]]:
    """The class name of each of n images, and the classes without images."""
    if not isinstance(images_of, dict) or not images_of:
        raise KedgeError(f"{path}: expected 'class_dict' to be a dict of classes and their images.")
    names, empty = np.full(n, NO_CLASS, dtype=object), []
    for key, positions in images_of.items():
        name = pickle_fields.class_name(key)
        if pickle_fields.is_int64(key) and key >= 0:
            name = f"{part} class {key:04}"  # each file counts from 0: a number is ambiguous
        if not name:
            raise KedgeError(f"{path}: 'class_dict' has an invalid class name, {key!a:.80}.")
        what = f"the images of {display_name(name)} in 'class_dict'"
        images = pickle_fields.non_negative_ints(positions, path, what)
        if images.max(initial=-1) >= n or {*names[images]} - {NO_CLASS, name}:
            raise KedgeError(f"{path}: {what} are not among the {n} images, or have two classes.")
        names[images] = name
        empty += [] if len(images) else [name]
    if n and not any(names):
        raise KedgeError(f"{path}: 'class_dict' names none of the {n} images.")
    return names.tolist(), empty


class LabelledArraysReader(Reader):
    """`miniImageNet_category_split_*.pickle` (Gidaris, MetaOptNet) and `CIFAR_FS_*.pickle`."""

    form = "miniImageNet or CIFAR-FS as pickles of arrays with labels"

    def recognises(self, tree: FileTree) -> bool:
        return any(pickle_fields.find_by_name(tree, files) for files in LABELLED_FORMS.values())

    def read(self, tree: FileTree) -> ImageIndex:
        found = {f: pickle_fields.find_by_name(tree, LABELLED_FORMS[f]) for f in LABELLED_FORMS}
        forms = [form for form in found if found[form]]
        if len(forms) != 1:
            both = " and ".join(forms) or "none"
            raise KedgeError(f"{tree.path}: expected one data set but found {both}; give its path.")
        [form], paths = forms, found[forms[0]]
        files = [
            _read_part(tree.local_path(paths[name]), *LABELLED_FORMS[form][name]) for name in paths
        ]
        labels = sorted({label for file in files for label in file.labels})
        numbered = dict(zip(labels, names_of_numbers(labels), strict=True))
        names: list[str] = []
        for file in files:
            # The file's own name, else that of a file with the same numbering that does not
            # contradict it, else one made of the number.
            name_of = {i: f"{file.numbering} {numbered[i]}" for i in set(file.labels)}
            for other in (*files, file):
                agrees = all(file.names.get(i, name) == name for i, name in other.names.items())
                if other.numbering == file.numbering and agrees:
                    name_of |= {i: name for i, name in other.names.items() if i in name_of}
            names += [name_of[label] for label in file.labels]
        return build_index(
            tree,
            form,
            names,
            ArrayImages([file.pixels for file in files], [str(file.path) for file in files]),
            parts=[file.part for file in files for _ in file.labels],
            files=list(paths.values()),
            remarks=[
                *(remark for file in files for remark in file.remarks),
                *pickle_fields.duplicate_remarks(tree, paths),
            ],
        )


class _PartFile(NamedTuple):
    """The content of one pickle."""

    path: Path
    part: str
    numbering: str  # files with the same numbering mean the same class by the same label
    pixels: UInt8[np.ndarray, "n h w 3"]
    labels: list[int]
    names: dict[int, str]  # by label, as far as the file has them
    remarks: list[str]


def _read_part(path: Path, part: str, numbering: str) -> _PartFile:
    record = pickle_fields.load_dict(path, "data", "labels")
    pixels = pickle_fields.check_pixels(record["data"], path, "data")
    labels = pickle_fields.non_negative_ints(record["labels"], path, "labels", len(pixels)).tolist()
    names: dict[int, str] = {}
    ambiguous, label_of = set(), record.get("catname2label")
    for key, label in label_of.items() if isinstance(label_of, dict) else ():
        if (name := pickle_fields.class_name(key)) and pickle_fields.is_int64(label):
            ambiguous |= {int(label)} & names.keys()
            names[int(label)] = name
    names = {label: names[label] for label in names.keys() - ambiguous}
    remarks = []
    if label_of is not None and (missing := set(labels) - names.keys()):
        n = f"{len(missing)} of its classes, the first is {min(missing)}"
        remarks = [f"'catname2label' of {path.name} does not name {n}"]
    return _PartFile(path, part, numbering, pixels, labels, names, remarks)


class Cifar100Reader(Reader):
    """`cifar-100-python/{train,test,meta}`.

    Train and test hold images of the same classes, which is no few-shot split: they are one set.
    """

    form = "CIFAR-100 as raw pickles"

    def recognises(self, tree: FileTree) -> bool:
        return bool(_cifar_files(tree))

    def read(self, tree: FileTree) -> ImageIndex:
        paths = _cifar_files(tree)
        image_files = [paths[file] for file in ("train", "test") if file in paths]
        arrays, labels = [], []
        for name in image_files:
            path = tree.local_path(name)
            record = pickle_fields.load_dict(path, "data", "fine_labels")
            # Rows of 1,024 red, 1,024 green and 1,024 blue values.
            rows, shape = record["data"], (-1, 3, CIFAR_SIDE, CIFAR_SIDE)
            is_uint8 = isinstance(rows, np.ndarray) and rows.dtype == np.uint8
            if not is_uint8 or rows.shape[1:] != (3 * CIFAR_SIDE**2,):
                raise KedgeError(f"{path}: expected 'data' to be uint8 of shape images×3072.")
            arrays.append(rows.reshape(shape).transpose(0, 2, 3, 1))
            fine, n = record["fine_labels"], len(arrays[-1])
            labels.append(pickle_fields.non_negative_ints(fine, path, "'fine_labels'", n))
        all_labels, names, remarks = np.concatenate(labels), [], []
        if "meta" in paths:
            meta = pickle_fields.load_dict(tree.local_path(paths["meta"]), "fine_label_names")
            names = pickle_fields.class_names(meta["fine_label_names"], all_labels)
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
            image_size=CIFAR_SIDE,
        )


def _cifar_files(tree: FileTree) -> dict[str, str]:
    """Paths by file name, from the folder nearest to the root that has them."""
    # The names are common, so unless all three are there, the files must be pickles.
    folders: dict[str, set[str]] = {}
    for name in tree.names:
        folder, slash, file = name.rpartition("/")
        if file in CIFAR_FILES:
            folders.setdefault(folder + slash, set()).add(file)
    single = len(tree.names) == 1  # the user gave one file
    for folder in sorted(folders, key=lambda f: (f.count("/"), f[:-1])):
        files = folders[folder]
        enough = files >= {"train", "test"} or (single and files != {"meta"})
        if len(files) == 3 or (enough and all(_is_pickle(tree, folder + f) for f in files)):
            if single and _is_pickle(tree, f"{folder}meta"):
                files = files | {"meta"}
            return {file: folder + file for file in CIFAR_FILES if file in files}
    return {}


def _is_pickle(tree: FileTree, name: str) -> bool:
    path = tree.path / name
    if path.is_file():  # reading from a pipe could block
        with suppress(OSError), open_regular(path) as file:
            return file.read(3).startswith(PICKLE_STARTS)
    return False
