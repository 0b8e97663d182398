"""The contract of a reader, which turns one data set format into an `ImageIndex`."""

from __future__ import annotations

from abc import ABC, abstractmethod

from kedge.data.files.file_tree import FileTree
from kedge.data.index import ImageIndex


class Reader(ABC):
    """One format in which data sets are stored. Readers have no state."""

    form: str  # the format's name, shown to users: "Omniglot"

    @abstractmethod
    def recognises(self, tree: FileTree) -> bool:
        """Whether the files have this format, by their names and at most their first bytes."""

    @abstractmethod
    def read(self, tree: FileTree) -> ImageIndex:
        """The class of every image, without decoding any; usually the result of `build_index`.

        Raises a `KedgeError` that names the file and what is wrong with it.
        """
