"""Opening plain files only: named pipes, sockets and devices are refused without being opened."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

MOST_TEXT = 1 << 26  # bytes of a file that is read at once; the largest record has 3 MB
_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_regular(path: str | Path) -> BufferedReader:
    """A plain file, or a link to one, open for reading in binary.

    Raises the OSError that `open` would; and one with the reason in `strerror` for a pipe, a socket
    or a device, of which opening or reading may never end.
    """
    check_regular(path)
    # Without O_NONBLOCK a pipe that has taken the file's place would wait for a writer.
    file = open(path, "rb", opener=_open_without_waiting)  # noqa: SIM115 (the caller closes it)
    try:
        _check(path, os.fstat(file.fileno()))
    except OSError:
        file.close()
        raise
    return file


def read_text(path: str | Path) -> str:
    """The UTF-8 text of a plain file. Raises OSError, or ValueError if it is not UTF-8."""
    with open_regular(path) as file:
        content = file.read(MOST_TEXT + 1)
    if len(content) > MOST_TEXT:
        raise OSError(errno.EFBIG, f"more than {MOST_TEXT >> 20} MiB of text", str(path))
    return content.decode()


def check_regular(path: str | Path) -> None:
    """Raise the OSError of `open_regular` for a path that is no plain file, without opening it."""
    _check(path, os.stat(path))


def _check(path: str | Path, info: os.stat_result) -> None:
    kind = stat.S_IFMT(info.st_mode)
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if kind != stat.S_IFREG:
        raise OSError(errno.EINVAL, f"{_KINDS.get(kind, 'something else')}, not a file", str(path))


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
