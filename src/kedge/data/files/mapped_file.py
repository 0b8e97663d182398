"""A mapped file, and reading the arrays that are views of it without touching the mapping."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np

from kedge.data.open_file import OpenFile

MOST_SPREAD = 4  # times its bytes: an array whose values lie further apart is read by the mapping


class MappedFile(mmap.mmap):
    """The bytes of a file as one object, of which nothing is in memory until it is used."""

    file: OpenFile

    @classmethod
    def open(cls, path: Path) -> MappedFile:
        """Raises OSError, or ValueError for an empty file."""
        file = OpenFile(path)
        mapped = cls(file.fileno(), 0, access=mmap.ACCESS_READ)
        mapped.file = file
        return mapped


def read_array(array: np.ndarray) -> np.ndarray:
    """A copy of an array. If it is a view of a mapped file, the file is read instead: pixels are
    read long after the file was opened, and if it has become shorter, the mapping would end this
    process. Raises KedgeError then."""
    mapped = _mapping(array)
    if not isinstance(mapped, MappedFile) or not array.size:
        return np.array(array)
    low, high = np.lib.array_utils.byte_bounds(array)
    if high - low > MOST_SPREAD * array.nbytes:
        return np.array(array)
    start = np.frombuffer(mapped, np.uint8).ctypes.data
    content = mapped.file.read(high - low, low - start)
    return np.ndarray(array.shape, array.dtype, content, array.ctypes.data - low, array.strides)


def release_pages(array: np.ndarray) -> None:
    """Let the system drop what was read of a memory-mapped array."""
    mapped = _mapping(array)
    if mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)


def _mapping(array: np.ndarray) -> mmap.mmap | None:
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    return base if isinstance(base, mmap.mmap) else None
