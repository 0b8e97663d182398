"""The files of a folder, a .zip or a .tar, all listed and read in the same way."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Iterable
from pathlib import Path

from kedge.data.damage import unreadable
from kedge.data.decode import (
    RawImage,
    is_heif_name,
    looks_like_unsupported_image,
)
from kedge.data.image_codec import NEEDS_HEIF
from kedge.data.remarks import lost
from kedge.errors import KedgeError
from kedge.utils.regular_file import open_regular
from kedge.utils.text import display_name, skipped_remark

# Folders that operating systems create.
JUNK = frozenset({"__MACOSX", "lost+found", "@eaDir", "$RECYCLE.BIN", "System Volume Information"})
MODEL_PICTURE = ".kedge.png"  # end of a file name
LARGEST_FILE = 1 << 28  # bytes of a file that is read at once
MAX_VISITS = 64  # to one folder by different links: more are a maze and no split


class FileTree(ABC):
    """All files below a path, without hidden ones."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names: tuple[str, ...] = ()  # relative, with '/', in the order that is read fastest
        self.remarks: tuple[str, ...] = ()  # what was skipped
        self.empty_folders: tuple[str, ...] = ()

    @abstractmethod
    def image(self, name: str) -> RawImage:
        """The undecoded image; `b""` for a damaged member of an archive."""

    @abstractmethod
    def read_bytes(self, name: str) -> bytes:
        """The content of a small file, such as a list of classes."""

    @abstractmethod
    def local_path(self, name: str) -> Path:
        """The path of a file that must be mapped; a `KedgeError` for members of an archive."""

    @abstractmethod
    def stamp(self, name: str) -> str:
        """A text that changes when the file changes."""

    def read_text(self, name: str) -> str:
        try:
            return self.read_bytes(name).decode("utf-8-sig")
        except UnicodeDecodeError:
            raise KedgeError(f"{self.path / name}: not UTF-8; save it as UTF-8.") from None


def is_hidden(component: str) -> bool:
    """Whether a component of a path is ignored, with everything below it. So are the pictures that
    kedge draws of models."""
    return component.startswith(".") or component in JUNK or component.endswith(MODEL_PICTURE)


def unsupported_image_types(names: Iterable[str]) -> tuple[str, ...]:
    """Remarks on image files of a type that is not read here."""
    files = [name for name in names if looks_like_unsupported_image(name)]
    heif = [name for name in files if is_heif_name(name)]
    others = [name for name in files if not is_heif_name(name)]
    return *lost(heif, "file", NEEDS_HEIF), *lost(others, "file", "unsupported image type")


class FolderTree(FileTree):
    """All files below a folder, or only those named in `only`."""

    def __init__(self, path: Path, only: tuple[str, ...] | None = None) -> None:
        super().__init__(path)
        self._root = str(path)  # a Path for each of a million files would be slow
        self.names = self._walk() if only is None else only

    def _walk(self) -> tuple[str, ...]:
        """Follows links to folders, of which splits are often made, but not in circles."""
        names, broken, empty, circular = (list[str]() for _ in range(4))
        visits: Counter[tuple[int, int]] = Counter()
        scans: dict[tuple[int, int], list[tuple[str, str]]] = {}
        # Breadth first: if there are too many ways to one folder, the short ones are kept.
        queue: deque[tuple[str, tuple[tuple[int, int], ...]]] = deque([("", ())])
        while queue:
            folder, parents = queue.popleft()
            path = os.path.join(self._root, folder)
            try:
                info = os.stat(path)
                inode = (info.st_dev, info.st_ino)
                visits[inode] += 1
                if inode in parents or visits[inode] > MAX_VISITS:
                    circular.append(folder.rstrip("/"))
                    continue
                if (entries := scans.get(inode)) is None:
                    entries = scans[inode] = _scan(path)
            except OSError as error:
                raise unreadable(display_name(path), error) from None
            subfolders, has_files = [], False
            for entry_name, kind in entries:
                name = f"{folder}{entry_name}"
                if kind == "folder":
                    subfolders.append(f"{name}/")
                elif kind == "file":
                    names.append(name)
                    has_files = True
                else:
                    broken.append(name)
            queue.extend((name, (*parents, inode)) for name in sorted(subfolders))
            if folder and not subfolders and not has_files:
                empty.append(folder.rstrip("/"))
        self.empty_folders = tuple(sorted(empty))
        self.remarks = (
            *lost(sorted(broken), "link", "broken"),
            *skipped_remark(circular, "folder", "links in a circle"),
            *lost(self.empty_folders, "folder", "empty"),
        )
        return tuple(sorted(names))

    def image(self, name: str) -> RawImage:
        return self.path / name

    def read_bytes(self, name: str) -> bytes:
        path = self.path / name
        try:
            with open_regular(path) as file:
                content = file.read(LARGEST_FILE + 1)
        except OSError as error:
            raise unreadable(path, error) from None
        if len(content) > LARGEST_FILE:
            raise KedgeError(f"{path}: too large, at most {LARGEST_FILE >> 20} MiB can be read.")
        return content

    def local_path(self, name: str) -> Path:
        return self.path / name

    def stamp(self, name: str) -> str:
        try:
            return stamp_of(os.stat(os.path.join(self._root, name)))
        except OSError as error:
            raise unreadable(self.path / name, error) from None


def _scan(path: str) -> list[tuple[str, str]]:
    """The names in a folder without hidden ones, each with "folder", "file" or "broken"."""
    found = []
    with os.scandir(path) as entries:
        for entry in entries:
            if is_hidden(entry.name):
                continue
            try:
                entry.name.encode()
                if entry.is_dir():
                    found.append((entry.name, "folder"))
                elif entry.is_file():
                    found.append((entry.name, "file"))
                elif entry.is_symlink():
                    found.append((entry.name, "broken"))
            except UnicodeEncodeError:
                raise KedgeError(f"{entry.path!a}: this name is not UTF-8; rename it.") from None
            except OSError:  # a link to itself, or no permission
                found.append((entry.name, "broken"))
    return found


def stamp_of(info: os.stat_result) -> str:
    """A stamp that changes even if a file is replaced by one of equal size and time."""
    return f"{info.st_size} {info.st_mtime_ns} {info.st_ctime_ns} {info.st_ino}"
