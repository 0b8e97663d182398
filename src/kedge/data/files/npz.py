"""Images in an .npz, which may be larger than the memory.

NumPy would load all of them. Here an array that is stored as it is gets mapped, and one that is
deflated is read from front to back, an image at a time.
"""

from __future__ import annotations

import math
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from kedge.data.decode import MOST_PIXELS, Picture
from kedge.data.files.sniff import reject_failed_download
from kedge.data.index import ArrayImages, ImageSource
from kedge.errors import KedgeError

LOCAL_HEADER = struct.Struct("<4s22x2H")  # its signature, and how long the two texts after it are
LONGEST_HEADER = 1 << 16
# What NumPy writes. The text is a piece of Python, which is matched here and not evaluated.
ARRAY_HEADER = re.compile(
    rb"\s*\{\s*'descr':\s*'([^']*)',\s*'fortran_order':\s*(True|False),"
    rb"\s*'shape':\s*\(([\dL, ]*)\),?\s*\}\s*"
)
DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    OSError,
    ValueError,
    NotImplementedError,
    OverflowError,
)


@runtime_checkable
class Stream(Protocol):
    """All that is used of a file."""

    def read(self, n: int, /) -> bytes: ...


def npz_images(path: Path, key: str, bgr: bool = False) -> ImageSource:
    """Those of one array in the file."""
    reject_failed_download(path)
    try:
        with zipfile.ZipFile(path) as archive:
            members = {member.filename: member for member in archive.infolist()}
            member = members.get(f"{key}.npy", members.get(key))
            if member is None:
                has = ", ".join(map(ascii, sorted(members)[:6])) or "nothing"
                raise KedgeError(f"{path}: expected an array '{key}' in it but found {has:.200}.")
            if member.flag_bits & 1 or member.compress_type not in (0, zipfile.ZIP_DEFLATED):
                raise KedgeError(
                    f"{path}: '{key}' is packed in a way that NumPy does not use; unpack it first."
                )
            with archive.open(member) as file:
                shape, fortran, start = _header(file, path, key)
            if start + math.prod(shape) != member.file_size:
                raise KedgeError(
                    f"{path}: '{key}' should have {math.prod(shape)} bytes but has "
                    f"{member.file_size - start}; get it again."
                )
            if member.compress_type == zipfile.ZIP_DEFLATED:
                if fortran:
                    raise KedgeError(
                        f"{path}: '{key}' is compressed in an order in which no image is in one "
                        "piece; save it again with numpy.savez."
                    )
                return DeflatedImages(path, member.filename, start, shape, bgr)
        with open(path, "rb") as raw:
            raw.seek(member.header_offset)
            signature, n, m = LOCAL_HEADER.unpack(raw.read(LOCAL_HEADER.size))
        if signature != b"PK\x03\x04":
            raise zipfile.BadZipFile("a member is not where it should be")
        offset = member.header_offset + LOCAL_HEADER.size + n + m + start
        mapped = np.memmap(path, np.uint8, "r", offset, shape, "F" if fortran else "C")
    except DAMAGED as error:
        raise KedgeError(
            f"{path}: truncated or damaged, or not an .npz ({str(error)[:120]}); get it again."
        ) from None
    return ArrayImages([mapped], [str(path)], bgr)


def _header(file: Stream, path: Path, key: str) -> tuple[tuple[int, ...], bool, int]:
    """The shape of an array, whether the first axis runs fastest, and where the pixels start."""
    magic = file.read(8)
    if magic[:6] != b"\x93NUMPY" or len(magic) < 8:
        raise ValueError(f"'{key}' is not an array")
    size = 2 if magic[6] == 1 else 4
    length = int.from_bytes(file.read(size), "little")
    content = file.read(min(length, LONGEST_HEADER))
    match = ARRAY_HEADER.fullmatch(content)
    if len(content) != length or match is None:
        raise ValueError(f"the header of '{key}' makes no sense")
    # More digits than these are no number of bytes, and Python is slow at reading them.
    axes = [n.strip(b" L") for n in match[3].split(b",") if n.strip()]
    shape = tuple(int(n[:20] or b"0") for n in axes)
    if match[1] not in (b"|u1", b"<u1", b"u1") or len(shape) != 4 or shape[3] != 3:
        found = f"{match[1][:20].decode('latin1')} of shape {'×'.join(map(str, shape[:8]))}"
        raise KedgeError(
            f"{path}: expected '{key}' to be uint8 (u1) of shape images×height×width×3 but found "
            f"{found:.150}."
        )
    if not 0 < shape[1] * shape[2] <= MOST_PIXELS or not shape[0]:
        raise KedgeError(f"{path}: '{key}' holds {shape[0]} images of {shape[1]}×{shape[2]} px.")
    return shape, match[2] == b"True", 8 + size + length


class DeflatedImages(ImageSource):
    """Read in ascending order, as they must be; to go back is to start again."""

    def __init__(
        self, path: Path, member: str, start: int, shape: tuple[int, ...], bgr: bool
    ) -> None:
        self.path, self.member, self.start, self.shape, self.bgr = path, member, start, shape, bgr
        self._sound = shape[0]  # images before the first that cannot be read
        # Where the last fetch stopped, for the next to go on: process, stream, number.
        self._left: tuple[int, Stream, int] | None = None

    def __len__(self) -> int:
        return self.shape[0]

    def name(self, i: int) -> str:
        return f"{self.path}, image {i}"

    def fetch(self, numbers: Sequence[int]) -> Iterator[Picture]:
        left, self._left = self._left, None  # no other fetch may move the same stream
        stream, at = None, 0
        if left is not None and left[0] == os.getpid():  # a fork shares the place in the file
            _, stream, at = left
        size, raw = math.prod(self.shape[1:]), b""
        try:
            for i in numbers:
                try:
                    if stream is None or i < at:
                        stream, at = self._opened(), 0
                    while at <= i < self._sound:
                        raw = stream.read(size)
                        if len(raw) < size:
                            raise EOFError
                        at += 1
                except DAMAGED:
                    self._sound = at
                if i >= self._sound:
                    yield b""
                    continue
                image = np.frombuffer(raw, np.uint8).reshape(self.shape[1:])
                yield image[..., ::-1] if self.bgr else image
        finally:
            if stream is not None:
                self._left = os.getpid(), stream, at

    def _opened(self) -> Stream:
        with zipfile.ZipFile(self.path) as archive:  # which stays open as long as its member is
            stream = archive.open(self.member)
        stream.read(self.start)
        return stream
