"""Members of a .zip.

Python's zipfile reads the table of contents. It unpacks members of some methods without a limit,
so that is done here.
"""

from __future__ import annotations

import bz2
import io
import lzma
import os
import stat
import struct
import weakref
import zipfile
import zlib
from itertools import pairwise
from typing import Any, Protocol

from kedge.data.files.archives import Archive, DamagedMember
from kedge.data.files.file_tree import LARGEST_FILE
from kedge.data.remarks import lost
from kedge.errors import KedgeError

LOCAL_HEADER = struct.Struct("<4s22x2H")  # signature, and lengths of two texts
LZMA_HEADER = struct.Struct("<2xHBI")  # length of the properties, literal bits, dictionary's size
LEAST_DICTIONARY = 1 << 12  # bytes
ZIP_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)


class Zip(Archive):
    def _open(self) -> None:
        self._file = BoundedFile(self.path)
        weakref.finalize(self, self._file.close)
        archive = zipfile.ZipFile(self._file)
        _check_places(archive)
        members, links = [], []
        for member in archive.infolist():
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
        self._refuse_large(max(member.file_size, member.compress_size), member.compress_size)
        signature, n, m = LOCAL_HEADER.unpack(self._read(LOCAL_HEADER.size, member.header_offset))
        if signature != b"PK\3\4":
            raise ValueError("it is not where the table of contents says")
        start = member.header_offset + LOCAL_HEADER.size + n + m
        packed = self._read(member.compress_size, start)
        try:
            content = unpack(packed, member.compress_type, member.file_size)
        except (zlib.error, OSError, lzma.LZMAError, ValueError, struct.error) as error:
            raise DamagedMember(str(error)) from None
        if len(content) != member.file_size or zlib.crc32(content) != member.CRC:
            raise DamagedMember("it has a wrong checksum")
        return content

    def _read(self, n: int, offset: int) -> bytes:
        content = os.pread(self._file.fileno(), n, offset)
        if len(content) < n:
            raise EOFError("the archive ends too early")
        return content


class BoundedFile(io.FileIO):
    """Refuses to read a table of contents that claims to be enormous."""

    def read(self, size: int | None = -1, /) -> Any:
        if size is not None and size > LARGEST_FILE + 1:
            raise ValueError(f"its table of contents claims {size} bytes")
        return super().read(-1 if size is None else size)


def _check_places(archive: zipfile.ZipFile) -> None:
    """Raise ValueError unless the members lie one after the other before the table of contents."""
    places = sorted(
        (member.header_offset, member.header_offset + LOCAL_HEADER.size + member.compress_size)
        for member in archive.infolist()
    )
    if places and (places[0][0] < 0 or places[-1][1] > archive.start_dir):
        raise ValueError("a part of it is missing")
    if any(end > start for (_, end), (start, _) in pairwise(places)):
        raise ValueError("its members overlap")


class _Decompressor(Protocol):
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


def unpack(packed: bytes, method: int, n_bytes: int) -> bytes:
    """The content of a member, or one byte more than n if there is more.

    Raises ValueError, struct.error or what the decompressor raises if it is damaged.
    """
    if method == zipfile.ZIP_STORED:
        return packed
    decompressor: _Decompressor = zlib.decompressobj(-zlib.MAX_WBITS)
    if method == zipfile.ZIP_BZIP2:
        decompressor = bz2.BZ2Decompressor()
    if method == zipfile.ZIP_LZMA:
        n_properties, bits, dictionary = LZMA_HEADER.unpack_from(packed)
        packed = packed[4 + n_properties :]
        decompressor = lzma.LZMADecompressor(
            lzma.FORMAT_RAW,
            filters=[
                {
                    "id": lzma.FILTER_LZMA1,
                    "lc": bits % 9,
                    "lp": bits // 9 % 5,
                    "pb": bits // 45,
                    # A larger one than the content is of no use, but takes memory.
                    "dict_size": min(dictionary, max(n_bytes, LEAST_DICTIONARY)),
                }
            ],
        )
    return decompressor.decompress(packed, n_bytes + 1)
