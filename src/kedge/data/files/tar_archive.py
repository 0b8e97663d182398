"""Members of a .tar, compressed or not.

Python's tarfile takes a kilobyte per member, and hostile headers keep it busy for hours or make it
read whatever size they claim.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import threading
import weakref
from _compression import DecompressReader
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from kedge.data.files.archives import SMALL_FILE, Archive
from kedge.data.remarks import lost
from kedge.utils.regular_file import open_regular

LONGEST_NAME = 1 << 16  # bytes that may be spent on one name
LONGEST_NUMBER = 20  # digits
LEAST_MEMBER = 16  # bytes of the file: a name and an image take more in any compression
MOST_EXTENDED = 16  # bytes of names and extended headers for each byte of the file
LEAST_RECORD = 4  # bytes of the file for each record of an extended header
XZ_MEMORY = 128 << 20  # bytes; `xz -9` needs 65 MiB
BLOCK = 512  # bytes, the unit of a .tar


class Tar(Archive):
    def _open(self) -> None:
        self._file, is_compressed = _open_decompressed(self.path)
        self._extended_bytes = self._n_records = 0
        self._lock = threading.Lock()  # threads share the position in the file
        weakref.finalize(self, self._file.close)
        self._links: list[str] = []
        self._members = self._safe_members(self._scan())
        self.remarks += lost(self._links, "member", "a link or no plain file")
        self.names = tuple(self._members)
        if is_compressed:
            while self._file.read(1 << 16):  # up to the checksum at the very end
                self._refuse_bomb(self._file.tell())

    def _scan(self) -> Iterator[tuple[str, tuple[int, int]]]:
        """The name of each member, and the position and the number of its bytes."""
        extended: dict[str, str] = {}  # extended header of the next member
        at = n_headers = 0
        while (header := self._block(at)).strip(b"\0"):
            n_headers += 1
            if n_headers * LEAST_MEMBER > max(self._bytes, SMALL_FILE):
                raise ValueError("most of it are names")
            _check(header)
            at += BLOCK
            size = _number(header[124:136])
            kind = header[156:157]
            if kind in b"xXLKg":
                if not 0 <= size <= LONGEST_NAME:
                    raise ValueError(f"a name in it claims {size} bytes")
                self._extended_bytes += size
                if self._extended_bytes > MOST_EXTENDED * max(self._bytes, SMALL_FILE):
                    raise ValueError("most of it are names")
                text = self._file.read(size)
                if kind == b"L":
                    extended["path"] = _text(text)
                elif kind in b"xX":
                    records = _records(text)
                    self._n_records += len(records)
                    if self._n_records * LEAST_RECORD > max(self._bytes, SMALL_FILE):
                        raise ValueError("most of it are names")
                    extended |= records
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
        self._refuse_large(size, size)
        with self._lock:
            self._file.seek(start)
            content = self._file.read(size)
        if len(content) < size:
            raise EOFError("it ends too early")
        return content


def _open_decompressed(path: Path) -> tuple[IO[bytes], bool]:
    """The .tar's bytes, and whether it was compressed."""
    with open_regular(path) as file:
        start = file.read(6)
    # The first bytes tell the compression: names are often wrong.
    openers: dict[bytes, Callable[[Path], Any]] = {
        b"\x1f\x8b": gzip.open,
        b"BZh": bz2.open,
        b"\xfd7zXZ\0": _open_xz,
    }
    for magic, opener in openers.items():
        if start.startswith(magic):
            return opener(path), True
    return open_regular(path), False


def _open_xz(path: Path) -> io.BufferedIOBase:
    """Like `lzma.open`, which sets no limit on the memory that a file may ask for."""
    file = open_regular(path)
    reader = DecompressReader(
        file, lzma.LZMADecompressor, trailing_error=lzma.LZMAError, memlimit=XZ_MEMORY
    )
    weakref.finalize(reader, file.close)
    return io.BufferedReader(reader)


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


def _records(text: bytes) -> list[tuple[str, str]]:
    """Keys and values of lines of `length key=value`, where the length counts the whole line."""
    records, at, end = list[tuple[str, str]](), 0, len(text.rstrip(b"\0"))
    while at < end:
        blank = text.index(b" ", at, at + LONGEST_NUMBER)
        next_at = at + int(text[at:blank])
        key, equals, value = text[blank + 1 : next_at].partition(b"=")
        if not (blank < next_at <= len(text) and equals):
            raise ValueError("a name in it is damaged")
        records.append((_text(key), value.removesuffix(b"\n").decode(errors="surrogateescape")))
        at = next_at
    return records
