"""Set-up of a process: memory allocation and standard streams."""

from __future__ import annotations

import ctypes
import io
import os
import sys
from contextlib import suppress

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # names of glibc's malloc.h


def write_anything() -> None:
    """What a stream's encoding lacks is escaped, as Python does it on standard error. And with
    PYTHONUNBUFFERED, which drops what a full disk does not take, lines are held until written."""
    if isinstance(getattr(sys.stdout, "buffer", None), io.RawIOBase):
        raw, encoding = sys.stdout.fileno(), sys.stdout.encoding
        sys.stdout = os.fdopen(raw, "w", 1, encoding, closefd=False)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def keep_memory() -> None:
    """Let glibc keep large blocks that are freed, for the next step needs them again.

    By default each goes back to the system and comes again as empty pages: on 2 cores that took
    half of a training step and two thirds of evaluation. See LOG.md.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, 1 << 30)):
            mallopt(parameter, value)
