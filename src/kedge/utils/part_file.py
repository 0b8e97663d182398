"""Temporary files beside the files that they become: their names, renaming, and stale ones.

Several hosts may share a folder, and other users may write to it. So the name of a part file says
which host and process writes it, nobody can guess it, and it is never opened through a link.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import glob
import hashlib
import os
import re
import secrets
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

ABANDONED = 24 * 3600.0  # seconds since the last write of a part file of another host
LONGEST_NAME = 200  # bytes of a name that the name of its part file repeats
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # of Linux
NO_LINK = getattr(os, "O_NOFOLLOW", 0)
# Of renameat2 (Linux) and renamex_np (macOS).
AT_FDCWD, RENAME_NOREPLACE, RENAME_EXCL = -100, 1, 4
NOT_SUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
NO_HARD_LINKS = (*NOT_SUPPORTED, errno.EPERM, errno.EMLINK)


def open_part(path: Path, mode: int = 0o666) -> tuple[Path, BinaryIO]:
    """A new file in the folder of `path`, open for writing, and its name."""
    words = (host_digits(), str(os.getpid()), secrets.token_hex(4))
    part = path.with_name(f".{_shortened(path.name)}.{'-'.join(words)}.part")
    return part, open_new(part, mode)


def open_new(path: Path, mode: int = 0o666) -> BinaryIO:
    """A file that did not exist, open for writing and reading; links are not followed."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | NO_LINK | getattr(os, "O_BINARY", 0)
    return os.fdopen(os.open(path, flags, mode), "w+b")


def without_links(path: str, flags: int) -> int:
    """An `opener` for `open` that refuses a symbolic link."""
    return os.open(path, flags | NO_LINK)


@functools.cache
def host_digits() -> str:
    """Eight digits that differ between hosts, also those of one name, between starts of a host, and
    between containers of one host: where process ids mean something else."""
    words = [socket.gethostname()]
    with suppress(OSError):
        words.append(os.readlink("/proc/self/ns/pid"))
    with suppress(OSError):
        words.append(BOOT_ID.read_text())
    return hashlib.sha256(" ".join(words).encode()).hexdigest()[:8]


def _shortened(name: str) -> str:
    return os.fsdecode(os.fsencode(name)[:LONGEST_NAME])


def remove_stale_parts(path: Path) -> None:
    """Delete part files of `path` whose process has ended."""
    pattern = f".{glob.escape(_shortened(path.name))}.*.part"
    for part in path.parent.glob(pattern):
        if _is_stale(part):
            with suppress(OSError):  # another process may be deleting it, too
                part.unlink()


def _is_stale(part: Path) -> bool:
    host, _, process = part.suffixes[-2].removeprefix(".").partition("-")
    if process and host == host_digits():
        return not _is_running(process.partition("-")[0])
    # Of another host, or of an earlier version, which did not name its host.
    if not re.fullmatch(r"[0-9a-f]{8}" if process else r"\d+", host):
        return False
    with suppress(OSError):
        return time.time() - part.lstat().st_mtime > ABANDONED
    return False


def _is_running(process_id: str) -> bool:
    try:
        os.kill(int(process_id), 0)
    except (ProcessLookupError, ValueError, OverflowError):
        return False
    except PermissionError:
        return True
    with suppress(OSError):  # a killed process keeps its id until its parent has waited for it
        status = Path("/proc", process_id, "stat").read_text(errors="replace")
        return status.rpartition(")")[2].split()[0] != "Z"
    return True


def rename_new(part: Path, path: Path) -> None:
    """Rename a file, or raise FileExistsError if there is one of the new name already."""
    # `Path.exists` and `os.rename` leave a moment in which another process may create the file.
    if os.name == "nt":
        os.rename(part, path)  # raises if there is one
    elif not _rename_exclusively(part, path):
        _link_and_unlink(part, path)


def _rename_exclusively(part: Path, path: Path) -> bool:
    """Whether the system could do it in one step; not all file systems can."""
    libc, source, target = ctypes.CDLL(None, use_errno=True), os.fsencode(part), os.fsencode(path)
    sys.audit("os.rename", str(part), str(path), -1, -1)  # as `os.rename` does
    try:
        if sys.platform == "darwin":
            failed = libc.renamex_np(source, target, RENAME_EXCL)
        else:
            failed = libc.renameat2(AT_FDCWD, source, AT_FDCWD, target, RENAME_NOREPLACE)
    except AttributeError:  # an old C library
        return False
    if not failed:
        return True
    number = ctypes.get_errno()
    if number in NOT_SUPPORTED:
        return False
    raise OSError(number, os.strerror(number), str(part), None, str(path))


def _link_and_unlink(part: Path, path: Path) -> None:
    try:
        os.link(part, path, follow_symlinks=False)
    except OSError as error:
        if error.errno not in NO_HARD_LINKS:
            raise
        open_new(path).close()  # takes the name; what is replaced next is our own empty file
        os.replace(part, path)
    else:
        part.unlink()
