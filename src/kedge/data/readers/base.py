"""The contract of a reader, which turns one data set format into an `ImageIndex`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from kedge.data.files.file_tree import FileTree
from kedge.data.index import FileImages, ImageIndex, build_index


class Reader(ABC):
    """One format in which data sets are stored. Readers have no state."""

    form: str  # the format's name, shown to users: "Omniglot"

    @abstractmethod
    def recognises(self, tree: FileTree) -> bool:
        """Whether the files have this format, by their names and at most their first bytes."""

    @abstractmethod
    def read(self, tree: FileTree) -> ImageIndex:
        """The class of every image, without decoding any; a `KedgeError` if a file is wrong."""


def index_files(
    tree: FileTree, form: str, labels: Mapping[str, tuple[str, str]], **options: Any
) -> ImageIndex:
    """The index of image files, from the class and the part (or "") of each; see `build_index`."""
    classes = [class_name for class_name, _ in labels.values()]
    parts = [part for _, part in labels.values()]
    images, parts = FileImages(tree, list(labels)), parts if any(parts) else []
    return build_index(tree, form, classes, images, parts=parts, **options)
