"""Members of a .zip or a .tar, read in place: nothing is ever unpacked to disk.

An archive's headers are not trusted: sizes and counts are bounded before memory or time is spent.
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
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from kedge.data.decode import RawImage
from kedge.data.files.file_tree import LARGEST_FILE, FileTree, damage_as_error, is_hidden, stamp_of
from kedge.data.remarks import lost
from kedge.errors import KedgeError
from kedge.utils.text import display_name, skipped_remark

LARGEST_GROWTH = 200  # a file that unpacks to more than this many times its size is a bomb
LONGEST_NAME = 1 << 16  # bytes that a .tar may spend on one name
BLOCK = 512  # bytes, the unit of a .tar
DRIVE = re.compile("[A-Za-z]:/")
ZIP_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)


class Archive(FileTree):
    """The members of an archive; `names` are in the order of the file."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        with damage_as_error(path):
            info = os.stat(path)
            self._bytes, self._stamp = info.st_size, stamp_of(info)
            self._open()

    @abstractmethod
    def _open(self) -> None:
        """List the members; may raise any exception if the file is damaged."""

    @abstractmethod
    def _content(self, name: str) -> bytes:
        """The bytes of a member; may raise any exception if the file is damaged."""

    def read_bytes(self, name: str) -> bytes:
        with damage_as_error(f"{self.path}: {display_name(name)} in it"):
            return self._content(name)

    def image(self, name: str) -> RawImage:
        try:
            return self.read_bytes(name)
        except KedgeError:
            return b""

    def local_path(self, name: str) -> Path:
        raise KedgeError(f"{self.path}: {name} cannot be read within an archive; unpack it first.")

    def stamp(self, name: str) -> str:
        return self._stamp

    def _safe_members(self, members: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        """The members that are not hidden and stay below the archive's root, by normalized name."""
        kept: dict[str, Any] = {}
        outside, repeated = [], []
        for name, member in members:
            try:
                name.encode()
            except UnicodeEncodeError:
                raise KedgeError(f"{self.path}: the name {name!a} in it is not UTF-8.") from None
            parts = [part for part in name.split("/") if part not in ("", ".")]
            if ".." in parts or "\\" in name or name.startswith("/") or DRIVE.match(name):
                outside.append(name)
            elif parts and not any(map(is_hidden, parts)):
                normalized = "/".join(parts)
                if kept.pop(normalized, None) is not None:
                    repeated.append(normalized)
                kept[normalized] = member
        self.remarks += lost(outside, "member", "its name leads out of the archive")
        self.remarks += skipped_remark(repeated, "member", "a later one has the same name")
        return kept

    def _refuse_bomb(self, total: int) -> None:
        if total > LARGEST_GROWTH * max(self._bytes, 1 << 20):
            raise KedgeError(f"{self.path}: not unpacked, it claims to hold {total} bytes or more.")

    def _refuse_large(self, name: str, size: int) -> None:
        if size > LARGEST_FILE:
            what = f"{display_name(name)} in it is too large ({size} bytes)"
            raise KedgeError(f"{self.path}: {what}.")


class Zip(Archive):
    def _open(self) -> None:
        file = _BoundedFile(self.path)
        weakref.finalize(self, file.close)
        self._zip = zipfile.ZipFile(file)
        members, links = [], []
        for member in self._zip.infolist():
            if stat.S_ISLNK(member.external_attr >> 16):
                links.append(member.filename)
            elif not member.is_dir():
                # Some Windows programs write backslashes, which the format forbids.
                members.append((member.filename.replace("\\", "/"), member))
        self._members = self._safe_members(members)
        self.remarks += lost(links, "member", "a link in the archive")
        kept = self._members.values()
        if any(member.flag_bits & 1 or member.compress_type not in ZIP_METHODS for member in kept):
            what = "encrypted, or compressed by an unknown method"
            raise KedgeError(f"{self.path}: {what}; unpack it first.")
        self._refuse_bomb(sum(member.file_size for member in kept))
        self.names = tuple(self._members)

    def _content(self, name: str) -> bytes:
        member = self._members[name]
        self._refuse_large(name, member.file_size)
        with self._zip.open(member) as file:
            # One byte more than claimed: if there is more, zipfile finds a wrong checksum.
            return file.read(member.file_size + 1)


class _BoundedFile(io.FileIO):
    """Refuses to read a table of contents that claims to be enormous."""

    def read(self, size: int | None = -1, /) -> Any:
        if size is not None and size > LARGEST_FILE + 1:
            raise ValueError(f"its table of contents claims {size} bytes")
        return super().read(-1 if size is None else size)


class Tar(Archive):
    """A .tar, compressed or not."""

    # Python's tarfile takes a kilobyte per member, and hostile headers keep it busy for hours or
    # make it read whatever size they claim.

    def _open(self) -> None:
        self._file = _open_decompressed(self.path)
        self._lock = threading.Lock()  # threads share the position in the file
        weakref.finalize(self, self._file.close)
        self._links: list[str] = []
        self._members = self._safe_members(self._scan())
        self.remarks += lost(self._links, "member", "a link or no plain file")
        self.names = tuple(self._members)
        if not isinstance(self._file, io.BufferedReader):
            while self._file.read(1 << 16):  # up to the checksum at the very end
                self._refuse_bomb(self._file.tell())

    def _scan(self) -> Iterator[tuple[str, tuple[int, int]]]:
        """The name of each member, and the position and the number of its bytes."""
        extended: dict[str, str] = {}  # extended header of the next member
        at = 0
        while (header := self._block(at)).strip(b"\0"):
            _check(header)
            at += BLOCK
            size = _number(header[124:136])
            kind = header[156:157]
            if kind in b"xXLKg":
                if not 0 <= size <= LONGEST_NAME:
                    raise ValueError(f"a name in it claims {size} bytes")
                text = self._file.read(size)
                if kind == b"L":
                    extended["path"] = _text(text)
                elif kind in b"xX":
                    extended |= _records(text)
            else:
                size = int(extended.get("size", size))
                prefix = _text(header[345:500]) if header[257:263] == b"ustar\0" else ""
                name = f"{prefix}/{_text(header[:100])}" if prefix else _text(header[:100])
                name = extended.get("path") or name
                sparse = any(key.startswith("GNU.sparse") for key in extended)
                extended = {}
                if kind in b"123456":
                    size = 0  # links and folders have no bytes, whatever the header claims
                if size < 0:
                    raise ValueError("a size in it is negative")
                if kind in b"07\0" and not sparse and not name.endswith("/"):
                    yield name, (at, size)
                elif kind != b"5" and not name.endswith("/"):
                    self._links.append(name)
                more = kind == b"S" and header[482]
                while more:  # further blocks of a sparse file's table
                    more = self._block(at)[504]
                    at += BLOCK
            at += -(-size // BLOCK) * BLOCK

    def _block(self, at: int) -> bytes:
        self._refuse_bomb(at)  # before seeking, which decompresses up to there
        self._file.seek(at)
        block = self._file.read(BLOCK)
        if len(block) < BLOCK:
            raise EOFError("its end is missing")
        return block

    def _content(self, name: str) -> bytes:
        start, size = self._members[name]
        self._refuse_large(name, size)
        with self._lock:
            self._file.seek(start)
            content = self._file.read(size)
        if len(content) < size:
            raise EOFError("it ends too early")
        return content


def _open_decompressed(path: Path) -> io.BufferedIOBase:
    """The .tar's bytes. The first bytes tell the compression: names are often wrong."""
    with open(path, "rb") as file:
        start = file.read(6)
    openers: dict[bytes, Any] = {b"\x1f\x8b": gzip, b"BZh": bz2, b"\xfd7zXZ\0": lzma, b"": io}
    return next(openers[magic].open(path, "rb") for magic in openers if start.startswith(magic))


def _check(header: bytes) -> None:
    plain = header[:148] + b" " * 8 + header[156:]
    excess = sum(plain) - _number(header[148:156])
    # Old programs summed signed bytes.
    if excess and excess != 256 * sum(byte > 127 for byte in plain):
        raise ValueError("an entry has a wrong checksum")


def _number(field: bytes) -> int:
    """A number in octal digits or, if large, in big-endian bytes."""
    if field[0] & 0x80:
        return int.from_bytes(field, "big") & ((1 << 8 * len(field) - 1) - 1)
    return int(field.split(b"\0")[0].strip() or b"0", 8)


def _text(field: bytes) -> str:
    return field.split(b"\0")[0].decode(errors="surrogateescape")


def _records(text: bytes) -> dict[str, str]:
    """Lines of `length key=value`, where the length counts the whole line."""
    records = {}
    while text.strip(b"\0"):
        length = int(text[: text.index(b" ")])
        key, equals, value = text[text.index(b" ") + 1 : length].partition(b"=")
        if not (0 < length <= len(text) and equals):
            raise ValueError("a name in it is damaged")
        records[_text(key)] = value.removesuffix(b"\n").decode(errors="surrogateescape")
        text = text[length:]
    return records
