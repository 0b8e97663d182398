"""Set-up of a process: memory allocation and standard streams."""

from __future__ import annotations

import ctypes
import io
import os
import sys
from contextlib import suppress

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of glibc's malloc.h


def escape_unencodable() -> None:
    """Let standard streams escape characters that their encoding lacks."""
    # With PYTHONUNBUFFERED, Python drops output that a full disk refuses; a line buffer does not.
    if isinstance(getattr(sys.stdout, "buffer", None), io.RawIOBase):
        raw, encoding = sys.stdout.fileno(), sys.stdout.encoding
        sys.stdout = os.fdopen(raw, "w", 1, encoding, closefd=False)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def keep_freed_memory() -> None:
    """Let glibc keep freed blocks: returning them took half of a training step. See LOG.md."""
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, 1 << 30)):
            mallopt(parameter, value)
