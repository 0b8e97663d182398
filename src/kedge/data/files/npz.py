"""Images in an .npz, which may be larger than the memory.

NumPy would load all of them. Here an image of an uncompressed array is read where it lies in the
file, and a compressed array is read from front to back, one image at a time. This happens in this
process: zipfile bounds what comes out of the only two methods that are accepted.
"""

from __future__ import annotations

import math
import os
import re
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from kedge.data.damage import damage_as_error, reject_failed_download, unreadable
from kedge.data.decode import RawImage
from kedge.data.files.zip_archive import LOCAL_HEADER, BoundedFile
from kedge.data.image_codec import MOST_PIXELS
from kedge.data.index import ImageSource
from kedge.data.open_file import OpenFile
from kedge.data.packed_file import runs
from kedge.errors import KedgeError, require

LONGEST_NPY_HEADER = 1 << 16
PAGE = 4096  # bytes
RUN_BYTES = 4 << 20  # of images that are read at once
# The header that NumPy writes is a Python literal; it is matched here, not evaluated.
ARRAY_HEADER = re.compile(
    rb"\s*\{\s*'descr':\s*'([^']*)',\s*'fortran_order':\s*(True|False),"
    rb"\s*'shape':\s*\(([\dL, ]*)\),?\s*\}\s*"
)


def npz_images(path: Path, key: str) -> ImageSource:
    """The images of one array in the file, which holds BGR, as RGB."""
    reject_failed_download(path)
    with damage_as_error(path):
        with BoundedFile(path) as file, zipfile.ZipFile(file) as archive:
            members = {member.filename: member for member in archive.infolist()}
            member = members.get(f"{key}.npy", members.get(key))
            if member is None:
                has = ", ".join(map(ascii, sorted(members)[:6])) or "nothing"
                raise KedgeError(f"{path}: expected an array '{key}' in it but found {has:.200}.")
            what = f"{path}: '{key}' is compressed in a way that cannot be read"
            readable = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
            require(member.compress_type in readable, f"{what}; save it with numpy.savez.")
            with archive.open(member) as content:
                shape, fortran, start = _header(content, path, key)
            if start + math.prod(shape) != member.file_size:
                raise ValueError(f"'{key}' has a wrong number of bytes")
            if member.compress_type == zipfile.ZIP_DEFLATED:
                # Images are interleaved in Fortran order.
                require(not fortran, f"{what}; save it with numpy.savez.")
                return DeflatedImages(path, member.filename, start, shape)
        opened = OpenFile(path)
        header = opened.read(LOCAL_HEADER.size, member.header_offset)
        signature, n, m = LOCAL_HEADER.unpack(header)
        if signature != b"PK\x03\x04":
            raise zipfile.BadZipFile("a member is misplaced")
        offset = member.header_offset + LOCAL_HEADER.size + n + m + start
        return StoredImages(opened, offset, shape, fortran)


def _header(file: IO[bytes], path: Path, key: str) -> tuple[tuple[int, ...], bool, int]:
    """The shape of an array, whether it is in Fortran order, and where the pixels start."""
    magic = file.read(8)
    size = 2 if magic[6:7] == b"\1" else 4
    length = int.from_bytes(file.read(size), "little")
    content = file.read(min(length, LONGEST_NPY_HEADER))
    match = ARRAY_HEADER.fullmatch(content)
    if magic[:6] != b"\x93NUMPY" or len(content) != length or match is None:
        raise ValueError(f"'{key}' is not an array")
    # Longer numbers cannot be sizes, and Python is slow at parsing them.
    axes = [n.strip(b" L") for n in match[3].split(b",") if n.strip()]
    shape = tuple(int(n[:20] or b"0") for n in axes)
    is_rgb = match[1] in (b"|u1", b"<u1", b"u1") and len(shape) == 4 and shape[3] == 3
    if not is_rgb or not 0 < shape[1] * shape[2] <= MOST_PIXELS or not shape[0]:
        found = f"{match[1][:20].decode('latin1')} of shape {'×'.join(map(str, shape[:8]))}"
        expected = f"expected '{key}' to be uint8 (u1) of shape images×height×width×3"
        raise KedgeError(f"{path}: {expected} but found {found:.150}.")
    return shape, match[2] == b"True", 8 + size + length


class StoredImages(ImageSource):
    """Images of an array that is not compressed."""

    def __init__(self, file: OpenFile, offset: int, shape: tuple[int, ...], fortran: bool) -> None:
        self.file, self.offset, self.shape, self.fortran = file, offset, shape, fortran

    def __len__(self) -> int:
        return self.shape[0]

    def name(self, i: int) -> str:
        return f"{self.file.path}, image {i}"

    def fetch(self, numbers: Sequence[int]) -> Iterator[RawImage]:
        size = math.prod(self.shape[1:])
        read = self._read_interleaved if self.fortran else self._read
        most = max(1, RUN_BYTES // size)
        for first, last in runs(np.asarray(numbers, dtype=np.int64)):
            for start in range(first, last, most):
                images = read(numbers[start], min(most, last - start))
                yield from images[..., ::-1]

    def _read(self, first: int, n: int) -> np.ndarray:
        size = math.prod(self.shape[1:])
        content = self.file.read(n * size, self.offset + first * size)
        return np.frombuffer(content, np.uint8).reshape(n, *self.shape[1:])

    def _read_interleaved(self, first: int, n: int) -> np.ndarray:
        """Images in Fortran order: the same value of all images, then the next value of all."""
        n_images, height, width, n_channels = self.shape
        values = np.empty((math.prod(self.shape[1:]), n), np.uint8)
        # Of few images, the values of all are read as well, since they lie between: a page of the
        # disk takes as long as a byte.
        block = np.empty((max(1, PAGE // n_images), n_images), np.uint8)
        for k in range(0, len(values), len(block)):
            part = values[k : k + len(block)]
            span = block.reshape(-1)[: (len(part) - 1) * n_images + n]
            self.file.fill(span.data, self.offset + k * n_images + first)
            part[:] = block[: len(part), :n]
        return values.reshape(n_channels, width, height, n).transpose(3, 2, 1, 0)


class DeflatedImages(ImageSource):
    """Images that are read in ascending order; going back starts from the beginning."""

    def __init__(self, path: Path, member: str, start: int, shape: tuple[int, ...]) -> None:
        self.path, self.member, self.start, self.shape = path, member, start, shape
        self._n_readable = shape[0]  # images before the first damaged one
        # Where the last fetch stopped, for the next to go on: process, stream, next image.
        self._position: tuple[int, IO[bytes], int] | None = None

    def __len__(self) -> int:
        return self.shape[0]

    def name(self, i: int) -> str:
        return f"{self.path}, image {i}"

    def fetch(self, numbers: Sequence[int]) -> Iterator[RawImage]:
        position, self._position = self._position, None  # two fetches must not share a stream
        stream, at = None, 0
        if position is not None and position[0] == os.getpid():  # forks share the file's offset
            _, stream, at = position
        size, raw = math.prod(self.shape[1:]), b""
        try:
            for i in numbers:
                try:
                    if stream is None or i < at:
                        stream, at = self._open(), 0
                    while at <= i < self._n_readable:
                        raw = stream.read(size)
                        if len(raw) < size:
                            raise EOFError
                        at += 1
                except Exception as error:  # whatever zipfile raises on damaged files
                    if isinstance(error, OSError) and error.errno is not None:
                        raise unreadable(self.path, error) from None
                    self._n_readable = at
                if i >= self._n_readable:
                    yield b""
                    continue
                yield np.frombuffer(raw, np.uint8).reshape(self.shape[1:])[..., ::-1]
        finally:
            if stream is not None:
                self._position = os.getpid(), stream, at

    def _open(self) -> IO[bytes]:
        with zipfile.ZipFile(self.path) as archive:  # stays open as long as its member
            stream = archive.open(self.member)
        stream.read(self.start)
        return stream
