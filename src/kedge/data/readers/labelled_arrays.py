"""One pickle per part, with all images in one array and a label for each.

`miniImageNet_category_split_*.pickle` (Gidaris, MetaOptNet) and `CIFAR_FS_*.pickle`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64, UInt8

from kedge.data.files import pickle_fields
from kedge.data.files.file_tree import FileTree
from kedge.data.index import HELD_OUT, ArrayImages, ImageIndex, build_index, names_of_numbers
from kedge.data.readers.base import Reader
from kedge.errors import KedgeError

# By file name: the part, and the numbering of its labels.
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

    def recognises(self, tree: FileTree) -> bool:
        return any(pickle_fields.find_by_name(tree, files) for files in FORMS.values())

    def read(self, tree: FileTree) -> ImageIndex:
        forms = {
            form: paths
            for form in FORMS
            if (paths := pickle_fields.find_by_name(tree, FORMS[form]))
        }
        if len(forms) != 1:
            raise KedgeError(
                f"{tree.path}: expected one data set but found {' and '.join(forms) or 'none'}; "
                "give the folder of one of them."
            )
        [(form, paths)] = forms.items()
        files = [_PartFile(tree.local_path(paths[name]), *FORMS[form][name]) for name in paths]
        labels = sorted({label for file in files for label in file.labels.tolist()})
        numbered = dict(zip(labels, names_of_numbers(labels), strict=True))
        names: list[str] = []
        for file in files:
            name_of = file.class_names(files, numbered)
            names += [name_of[label] for label in file.labels.tolist()]
        return build_index(
            tree,
            form,
            names,
            ArrayImages([file.pixels for file in files], [str(file.path) for file in files]),
            parts=[file.part for file in files for _ in range(len(file.labels))],
            files=list(paths.values()),
            remarks=[
                *(remark for file in files for remark in file.remarks),
                *pickle_fields.duplicate_remarks(tree, paths),
            ],
        )


@dataclass
class _PartFile:
    """The content of one pickle."""

    path: Path
    part: str
    numbering: str  # files with the same numbering mean the same class by the same label
    pixels: UInt8[np.ndarray, "n h w 3"] = field(init=False)
    labels: Int64[np.ndarray, " n"] = field(init=False)
    names: dict[int, str] = field(default_factory=dict)  # by label, as far as the file has them
    remarks: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        record = pickle_fields.load_dict(self.path, "data", "labels")
        self.pixels = pickle_fields.check_pixels(record["data"], self.path, "data")
        n = len(self.pixels)
        self.labels = pickle_fields.non_negative_ints(record["labels"], self.path, "labels", n)
        if (label_of := record.get("catname2label")) is not None:
            self._read_names(label_of)

    def _read_names(self, label_of: Any) -> None:
        ambiguous = set()  # labels with two names
        for key, label in label_of.items() if isinstance(label_of, dict) else ():
            if (name := pickle_fields.class_name(key)) and pickle_fields.is_int64(label):
                ambiguous |= {int(label)} & self.names.keys()
                self.names[int(label)] = name
        self.names = {label: self.names[label] for label in self.names.keys() - ambiguous}
        missing = set(self.labels.tolist()) - self.names.keys()
        if missing:
            n = f"{len(missing)} of its classes, the first is {min(missing)}"
            self.remarks.append(f"'catname2label' of {self.path.name} does not name {n}")

    def class_names(self, files: list[_PartFile], numbered: dict[int, str]) -> dict[int, str]:
        """Names by label: the file's own, else those of a file with the same numbering that does
        not contradict it, else names made of the number."""
        names = {i: f"{self.numbering} {numbered[i]}" for i in set(self.labels.tolist())}
        for other in files:
            agrees = all(self.names.get(i, name) == name for i, name in other.names.items())
            if other.numbering == self.numbering and agrees:
                names |= {i: name for i, name in other.names.items() if i in names}
        return names | {i: name for i, name in self.names.items() if i in names}
