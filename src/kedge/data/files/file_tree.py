"""Files below one place: a folder, a .zip or a .tar, all listed and read in the same way."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Iterable
from pathlib import Path

from kedge.data.decode import Picture, looks_like_other_image
from kedge.data.files.archives import (
    LARGEST_MEMBER,
    Archive,
    Tar,
    Zip,
    is_hidden,
)
from kedge.errors import KedgeError
from kedge.utils.text import left_out, shown

ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz", ".tbz2", ".tar.xz", ".txz")
MOST_VISITS = 64  # to one folder by different links: more is a maze and not a split


class FileTree(ABC):
    """`names` are relative, with '/', in the order in which they are best read.

    Hidden files do not count. `remarks` say what was left out.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names: tuple[str, ...] = ()
        self.remarks: tuple[str, ...] = ()

    @abstractmethod
    def picture(self, name: str) -> Picture:
        """To be decoded. Of an archive, what cannot be read is empty."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """All bytes of a small file: a list of classes, say."""

    @abstractmethod
    def local(self, name: str) -> Path:
        """The file itself, for formats that must be mapped; not to be had of an archive."""

    @abstractmethod
    def stamp(self, name: str) -> str:
        """Changes when the file does."""

    def text(self, name: str) -> str:
        try:
            return self.read(name).decode("utf-8-sig")
        except UnicodeDecodeError:
            raise KedgeError(f"{self.path / name}: this text is not UTF-8; save it so.") from None


def open_tree(path: Path) -> FileTree:
    """Of a folder, of an archive, or of one file that stands alone."""
    if path.is_dir():
        return FolderTree(path)
    if path.name.lower().endswith(".zip"):
        return ArchiveTree(Zip(path))
    if path.name.lower().endswith(ARCHIVES):
        return ArchiveTree(Tar(path))
    return FolderTree(path.parent, (path.name,))


def unsupported_image_types(names: Iterable[str]) -> tuple[str, ...]:
    """A remark on those files that are images, it seems, but of no type that is read here."""
    return left_out(
        [name for name in names if looks_like_other_image(name)],
        "file is of no known image type",
        "files are of no known image type",
    )


class FolderTree(FileTree):
    """All files below a folder, or only some of them."""

    def __init__(self, path: Path, only: tuple[str, ...] | None = None) -> None:
        super().__init__(path)
        self._root = str(path)  # of a million files, no Path is made for each
        self.names = self._listed() if only is None else only

    def _listed(self) -> tuple[str, ...]:
        """Links to folders are followed, as splits are often made of them, but not in circles."""
        names: list[str] = []
        broken: list[str] = []
        empty: list[str] = []
        circles: list[str] = []
        visits: Counter[tuple[int, int]] = Counter()
        # Upper folders first: if there are too many ways to one, the short ones count.
        waiting: deque[tuple[str, tuple[tuple[int, int], ...]]] = deque([("", ())])
        while waiting:
            folder, above = waiting.popleft()
            here, entries = self._entries(folder)
            visits[here] += 1
            if here in above or visits[here] > MOST_VISITS:
                circles.append(folder.rstrip("/"))
                continue
            within, any_file = [], False
            for entry in entries:
                if is_hidden(entry.name):
                    continue
                name = f"{folder}{entry.name}"
                try:
                    name.encode()
                    if entry.is_dir():
                        within.append(f"{name}/")
                    elif entry.is_file():
                        names.append(name)
                        any_file = True
                    elif entry.is_symlink():
                        broken.append(name)
                except UnicodeEncodeError:
                    full = os.path.join(self._root, name)
                    raise KedgeError(f"{full!a}: this name is not UTF-8; rename it.") from None
                except OSError:  # a link to itself, or to what may not be seen
                    broken.append(name)
            waiting.extend((name, (*above, here)) for name in sorted(within))
            if folder and not within and not any_file:
                empty.append(folder.rstrip("/"))
        self.remarks = (
            *left_out(sorted(broken), "link leads nowhere", "links lead nowhere"),
            *left_out(
                circles,
                "folder is reached by links in circles",
                "folders are reached by links in circles",
            ),
            *left_out(sorted(empty), "folder is empty", "folders are empty"),
        )
        return tuple(sorted(names))

    def _entries(self, folder: str) -> tuple[tuple[int, int], list[os.DirEntry[str]]]:
        place = os.path.join(self._root, folder)
        try:
            info = os.stat(place)
            with os.scandir(place) as entries:
                return (info.st_dev, info.st_ino), list(entries)
        except OSError as error:
            raise KedgeError(f"{shown(place)}: cannot be read ({error.strerror}).") from None

    def picture(self, name: str) -> Picture:
        return self.path / name

    def read(self, name: str) -> bytes:
        place = self.path / name
        try:
            with open(place, "rb") as file:
                content = file.read(LARGEST_MEMBER + 1)
        except OSError as error:
            raise KedgeError(f"{place}: cannot be read ({error.strerror}).") from None
        if len(content) > LARGEST_MEMBER:
            raise KedgeError(
                f"{place}: larger than {LARGEST_MEMBER >> 20} MiB, which is too large."
            )
        return content

    def local(self, name: str) -> Path:
        return self.path / name

    def stamp(self, name: str) -> str:
        try:
            info = os.stat(os.path.join(self._root, name))
        except OSError as error:
            raise KedgeError(f"{self.path / name}: cannot be read ({error.strerror}).") from None
        return _stamp(info)


def _stamp(info: os.stat_result) -> str:
    """A file that was put in the place of another has its size and time, perhaps, but not these."""
    return f"{info.st_size} {info.st_mtime_ns} {info.st_ctime_ns} {info.st_ino}"


class ArchiveTree(FileTree):
    """The members of an archive, which stays packed."""

    def __init__(self, archive: Archive) -> None:
        super().__init__(archive.path)
        self._archive = archive
        self.names, self.remarks = archive.names, archive.remarks
        self._stamp = _stamp(os.stat(self.path))

    def picture(self, name: str) -> Picture:
        try:
            return self.read(name)
        except KedgeError:
            return b""

    def read(self, name: str) -> bytes:
        return self._archive.content(name)

    def local(self, name: str) -> Path:
        raise KedgeError(f"{self.path}: {name} cannot be read within an archive; unpack it first.")

    def stamp(self, name: str) -> str:
        return self._stamp
