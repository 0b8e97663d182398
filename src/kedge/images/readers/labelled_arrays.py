"""All images of a part of the split in one array, with a label for each, in one pickle.

`miniImageNet_category_split_*.pickle` (Gidaris, MetaOptNet) and `CIFAR_FS_*.pickle`. What readers
of other pickled arrays check in the same way is here too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64, UInt8

from kedge.errors import KedgeError
from kedge.images.pictures import MOST_PIXELS
from kedge.images.readers.contract import (
    HELD_OUT,
    ArrayPictures,
    Catalogue,
    Reader,
    catalogued,
    refuse_impostor,
)
from kedge.images.readers.unpickle import keys_as_text, text, unpickled
from kedge.images.trees import Tree

# The file, the part of the split, and whose numbers its labels are.
FORMS = {
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


class LabelledArraysReader(Reader):
    form = "miniImageNet or CIFAR-FS as pickles of arrays with labels"

    def recognises(self, tree: Tree) -> bool:
        return any(uppermost(tree, files) for files in FORMS.values())

    def read(self, tree: Tree) -> Catalogue:
        forms = {form: found for form in FORMS if (found := uppermost(tree, FORMS[form]))}
        if len(forms) != 1:
            raise KedgeError(
                f"{tree.path}: expected one data set but found {' and '.join(forms) or 'none'}; "
                "give the folder of one of them."
            )
        [(form, found)] = forms.items()
        loaded = [_Loaded(tree.local(found[file]), *FORMS[form][file]) for file in found]
        width = digits(one.labels for one in loaded)
        names = [one.name_of(loaded, width) for one in loaded]
        return catalogued(
            tree,
            form,
            [by[i] for one, by in zip(loaded, names, strict=True) for i in one.labels.tolist()],
            ArrayPictures([one.pixels for one in loaded], [str(one.path) for one in loaded]),
            parts=[one.part for one in loaded for _ in range(len(one.labels))],
            files=list(found.values()),
            remarks=[r for one in loaded for r in one.remarks] + copies_left_out(tree, found),
        )


@dataclass
class _Loaded:
    """One of the files."""

    path: Path
    part: str
    numbering: str  # files of the same one mean the same class by the same label
    pixels: UInt8[np.ndarray, "n h w 3"] = field(init=False)
    labels: Int64[np.ndarray, " n"] = field(init=False)
    known: dict[int, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        record = fields(self.path, "data", "labels")
        self.pixels = pixels_of(record["data"], self.path, "data")
        self.labels = whole_numbers(record["labels"], self.path, "labels")
        same_length(self.path, len(self.pixels), len(self.labels))
        self._learn(record.get("catname2label"))

    def _learn(self, by_name: Any) -> None:
        """A label that has two names has none, as nothing says which of them is right."""
        if by_name is None:
            return
        twice = set()
        for key, label in by_name.items() if isinstance(by_name, dict) else ():
            if (name := printable(key)) and is_whole(label):
                twice |= {int(label)} & self.known.keys()
                self.known[int(label)] = name
        self.known = {label: self.known[label] for label in self.known.keys() - twice}
        missing = set(self.labels.tolist()) - self.known.keys()
        if missing:
            self.remarks.append(
                f"'catname2label' of {self.path.name} does not name {len(missing)} of its classes, "
                f"the first is {min(missing)}"
            )

    def name_of(self, loaded: list[_Loaded], width: int) -> dict[int, str]:
        """By label; a file whose own names do not say may be helped by one of the same numbers."""
        names = {i: f"{self.numbering} class {i:0{width}}" for i in set(self.labels.tolist())}
        for other in loaded:
            agrees = all(self.known.get(i, name) == name for i, name in other.known.items())
            if other.numbering == self.numbering and agrees:
                names |= {i: name for i, name in other.known.items() if i in names}
        return names | {i: name for i, name in self.known.items() if i in names}


def uppermost(tree: Tree, wanted: Collection[str]) -> dict[str, str]:
    """Where the files of these names are, in whatever folder; the uppermost of several."""
    found: dict[str, list[str]] = {}
    for name in tree.names:
        if (file := name.rpartition("/")[2]) in wanted:
            found.setdefault(file, []).append(name)
    return {
        file: min(found[file], key=lambda name: (name.count("/"), name))
        for file in wanted
        if file in found
    }


def copies_left_out(tree: Tree, found: dict[str, str]) -> list[str]:
    """A remark, if there are other files of the names that were found."""
    read = set(found.values())
    copies = [n for n in tree.names if n.rpartition("/")[2] in found and n not in read]
    if not copies:
        return []
    return [f"{len(copies)} files of the same names were left out, the first is {copies[0]}"]


def fields(path: Path, *required: str) -> dict[Any, Any]:
    """The dict that a pickle holds, with text as its keys."""
    refuse_impostor(path)
    record = unpickled(path)
    if not isinstance(record, dict):
        raise KedgeError(
            f"{path}: expected a dict{' with ' * bool(required)}{_listed(required)} but found a "
            f"{type(record).__name__}; this is another form, or another file of that name."
        )
    record = keys_as_text(record)
    if missing := [key for key in required if key not in record]:
        has = _listed(map(str, list(record)[:6])) or "nothing"
        raise KedgeError(f"{path}: expected {_listed(missing)} in it but found {has:.200}.")
    return record


def pixels_of(value: Any, path: Path, key: str) -> UInt8[np.ndarray, "n h w 3"]:
    """Checked, not copied."""
    if not isinstance(value, np.ndarray):
        found = f"a {type(value).__name__}"
    elif value.dtype != np.uint8 or value.ndim != 4 or value.shape[3] != 3:
        found = f"{value.dtype} of shape {'×'.join(map(str, value.shape)) or 'none'}"
    elif not 0 < value.shape[1] * value.shape[2] <= MOST_PIXELS:
        found = f"images of {value.shape[1]}×{value.shape[2]} px"
    else:
        return value
    raise KedgeError(
        f"{path}: expected '{key}' to be uint8 of shape images×height×width×3 but found {found}."
    )


def whole_numbers(value: Any, path: Path, key: str) -> Int64[np.ndarray, " n"]:
    """Labels or indices, from a list or an array, none of them negative."""
    numbers = None
    if isinstance(value, np.ndarray) and value.dtype.kind in "iu":
        if value.size == max(value.shape, default=0) and (value.size == 0 or value.max() < 1 << 63):
            numbers = value.reshape(-1).astype(np.int64)
    elif isinstance(value, list | tuple) and all(map(is_whole, value)):
        numbers = np.fromiter(map(int, value), np.int64, len(value))
    if numbers is None or numbers.min(initial=0) < 0:
        raise KedgeError(
            f"{path}: expected {key} to be a list of whole numbers, 0 or more; this is another "
            "form, or the file is damaged."
        )
    return numbers


def is_whole(value: Any) -> bool:
    if not isinstance(value, int | np.integer) or isinstance(value, bool):
        return False
    return -(1 << 63) <= int(value) < 1 << 63


def same_length(path: Path, images: int, labels: int) -> None:
    if images != labels:
        raise KedgeError(
            f"{path}: expected a label for each image but there are {images} images and {labels} "
            "labels; get it again."
        )


def printable(value: Any) -> str:
    """The name of a class, as Python 2 or 3 wrote it; nothing if that is no text."""
    if not isinstance(value, str | bytes | memoryview) or len(value) > 1000:
        return ""
    name = text(value)
    try:
        name.encode()
    except UnicodeEncodeError:  # half a character
        return ""
    return name


def names_by_number(value: Any, labels: Int64[np.ndarray, " n"]) -> list[str]:
    """A list of names, if it has a different one for each label."""
    if isinstance(value, np.ndarray):
        value = value.tolist() if value.ndim == 1 and value.dtype.kind in "SU" else None
    if not isinstance(value, list | tuple) or len(value) <= labels.max(initial=0):
        return []
    names = [printable(name) for name in value]
    return names if all(names) and len(set(names)) == len(names) else []


def digits(labels: Iterable[np.ndarray], least: int = 4) -> int:
    """With so many, names that are numbers sort as numbers do."""
    return max([least, *(len(str(numbers.max(initial=0))) for numbers in labels)])


def _listed(keys: Iterable[str]) -> str:
    return ", ".join(map(ascii, keys))  # in one line, whatever they hold
