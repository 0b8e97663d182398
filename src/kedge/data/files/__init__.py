"""Files of data sets: trees of files, archives, lists, pickles, .npz and Parquet."""

from __future__ import annotations

from pathlib import Path

from kedge.data.files.file_tree import FileTree, FolderTree
from kedge.data.files.tar_archive import Tar
from kedge.data.files.zip_archive import Zip

TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz", ".tbz2", ".tar.xz", ".txz")
ARCHIVE_SUFFIXES = (".zip", *TAR_SUFFIXES)


def open_tree(path: Path) -> FileTree:
    """The tree of a folder or an archive; for another file, a tree with that file alone."""
    if path.is_dir():
        return FolderTree(path)
    if path.name.lower().endswith(".zip"):
        return Zip(path)
    if path.name.lower().endswith(TAR_SUFFIXES):
        return Tar(path)
    return FolderTree(path.parent, (path.name,))
