"""Images that stay in their file and are read when they are indexed.

The file is read with `preadv`, not memory-mapped: every page of a mapped file that was once touched
counts as memory of this process, and training touches all of them within an hour.
"""

from __future__ import annotations

import math
import os
import stat
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch
from jaxtyping import Bool, Int64, UInt8
from torch import Tensor

from kedge.errors import KedgeError

READAHEAD = 128  # runs of rows that are announced to the system before the first of them is read


class OpenFile:
    """A file that stays open for reading as long as it is referenced, even if it is deleted.

    Reads have no position, so threads and forked processes can share it.
    """

    def __init__(self, path: Path) -> None:
        # Without O_NONBLOCK opening a named pipe would wait for a writer.
        self.path, self._fd = path, os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        # At exit the system closes it; a thread may still read.
        weakref.finalize(self, os.close, self._fd).atexit = False
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError("it is no file")
        self.size = status.st_size  # when it was opened

    def __reduce__(self) -> NoReturn:
        raise KedgeError(
            f"{self.path}: an open file cannot be copied or sent to another process; load the "
            "packed images there."
        )

    def fill(self, buffer: memoryview, offset: int) -> None:
        """Fill the buffer with bytes of the file from an offset."""
        try:
            while buffer:
                n = os.preadv(self._fd, [buffer], offset)
                if n == 0:
                    raise KedgeError(
                        f"{self.path}: the file has become shorter since it was opened; pack the "
                        "images again."
                    )
                buffer, offset = buffer[n:], offset + n
        except OSError as error:
            raise KedgeError(f"{self.path}: could not be read ({error.strerror}).") from error

    def read(self, n: int, offset: int) -> bytearray:
        content = bytearray(n)
        self.fill(memoryview(content), offset)
        return content

    def prefetch(self, n: int, offset: int) -> None:
        """Tell the system that these bytes will be read soon."""
        with suppress(AttributeError, OSError):  # missing on macOS and some file systems
            os.posix_fadvise(self._fd, offset, n, os.POSIX_FADV_WILLNEED)


class LazyImages:
    """Some images of a file, indexed like a uint8 tensor N×C×H×W. Each access returns a copy.

    Images of the file that are not among them cannot be reached from here.
    """

    dtype = torch.uint8
    ndim = 4

    def __init__(
        self,
        file: OpenFile,
        offset: int,
        image_shape: tuple[int, ...],
        numbers: Int64[np.ndarray, " n"],
        checksum: str = "",
    ) -> None:
        """`offset` is where image 0 of the file begins; `numbers` are the images to show."""
        self._file, self._offset, self._numbers, self._checksum = file, offset, numbers, checksum
        self.shape = torch.Size((len(numbers), *image_shape))

    def __repr__(self) -> str:
        return f"LazyImages({'×'.join(map(str, self.shape))}, {str(self._file.path)!r})"

    def __len__(self) -> int:
        return len(self._numbers)

    def numel(self) -> int:
        return math.prod(self.shape)

    def __getitem__(
        self, rows: int | slice | Int64[Tensor, "*rows"] | Bool[Tensor, " n"]
    ) -> UInt8[Tensor, "*rows c h w"]:
        """Rows may come in any order and more than once."""
        numbers = np.asarray(self._numbers[_numpy_index(rows)])
        pixels = torch.empty((*numbers.shape, *self.shape[1:]), dtype=torch.uint8)
        self._read(numbers.ravel(), pixels.view(-1).numpy().data)
        return pixels

    def __iter__(self) -> Iterator[UInt8[Tensor, "c h w"]]:
        return (self[i] for i in range(len(self)))

    def split(self, n: int) -> Iterator[UInt8[Tensor, "_ c h w"]]:
        """All images, n at a time; one empty batch if there are none, as of a tensor."""
        return (self[first : first + n] for first in range(0, max(1, len(self)), n))

    def subset(self, rows: Int64[Tensor, " rows"]) -> LazyImages:
        """Only these images; no pixel is read."""
        numbers = self._numbers[_numpy_index(rows)]
        return LazyImages(self._file, self._offset, self.shape[1:], numbers, self._checksum)

    @property
    def origin(self) -> tuple[str, bytes]:
        """The checksum of the file, or "", and the numbers of these images in it."""
        return self._checksum, self._numbers.tobytes()

    def _read(self, numbers: Int64[np.ndarray, " n"], buffer: memoryview) -> None:
        """Images with consecutive numbers are read in one call."""
        size = math.prod(self.shape[1:])
        first = np.flatnonzero(np.diff(numbers, prepend=-2) != 1)
        offsets = (self._offset + numbers[first] * size).tolist()
        bounds = [*(first * size).tolist(), len(buffer)]
        runs = list(zip(offsets, bounds, bounds[1:], strict=False))
        for group in (runs[i : i + READAHEAD] for i in range(0, len(runs), READAHEAD)):
            if len(group) > 1:
                for offset, start, end in group:
                    self._file.prefetch(end - start, offset)
            for offset, start, end in group:
                self._file.fill(buffer[start:end], offset)


def _numpy_index(rows: int | slice | Tensor) -> int | slice | np.ndarray:
    if not isinstance(rows, Tensor):
        return rows
    if rows.dtype not in (torch.int64, torch.bool):
        raise TypeError(f"rows are int64 or a mask, not {rows.dtype}")
    return rows.numpy()
