"""Images that stay in their file: rows of pixels are read when they are asked for.

The file is read and never mapped. Of a mapped file every page that was once touched counts as
memory of this process, and training touches all of them in an hour.
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

AHEAD = 128  # runs of rows that the system is told of before the first of them is read


class OpenFile:
    """A file that is open for reading until nobody needs it, whatever happens to its name.

    Reads have no position, so threads and forked processes can share it.
    """

    def __init__(self, path: Path) -> None:
        # Without O_NONBLOCK a named pipe would wait for somebody to write into it.
        self.path, self._number = path, os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        # At the end of the process the system closes it, when no thread reads any more.
        weakref.finalize(self, os.close, self._number).atexit = False
        status = os.fstat(self._number)
        if not stat.S_ISREG(status.st_mode):
            raise OSError("it is no file")
        self.size = status.st_size  # when it was opened

    def __reduce__(self) -> NoReturn:
        raise KedgeError(
            f"{self.path}: an open file cannot be copied or sent to another process; load the "
            "packed images there."
        )

    def fill(self, buffer: memoryview, at: int) -> None:
        """Read as many bytes as the buffer takes."""
        try:
            while buffer:
                n = os.preadv(self._number, [buffer], at)
                if n == 0:
                    raise KedgeError(
                        f"{self.path}: the file has become shorter since it was opened; pack the "
                        "images again."
                    )
                buffer, at = buffer[n:], at + n
        except OSError as error:
            raise KedgeError(f"{self.path}: could not be read ({error.strerror}).") from error

    def read(self, n: int, at: int) -> bytearray:
        content = bytearray(n)
        self.fill(memoryview(content), at)
        return content

    def announce(self, n: int, at: int) -> None:
        """Let the system fetch bytes from the disk while others are read."""
        with suppress(AttributeError, OSError):  # macOS has none, nor have some file systems
            os.posix_fadvise(self._number, at, n, os.POSIX_FADV_WILLNEED)


class LazyImages:
    """Some of the images in a file, to be indexed as a tensor would be.

    Whatever is asked for is a new tensor. There is no way from here to the other images.
    """

    dtype = torch.uint8
    ndim = 4

    def __init__(
        self,
        file: OpenFile,
        at: int,
        image: tuple[int, ...],
        numbers: Int64[np.ndarray, " n"],
        checksum: str = "",
    ) -> None:
        """`at` is where row 0 begins, `image` is C×H×W, `numbers` are those of the rows."""
        self._file, self._at, self._numbers, self._checksum = file, at, numbers, checksum
        self.shape = torch.Size((len(numbers), *image))

    def __repr__(self) -> str:
        return f"FileRows({'×'.join(map(str, self.shape))}, {str(self._file.path)!r})"

    def __len__(self) -> int:
        return len(self._numbers)

    def numel(self) -> int:
        return math.prod(self.shape)

    def __getitem__(
        self, places: int | slice | Int64[Tensor, "*places"] | Bool[Tensor, " n"]
    ) -> UInt8[Tensor, "*places c h w"]:
        """In any order, and as often as they are named."""
        chosen = np.asarray(self._numbers[_for_numpy(places)])
        pixels = torch.empty((*chosen.shape, *self.shape[1:]), dtype=torch.uint8)
        self._read(chosen.ravel(), pixels.view(-1).numpy().data)
        return pixels

    def __iter__(self) -> Iterator[UInt8[Tensor, "c h w"]]:
        return (self[i] for i in range(len(self)))

    def split(self, n: int) -> Iterator[UInt8[Tensor, "_ c h w"]]:
        """All of them, n at a time; an empty part if there are none, as of a tensor."""
        return (self[first : first + n] for first in range(0, max(1, len(self)), n))

    def rows(self, places: Int64[Tensor, " rows"]) -> LazyImages:
        """Some of these images and no other; no pixel is read."""
        chosen = self._numbers[_for_numpy(places)]
        return LazyImages(self._file, self._at, self.shape[1:], chosen, self._checksum)

    @property
    def origin(self) -> tuple[str, bytes]:
        """The checksum of the file, if it has one, and which of its rows these are."""
        return self._checksum, self._numbers.tobytes()

    def _read(self, numbers: Int64[np.ndarray, " n"], buffer: memoryview) -> None:
        """Neighbours in one call."""
        step = math.prod(self.shape[1:])
        first = np.flatnonzero(np.diff(numbers, prepend=-2) != 1)
        places = (self._at + numbers[first] * step).tolist()
        bounds = [*(first * step).tolist(), len(buffer)]
        runs = list(zip(places, bounds, bounds[1:], strict=False))
        for some in (runs[i : i + AHEAD] for i in range(0, len(runs), AHEAD)):
            if len(some) > 1:
                for at, start, end in some:
                    self._file.announce(end - start, at)
            for at, start, end in some:
                self._file.fill(buffer[start:end], at)


def _for_numpy(places: int | slice | Tensor) -> int | slice | np.ndarray:
    if not isinstance(places, Tensor):
        return places
    if places.dtype not in (torch.int64, torch.bool):
        raise TypeError(f"rows are int64 or a mask, not {places.dtype}")
    return places.numpy()
