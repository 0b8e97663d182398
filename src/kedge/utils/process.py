"""Set-up of a process: memory allocation, standard streams and warnings."""

from __future__ import annotations

import ctypes
import errno
import io
import os
import re
import signal
import sys
import textwrap
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from kedge.errors import require
from kedge.utils.text import printable

# In errors of PyTorch, NumPy, CUDA and the dynamic linker.
NO_MEMORY = re.compile(
    "can't allocate memory|[Uu]nable to allocate|out of memory|bad_alloc|[Cc]annot allocate memory|"
    "failed to map segment|not enough memory"
)
OTHER_THREADS = 4  # beside those of OpenMP: they load images and compile, say
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of glibc's malloc.h


def prepare_streams() -> None:
    """Replace closed standard streams, and let them escape characters that their encoding lacks."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:  # closed by `>&-`, say
            _open_nothing(number, name)
    # With PYTHONUNBUFFERED, Python drops output that a full disk refuses; a line buffer does not.
    if isinstance(getattr(sys.stdout, "buffer", None), io.RawIOBase):
        raw, encoding = sys.stdout.fileno(), sys.stdout.encoding
        sys.stdout = os.fdopen(raw, "w", 1, encoding, closefd=False)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _open_nothing(number: int, name: str) -> None:
    """Connect a standard stream with nothing."""
    try:
        os.fstat(number)
    except OSError:
        # Otherwise the next file that is opened, such as a model, would get this number, and
        # what a library prints would go into it.
        os.dup2(os.open(os.devnull, os.O_RDWR), number)
    mode = "r" if number == 0 else "w"
    setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 (stays open)


def shorten_warnings() -> None:
    """Print Python's warnings as a line each, without files of the source. What `python -W` or
    PYTHONWARNINGS asks for stays as it is."""
    if not sys.warnoptions:
        warnings.showwarning = _show_warning


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    text = re.sub(r"\(Triggered internally at .*", "", str(message), flags=re.DOTALL)
    text = textwrap.shorten(printable(" ".join(text.split())), 300)
    print(f"kedge: warning: {text}", file=sys.stderr)


def limit_threads() -> None:
    """Compute in one thread if the system refuses as many as would be used: OpenMP would otherwise
    end the process. Has no effect once PyTorch is loaded."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    n, done = int(given) if given.isdecimal() else os.cpu_count() or 1, threading.Event()
    threads: list[threading.Thread] = []
    try:
        for _ in range(n + OTHER_THREADS if n > 1 else 0):
            thread = threading.Thread(target=done.wait)
            thread.start()
            threads.append(thread)
    except RuntimeError:
        os.environ |= dict.fromkeys(THREAD_VARIABLES, "1")
        warnings.warn("no further thread can be started, so one computes alone", stacklevel=1)
    finally:
        done.set()
        for thread in threads:
            thread.join()


HELD = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C and SIGTERM back: an import of compiled code that is interrupted half-way fails
    with other errors, then or later."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []
    handlers = {n: signal.signal(n, lambda n, _: held.append(n)) for n in HELD}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
    if held:
        signal.raise_signal(held[0])


def shortage(error: BaseException | None) -> str:
    """The sentence for an error that means that the system has run out of something, or that a
    limit was reached; empty for others."""
    if error is None:
        return ""
    number, text = getattr(error, "errno", None), str(error)
    if isinstance(error, MemoryError) or number == errno.ENOMEM or NO_MEMORY.search(text):
        return "There is not enough memory; free some, or raise its limit (ulimit -v)."
    if "can't start new thread" in text or (number == errno.EAGAIN and "fork" in text):
        return (
            "No more threads or processes can be started; end some, or raise their limit "
            "(ulimit -u)."
        )
    if number in (errno.EMFILE, errno.ENFILE):
        return "Too many files are open; raise their limit (ulimit -n)."
    return shortage(error.__cause__ or error.__context__)


def check_folder() -> None:
    """Raise KedgeError if the current folder has been deleted: in it, no library can be loaded."""
    exists = True
    try:
        os.getcwd()
    except FileNotFoundError:
        exists = False
    require(exists, "The current folder has been deleted; change to another one.")


def keep_freed_memory() -> None:
    """Let glibc keep freed blocks: returning them took half of a training step. See LOG.md."""
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, 1 << 30)):
            mallopt(parameter, value)
