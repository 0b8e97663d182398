"""Opening plain files only: named pipes, sockets and devices are refused without being opened."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_regular(path: str | Path) -> BinaryIO:
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
