"""miniImageNet as `mini-imagenet-cache-{train,val,test}.pkl`.

Each file holds one array of images and, for each class, the positions of its images in the array.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from kedge.data.files import pickle_fields
from kedge.data.files.file_tree import FileTree
from kedge.data.index import PART_NAMES, ArrayImages, ImageIndex, build_index
from kedge.data.readers.base import Reader
from kedge.errors import KedgeError
from kedge.utils.text import pluralize, skipped_remark

FILES = {
    f"mini-imagenet-cache-{part}.pkl": PART_NAMES[part]
    for part in ("train", "val", "validation", "test")
}
NO_CLASS = "\0"  # stands for the class of images that the file assigns to none


class MiniCacheReader(Reader):
    form = "miniImageNet as cache pickles"

    def recognises(self, tree: FileTree) -> bool:
        return bool(pickle_fields.find_by_name(tree, FILES))

    def read(self, tree: FileTree) -> ImageIndex:
        paths = pickle_fields.find_by_name(tree, FILES)
        arrays, names, parts, remarks = [], [], [], [*pickle_fields.duplicate_remarks(tree, paths)]
        for file, name in paths.items():
            part, path = FILES[file], tree.local_path(name)
            if part in parts:
                raise KedgeError(f"{path}: another file holds the part '{part}'; keep one of them.")
            record = pickle_fields.load_dict(path, "image_data", "class_dict")
            arrays.append(pickle_fields.check_pixels(record["image_data"], path, "image_data"))
            of_part = _class_of_each(record["class_dict"], path, part, len(arrays[-1]))
            names += of_part
            parts += [part] * len(of_part)
            without = [f"image {i}" for i, name in enumerate(of_part) if name == NO_CLASS]
            remarks += skipped_remark(without, "image", f"no class in {path.name}")
            empty = [
                pickle_fields.class_name(k) or str(k)
                for k, v in record["class_dict"].items()
                if not len(v)
            ]
            remarks += skipped_remark(sorted(empty), "class", f"no image in {path.name}")
        return build_index(
            tree,
            self.form,
            names,
            ArrayImages(arrays, [str(tree.path / name) for name in paths.values()]),
            parts=parts,
            files=list(paths.values()),
            remarks=remarks,
        ).select_classes(set(names) - {NO_CLASS})


def _class_of_each(images_of: Any, path: Path, part: str, n: int) -> list[str]:
    """The class name of each of n images, from the dict of each class's image positions."""
    if not isinstance(images_of, dict) or not images_of:
        raise KedgeError(f"{path}: expected 'class_dict' to be a dict of classes and their images.")
    classes = [_name(key, part, path) for key in images_of]
    labels = np.full(n, -1, np.int64)
    for k, value in enumerate(images_of.values()):
        images = pickle_fields.non_negative_ints(
            value, path, f"the images of {classes[k]!r} in 'class_dict'"
        )
        if images.max(initial=-1) >= n:
            found = f"class {classes[k]!r} has image {images.max()}"
            raise KedgeError(f"{path}: {found}, but the file has only {pluralize(n, 'image')}.")
        taken = images[(labels[images] >= 0) & (labels[images] != k)]
        if len(taken):
            both = f"{classes[labels[taken[0]]]!r} and of class {classes[k]!r}"
            raise KedgeError(f"{path}: image {taken[0]} is both of class {both}.")
        labels[images] = k
    if n and labels.max() < 0:
        raise KedgeError(f"{path}: 'class_dict' names none of the {n} images.")
    return [classes[k] if k >= 0 else NO_CLASS for k in labels.tolist()]


def _name(key: Any, part: str, path: Path) -> str:
    if (
        pickle_fields.is_int64(key) and key >= 0
    ):  # each file counts from 0, so a number alone is ambiguous
        return f"{part} class {key:04}"
    name = pickle_fields.class_name(key)
    if not name or name == NO_CLASS:
        raise KedgeError(f"{path}: expected class names in 'class_dict', not {key!a:.80}.")
    return name
