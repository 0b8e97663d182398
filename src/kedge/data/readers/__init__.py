"""Readers of data set formats, and `read_index`, which picks the right one.

To add a format, write a subclass of `Reader` (readers/base.py) in a new module and add it to
`READERS`; `omniglot.py` is a short example. Then add a writer of a small example to `FORMS` in
tests/data/conftest.py: all tests of the contract run on it. A new column of CSV or JSON Lines lists
needs no new reader: files/list_file.py parses the column and `image_list.py` uses it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kedge.data.damage import reject_failed_download
from kedge.data.decode import (
    is_heif_name,
    looks_like_image,
    looks_like_unsupported_image,
)
from kedge.data.delivery import ClassFolders
from kedge.data.files import ARCHIVE_SUFFIXES, open_tree
from kedge.data.image_codec import NEEDS_HEIF
from kedge.data.index import ImageIndex
from kedge.data.readers.base import Reader
from kedge.data.readers.folder import FolderReader
from kedge.data.readers.image_list import ImageListReader
from kedge.data.readers.listed_folders import CifarFoldersReader, TinyImageNetReader
from kedge.data.readers.omniglot import OmniglotReader
from kedge.data.readers.parquet import ParquetReader
from kedge.data.readers.pickled_arrays import Cifar100Reader, LabelledArraysReader, MiniCacheReader
from kedge.data.readers.tiered import TieredReader
from kedge.errors import KedgeError
from kedge.utils import progress
from kedge.utils.text import display_name

# The first reader that recognises the files reads them: special formats come before general ones.
READERS: tuple[Reader, ...] = (
    MiniCacheReader(),
    LabelledArraysReader(),
    TieredReader(),
    Cifar100Reader(),
    CifarFoldersReader(),
    OmniglotReader(),
    TinyImageNetReader(),
    ParquetReader(),
    ImageListReader(),
    FolderReader(),
)


def read_index(source: str | Path, classes: ClassFolders | None = None) -> ImageIndex:
    """The index of a folder, an archive or a file, in any format of `READERS`.

    `classes` says which of nested folders are the classes; other formats know their classes.
    """
    path = Path(source)
    if not path.exists():
        raise KedgeError(f"{path}: no such file or folder.")
    if not path.is_dir():
        reject_failed_download(path)
    tree = open_tree(path)
    for reader in READERS:
        if reader.recognises(tree):
            # For a single file, the tree is its folder: the index keeps the path of the file.
            if isinstance(reader, FolderReader):
                index = reader.read(tree, classes)
            else:
                index = reader.read(tree)
                if classes is not None:
                    progress.note_once(f"{path}: --classes has no effect on {index.form}")
            return index if index.path == path else replace(index, path=path)
    expected = "one sub-folder per class with images in it"
    if any(map(looks_like_image, tree.names)):
        hint = "if this folder is one class, give its parent folder"
        raise KedgeError(f"{path}: expected {expected}; {hint}.")
    unsupported = [n for n in tree.names if "." in n and looks_like_unsupported_image(n)]
    if unsupported:
        first = display_name(unsupported[0])
        todo = NEEDS_HEIF if is_heif_name(first) else "convert them to PNG"
        raise KedgeError(f"{path}: images such as {first} cannot be read ({todo}).")
    archives = [name for name in tree.names if name.lower().endswith(ARCHIVE_SUFFIXES)]
    if archives and path.is_dir():
        first = display_name(archives[0])
        todo = f"it has archives such as {first}: give one of them, or unpack them"
        raise KedgeError(f"{path}: expected {expected}; {todo}.")
    other = "or a format that 'kedge data inspect --help' lists"
    raise KedgeError(f"{path}: not a known data set format; expected {expected}, {other}.")
