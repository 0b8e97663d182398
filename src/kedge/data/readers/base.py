"""What a reader is. A new format is one file of this folder, and its name in `READERS`."""

from __future__ import annotations

from abc import ABC, abstractmethod

from kedge.data.files.file_tree import FileTree
from kedge.data.index import ImageIndex


class Reader(ABC):
    """One form in which people have images. It has no state."""

    form: str  # in words

    @abstractmethod
    def recognises(self, tree: FileTree) -> bool:
        """From the names of the files, and a look at the first bytes at most."""

    @abstractmethod
    def read(self, tree: FileTree) -> ImageIndex:
        """The catalogue; a `KedgeError` says in one sentence what is wrong with the files."""
