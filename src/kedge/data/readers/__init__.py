"""From what lies on disk to a catalogue of pictures. One file per format; detection is here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kedge.data.decode import looks_like_image, looks_like_other_image
from kedge.data.files.file_tree import open_tree
from kedge.data.files.sniff import reject_failed_download
from kedge.data.index import ImageIndex
from kedge.data.readers.base import Reader
from kedge.data.readers.cifar100 import Cifar100Reader
from kedge.data.readers.cifar_folders import CifarFoldersReader
from kedge.data.readers.folder import FolderReader
from kedge.data.readers.image_list import ImageListReader
from kedge.data.readers.labelled_arrays import LabelledArraysReader
from kedge.data.readers.mini_cache import MiniCacheReader
from kedge.data.readers.omniglot import OmniglotReader
from kedge.data.readers.parquet import ParquetReader
from kedge.data.readers.tiered import TieredReader
from kedge.data.readers.tiny_imagenet import TinyImageNetReader
from kedge.errors import KedgeError
from kedge.utils.text import shown

# The first that recognises the files reads them: particular forms stand before general ones.
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


def read_index(source: str | Path) -> ImageIndex:
    """What is there, whatever its form."""
    path = Path(source)
    if path.is_file():
        reject_failed_download(path)
    elif not path.is_dir():
        raise KedgeError(f"{path}: nothing is there.")
    tree = open_tree(path)
    for reader in READERS:
        if reader.recognises(tree):
            found = reader.read(tree)
            # A list or pickle that was given alone is called as it was, not as the folder it is in.
            return found if found.path == path else replace(found, path=path)
    if any(map(looks_like_image, tree.names)):
        raise KedgeError(
            f"{path}: images lie here, but not in class folders; expected one sub-folder per class "
            "with images in it: if this is one class, give the folder above it."
        )
    others = [n for n in tree.names if "." in n and looks_like_other_image(n)]
    if others:
        raise KedgeError(
            f"{path}: no image here is of a type that kedge reads, the first is "
            f"{shown(others[0])}; convert them to JPEG or PNG."
        )
    what = "this folder holds" if path.is_dir() else "this is"
    raise KedgeError(
        f"{path}: {what} no form of images that kedge knows; expected one sub-folder per class "
        "with images in it, or what 'kedge data inspect --help' lists."
    )
