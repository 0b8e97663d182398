"""Members of a .zip or a .tar, read where they are.

Nothing is ever unpacked to disk, so nothing can be written anywhere. What an archive says of
itself is not believed: sizes and numbers are bounded before memory or time is spent on them.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import re
import stat
import threading
import weakref
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from kedge.errors import KedgeError
from kedge.utils.text import (
    counted,
    first_of,
    left_out,
    shown,
)

LARGEST_MEMBER = 1 << 28  # bytes of one file, and of the table of contents
LARGEST_GROWTH = 200  # a file that unpacks to more than so many times its size is a bomb
LONGEST_NAME = 1 << 16  # bytes that a .tar may spend on one name
BLOCK = 512  # bytes: a .tar consists of such
# What systems leave in folders beside what people put there.
JUNK = frozenset({"__MACOSX", "lost+found", "@eaDir", "$RECYCLE.BIN", "System Volume Information"})
DRIVE = re.compile("[A-Za-z]:/")
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)

Member = TypeVar("Member")


def is_hidden(part: str) -> bool:
    """Of one part of a name: it does not count, nor does what lies below it."""
    return part.startswith(".") or part in JUNK


class Archive(ABC):
    """`names` are in the order in which they lie in the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names: tuple[str, ...] = ()
        self.remarks: tuple[str, ...] = ()
        try:
            self._bytes = os.stat(path).st_size
            self._open()
        except KedgeError:
            raise
        except Exception as error:  # damaged files make these libraries raise anything
            raise KedgeError(
                f"{path}: this archive is truncated or damaged, or not an archive "
                f"({_reason(error)}); get it again."
            ) from None

    @abstractmethod
    def _open(self) -> None:
        """May raise anything where the file is damaged."""

    @abstractmethod
    def _content(self, name: str) -> bytes:
        """May raise anything where the file is damaged."""

    def content(self, name: str) -> bytes:
        try:
            return self._content(name)
        except KedgeError:
            raise
        except Exception as error:  # as above
            raise KedgeError(
                f"{self.path}: {shown(name)} in it is damaged ({_reason(error)})."
            ) from None

    def _admitted(self, members: Iterable[tuple[str, Member]]) -> dict[str, Member]:
        """Those that count, by their plain names."""
        kept: dict[str, Member] = {}
        outside, twice = [], []
        for name, member in members:
            try:
                name.encode()
            except UnicodeEncodeError:
                raise KedgeError(
                    f"{self.path}: the name {name!a} in it is not UTF-8; unpack it and rename that."
                ) from None
            parts = [part for part in name.split("/") if part not in ("", ".")]
            if ".." in parts or "\\" in name or name.startswith("/") or DRIVE.match(name):
                outside.append(name)
            elif parts and not any(map(is_hidden, parts)):
                plain = "/".join(parts)
                if kept.pop(plain, None) is not None:
                    twice.append(plain)
                kept[plain] = member
        self.remarks += left_out(
            outside,
            "member of the archive has a name that leads out of it",
            "members of the archive have names that lead out of it",
        )
        if twice:
            what = counted(len(twice), "name occurs", "names occur")
            self.remarks += (
                f"{what} more than once in the archive and the last counts{first_of(twice)}",
            )
        return kept

    def _refuse_bomb(self, total: int) -> None:
        if total > LARGEST_GROWTH * max(self._bytes, 1 << 20):
            raise KedgeError(
                f"{self.path}: this archive of {self._bytes} bytes says it holds {total} or more; "
                "that is no archive of images, and it was not unpacked."
            )

    def _refuse_large(self, name: str, size: int) -> None:
        if size > LARGEST_MEMBER:
            raise KedgeError(
                f"{self.path}: {shown(name)} in it has {size} bytes, which is too large."
            )


class Zip(Archive):
    def _open(self) -> None:
        file = _Modest(self.path)
        weakref.finalize(self, file.close)
        self._zip = zipfile.ZipFile(file)
        members, links = [], []
        for member in self._zip.infolist():
            if stat.S_ISLNK(member.external_attr >> 16):
                links.append(member.filename)
            elif not member.is_dir():
                # Some packers of Windows write backslashes, which the format forbids.
                members.append((member.filename.replace("\\", "/"), member))
        self._members = self._admitted(members)
        self.remarks += left_out(
            links, "member of the archive is a link", "members of the archive are links"
        )
        for name, member in self._members.items():
            if member.flag_bits & 1:
                raise KedgeError(f"{self.path}: this archive is encrypted; unpack it first.")
            if member.compress_type not in METHODS:
                raise KedgeError(
                    f"{self.path}: {shown(name)} in it is packed by method {member.compress_type},"
                    " which is not known here; unpack it first."
                )
        self._refuse_bomb(sum(member.file_size for member in self._members.values()))
        self.names = tuple(self._members)

    def _content(self, name: str) -> bytes:
        member = self._members[name]
        self._refuse_large(name, member.file_size)
        with self._zip.open(member) as file:
            # No more than it claims: what is packed may be more, and then its checksum is wrong.
            return file.read(member.file_size + 1)


class _Modest(io.FileIO):
    """A table of contents that claims to be enormous is not fetched."""

    def read(self, size: int | None = -1, /) -> Any:
        if size is not None and size > LARGEST_MEMBER + 1:
            raise ValueError(f"its table of contents says it has {size} bytes")
        return super().read(-1 if size is None else size)


class Place(NamedTuple):
    """Where in a .tar the bytes of a member are."""

    start: int
    size: int


class Tar(Archive):
    """Read without Python's tarfile, which keeps a kilobyte for each member, and which headers
    that were made for it keep busy for hours or make it read whatever size they claim."""

    def _open(self) -> None:
        self._file = _unpacking(self.path)
        self._turn = threading.Lock()  # one file, one position in it
        weakref.finalize(self, self._file.close)
        self._links: list[str] = []
        self._members = self._admitted(self._listed())
        self.remarks += left_out(
            self._links,
            "member of the archive is a link or no plain file",
            "members of the archive are links or no plain files",
        )
        self.names = tuple(self._members)
        if not isinstance(self._file, io.BufferedReader):
            while self._file.read(1 << 16):  # to the checksum, which stands at the very end
                self._refuse_bomb(self._file.tell())

    def _listed(self) -> Iterator[tuple[str, Place]]:
        told: dict[str, str] = {}  # what an entry says of the one that follows
        at = 0
        while (header := self._block(at)).strip(b"\0"):
            _check(header)
            at += BLOCK
            size = _number(header[124:136])
            kind = header[156:157]
            if kind in b"xXLKg":
                if not 0 <= size <= LONGEST_NAME:
                    raise ValueError(f"a name in it says it has {size} bytes")
                text = self._file.read(size)
                if kind == b"L":
                    told["path"] = _text(text)
                elif kind in b"xX":
                    told |= _records(text)
            else:
                size = int(told.get("size", size))
                name = told.get("path") or _name(header)
                sparse = any(key.startswith("GNU.sparse") for key in told) if told else False
                told = {}
                if kind in b"123456":
                    size = 0  # links and folders have no bytes, whatever they say
                if size < 0:
                    raise ValueError("a size in it is negative")
                if kind in b"07\0" and not sparse and not name.endswith("/"):
                    yield name, Place(at, size)
                elif kind != b"5" and not name.endswith("/"):
                    self._links.append(name)
                more = kind == b"S" and header[482]
                while more:  # the table of a file with holes is continued
                    more = self._block(at)[504]
                    at += BLOCK
            at += -(-size // BLOCK) * BLOCK

    def _block(self, at: int) -> bytes:
        self._refuse_bomb(at)  # before it is unpacked up to there
        self._file.seek(at)
        block = self._file.read(BLOCK)
        if len(block) < BLOCK:
            raise EOFError("it ends without the mark of the end")
        return block

    def _content(self, name: str) -> bytes:
        start, size = self._members[name]
        self._refuse_large(name, size)
        with self._turn:
            self._file.seek(start)
            content = self._file.read(size)
        if len(content) < size:
            raise EOFError("it ends too early")
        return content


def _unpacking(path: Path) -> io.BufferedIOBase:
    """By the first bytes: many a .tar.gz is called .tar, and the other way round."""
    with open(path, "rb") as file:
        start = file.read(6)
    if start.startswith(b"\x1f\x8b"):
        return gzip.open(path)
    if start.startswith(b"BZh"):
        return bz2.open(path)
    if start.startswith(b"\xfd7zXZ\0"):
        return lzma.open(path)
    return open(path, "rb")


def _check(header: bytes) -> None:
    plain = header[:148] + b" " * 8 + header[156:]
    excess = sum(plain) - _number(header[148:156])
    if excess and excess != 256 * sum(byte > 127 for byte in plain):  # as old packers counted
        raise ValueError("an entry has a wrong checksum")


def _number(field: bytes) -> int:
    """In octal digits, or, where it is large, in bytes."""
    if field[0] & 0x80:
        return int.from_bytes(field, "big") & ((1 << 8 * len(field) - 1) - 1)
    return int(field.split(b"\0")[0].strip() or b"0", 8)


def _name(header: bytes) -> str:
    name = _text(header[:100])
    before = _text(header[345:500]) if header[257:263] == b"ustar\0" else ""
    return f"{before}/{name}" if before else name


def _text(field: bytes) -> str:
    return field.split(b"\0")[0].decode(errors="surrogateescape")


def _records(text: bytes) -> dict[str, str]:
    """`length key=value` and a line feed, one after the other; the length includes itself."""
    records = {}
    while text.strip(b"\0"):
        length = int(text[: text.index(b" ")])
        key, equals, value = text[text.index(b" ") + 1 : length].partition(b"=")
        if not (0 < length <= len(text) and equals):
            raise ValueError("a name in it is damaged")
        records[_text(key)] = value.removesuffix(b"\n").decode(errors="surrogateescape")
        text = text[length:]
    return records


def _reason(error: Exception) -> str:
    """On one line, and never empty."""
    return " ".join(str(error).split())[:120] or type(error).__name__
