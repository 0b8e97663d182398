"""tieredImageNet: per part, PNGs in a pickle or pixels in an .npz, and the labels in a pickle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kedge.data.decode import RawImage
from kedge.data.files import pickle_fields
from kedge.data.files.file_tree import FileTree
from kedge.data.files.mapped_file import read_array, release_pages
from kedge.data.files.npz import npz_images
from kedge.data.files.unpickle import load_pickle
from kedge.data.index import (
    ConcatImages,
    ImageIndex,
    ImageSource,
    build_index,
    names_of_numbers,
)
from kedge.data.readers.base import Reader
from kedge.errors import KedgeError

TIERED_PARTS = ("train", "val", "test")
# Both hold the same images. PNGs are preferred: they are smaller, and their channels are RGB.
TIERED_SUFFIXES = ("_images_png.pkl", "_images.npz")
IMAGE_FILES = tuple(part + suffix for part in TIERED_PARTS for suffix in TIERED_SUFFIXES)
LABEL_FILES = {f"{part}_labels.pkl": part for part in TIERED_PARTS}


class TieredReader(Reader):
    form = "tieredImageNet as pickled PNGs or arrays, with pickled labels"

    def recognises(self, tree: FileTree) -> bool:
        return bool(pickle_fields.find_by_name(tree, IMAGE_FILES))

    def read(self, tree: FileTree) -> ImageIndex:
        paths = pickle_fields.find_by_name(tree, IMAGE_FILES)
        label_files = pickle_fields.find_by_name(tree, LABEL_FILES)
        remarks, forms, files = [*pickle_fields.duplicate_remarks(tree, paths)], [], []
        sources, names, parts = list[ImageSource](), list[str](), list[str]()
        for label_name, part in LABEL_FILES.items():
            image_files = [paths[part + s] for s in TIERED_SUFFIXES if part + s in paths]
            if not image_files:
                unused = label_files.get(label_name)
                remarks += [f"{unused} skipped (no images beside it)"] if unused else []
                continue
            if len(image_files) == 2:
                remarks.append(f"{image_files[1]} skipped (same images as {image_files[0]})")
            name = image_files[0]
            path = tree.local_path(name)
            label_path = path.with_name(label_name)
            if not label_path.is_file():  # also if the user gave the image file alone
                raise KedgeError(f"{path}: its labels are missing; put {label_name} beside it.")
            is_png = name.endswith(".pkl")
            sources.append(_PngImages(path) if is_png else npz_images(path, "images"))
            of_part, label_remarks = _class_of_each(label_path, part, len(sources[-1]))
            forms.append("pickled PNGs" if is_png else "arrays")
            files += [name, f"{name[: name.rfind('/') + 1]}{label_name}"]
            names += of_part
            remarks += label_remarks
            parts += [part] * len(of_part)
        return build_index(
            tree,
            f"tieredImageNet as {' and '.join(dict.fromkeys(forms))}",
            names,
            ConcatImages(sources),
            parts=parts,
            files=files,
            remarks=remarks,
            image_size=84,
        )


def _class_of_each(path: Path, part: str, n_images: int) -> tuple[list[str], list[str]]:
    """The class name of each image of a part, and remarks."""
    record = pickle_fields.load_dict(path)
    key = "label_specific" if "label_specific" in record else "labels"  # MetaOptNet's
    labels = pickle_fields.non_negative_ints(record.get(key), path, f"'{key}'", n_images)
    if names := pickle_fields.class_names(record.get("label_specific_str"), labels):
        return [names[label] for label in labels.tolist()], []
    remarks = []
    if "label_specific_str" in record:
        remarks = [f"'label_specific_str' of {path.name} does not tell all classes apart"]
    # Each part counts from 0, so a number alone is ambiguous.
    return [f"{part} {name}" for name in names_of_numbers(labels.tolist())], remarks


class _PngImages(ImageSource):
    """A pickled list of encoded images."""

    def __init__(self, path: Path) -> None:
        self.path, self.items = path, load_pickle(path)
        if not isinstance(self.items, list | tuple) or not all(map(_is_bytes, self.items)):
            raise KedgeError(f"{path}: expected a list of encoded images.")

    def __len__(self) -> int:
        return len(self.items)

    def name(self, i: int) -> str:
        return f"{self.path}, image {i}"

    def fetch(self, numbers: Sequence[int]) -> Iterator[RawImage]:
        for i in numbers:
            item = self.items[i]
            if isinstance(item, str):  # a short string of Python 2
                yield item.encode("latin1", "ignore")
            else:
                yield read_array(np.asarray(item)).tobytes()
        if isinstance(last := self.items[-1], np.ndarray):
            release_pages(last)  # all arrays are views of one mapped file


def _is_bytes(item: Any) -> bool:
    if isinstance(item, np.ndarray):  # OpenCV writes N×1
        return item.dtype == np.uint8 and item.size == max(item.shape, default=0)
    return isinstance(item, bytes | memoryview | str)
