"""All images of a part of the split in one array, with a label for each, in one pickle.

`miniImageNet_category_split_*.pickle` (Gidaris, MetaOptNet) and `CIFAR_FS_*.pickle`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64, UInt8

from kedge.data.files.file_tree import FileTree
from kedge.data.files.pickled import (
    class_name,
    copies_left_out,
    fields,
    is_whole,
    pixels_of,
    same_length,
    uppermost,
    whole_numbers,
)
from kedge.data.index import (
    HELD_OUT,
    ArrayImages,
    ImageIndex,
    catalogued,
    numbered,
)
from kedge.data.readers.base import Reader
from kedge.errors import KedgeError

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

    def recognises(self, tree: FileTree) -> bool:
        return any(uppermost(tree, files) for files in FORMS.values())

    def read(self, tree: FileTree) -> ImageIndex:
        forms = {form: found for form in FORMS if (found := uppermost(tree, FORMS[form]))}
        if len(forms) != 1:
            raise KedgeError(
                f"{tree.path}: expected one data set but found {' and '.join(forms) or 'none'}; "
                "give the folder of one of them."
            )
        [(form, found)] = forms.items()
        loaded = [_Loaded(tree.local(found[file]), *FORMS[form][file]) for file in found]
        numbers = sorted({i for one in loaded for i in one.labels.tolist()})
        by_number = dict(zip(numbers, numbered(numbers), strict=True))
        names = [one.name_of(loaded, by_number) for one in loaded]
        return catalogued(
            tree,
            form,
            [by[i] for one, by in zip(loaded, names, strict=True) for i in one.labels.tolist()],
            ArrayImages([one.pixels for one in loaded], [str(one.path) for one in loaded]),
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
            if (name := class_name(key)) and is_whole(label):
                twice |= {int(label)} & self.known.keys()
                self.known[int(label)] = name
        self.known = {label: self.known[label] for label in self.known.keys() - twice}
        missing = set(self.labels.tolist()) - self.known.keys()
        if missing:
            self.remarks.append(
                f"'catname2label' of {self.path.name} does not name {len(missing)} of its classes, "
                f"the first is {min(missing)}"
            )

    def name_of(self, loaded: list[_Loaded], by_number: dict[int, str]) -> dict[int, str]:
        """By label; a file whose own names do not say may be helped by one of the same numbers."""
        names = {i: f"{self.numbering} {by_number[i]}" for i in set(self.labels.tolist())}
        for other in loaded:
            agrees = all(self.known.get(i, name) == name for i, name in other.known.items())
            if other.numbering == self.numbering and agrees:
                names |= {i: name for i, name in other.known.items() if i in names}
        return names | {i: name for i, name in self.known.items() if i in names}
