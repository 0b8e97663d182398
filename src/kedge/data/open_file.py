"""A file whose bytes are read where they are needed.

Not mapped: every page of a mapped file that was once touched counts as memory of this process, and
a mapped file that becomes shorter, or a failing disk, ends the process without a word.
"""

from __future__ import annotations

import os
import weakref
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from kedge.errors import KedgeError, require
from kedge.utils.regular_file import open_regular


class OpenFile:
    """A file that stays open even if it is deleted. Threads and forked processes can share it."""

    def __init__(self, path: Path) -> None:
        with open_regular(path) as file:
            self.path, self._fd = path, os.dup(file.fileno())
        # At exit the system closes it; a thread may still read.
        weakref.finalize(self, os.close, self._fd).atexit = False

    def __reduce__(self) -> NoReturn:
        raise KedgeError(
            f"{self.path}: an open file cannot be copied or sent to another process; open the "
            "images there."
        )

    def fill(self, buffer: memoryview, offset: int) -> None:
        """Fill the buffer with bytes of the file from an offset."""
        try:
            while buffer:
                n = os.preadv(self._fd, [buffer], offset)
                require(n > 0, f"{self.path}: the file has become shorter since it was opened.")
                buffer, offset = buffer[n:], offset + n
        except OSError as error:
            raise KedgeError(f"{self.path}: could not be read ({error.strerror}).") from error

    def fileno(self) -> int:
        return self._fd

    def read(self, n: int, offset: int) -> bytearray:
        content = bytearray(n)
        self.fill(memoryview(content), offset)
        return content

    def prefetch(self, n: int, offset: int) -> None:
        """Tell the system that these bytes will be read soon."""
        with suppress(AttributeError, OSError):  # missing on macOS and some file systems
            os.posix_fadvise(self._fd, offset, n, os.POSIX_FADV_WILLNEED)
