"""A child process with limits on memory, processor time and wall time, for bytes that nobody has
checked: parsers in C may crash, hang or take any memory, and none of that may reach this process.

The child is a fresh interpreter that is sent and sends back bytes and numbers over a socket, never
a pickle. Both sides are here. Imports the standard library alone, since the child should start
quickly.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from io import BufferedReader, BufferedWriter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    import subprocess

    from kedge.errors import KedgeError

READY = b"ready"
# One arena of malloc, no arenas of pyarrow's, few threads: they take address space, which is
# limited.
ALLOCATION = {
    "MALLOC_ARENA_MAX": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
START_SECONDS = 120.0  # for the interpreter, on a machine that is busy with other things
IDLE_SECONDS = 60.0  # after which a child that is asked for nothing ends
BUFFER = 1 << 20  # bytes of the socket
START = (
    "import sys; sys.path += sys.argv[2:]; from importlib import import_module; "
    "import_module(sys.argv[1]).serve()"
)


class ChildStopped(Exception):
    """The child has ended or does not answer; the reason completes "it makes the decoder ..."."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class LimitedProcess:
    """A child process, seen from its parent. Used by one thread at a time."""

    def __init__(self, module: str, packages: Sequence[str]) -> None:
        """Start a child that runs `serve()` of a module; returns before it is ready.

        `packages` are those that it imports from outside the standard library.
        """
        import socket
        import subprocess

        ours, theirs = socket.socketpair()
        self._socket: socket.socket = ours
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            with suppress(OSError):
                ours.setsockopt(socket.SOL_SOCKET, option, BUFFER)
                theirs.setsockopt(socket.SOL_SOCKET, option, BUFFER)
        self._is_ready = self.closed = False
        self.idle_since = time.monotonic()
        # -S: no packages but those named. -P: no modules from the current folder, which may be the
        # data's.
        command = [sys.executable, "-E", "-S", "-P", "-c", START, module, *_folders(packages)]
        environment = {**os.environ, **ALLOCATION}
        quiet = subprocess.DEVNULL
        try:
            self._process: subprocess.Popen[bytes] = subprocess.Popen(
                command, env=environment, stdin=theirs.fileno(), stdout=quiet, stderr=quiet
            )
        except OSError as error:
            ours.close()
            raise cannot_start(error.strerror or str(error)) from None
        finally:
            theirs.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until_ready(self) -> None:
        """Raise KedgeError if the child does not start."""
        if self._is_ready:
            return
        try:
            if self.receive(len(READY), START_SECONDS) != READY:
                raise ChildStopped("answer wrongly")
        except ChildStopped:
            self.close()
            raise cannot_start(f"it ended with {self._process.returncode}") from None
        self._is_ready = True

    def send(self, content: bytes | memoryview, seconds: float) -> None:
        self._socket.settimeout(seconds)
        try:
            self._socket.sendall(content)
        except OSError as error:
            raise self._stopped(error) from None

    def receive(self, n: int, seconds: float) -> bytearray:
        """The next n bytes, each part of which must come within so many seconds."""
        content = bytearray(n)
        view = memoryview(content)
        self._socket.settimeout(seconds)
        try:
            while view:
                if not (received := self._socket.recv_into(view)):
                    raise EOFError
                view = view[received:]
        except (OSError, EOFError) as error:
            raise self._stopped(error) from None
        return content

    def close(self) -> None:
        self.closed = True
        self._socket.close()
        self._process.kill()
        self._process.wait()

    def forget(self) -> None:
        """Leave the child to another process that has a copy of this object, by a fork."""
        self._socket.close()
        self._process.returncode = 0  # nobody here waits for it

    def _stopped(self, error: Exception) -> ChildStopped:
        """Why the child has stopped; ends it."""
        hangs = isinstance(error, TimeoutError)
        if not hangs:  # it closed the socket, since it ends
            with suppress(Exception):
                self._process.wait(1.0)
        self.close()
        too_long = self._process.returncode == -signal.SIGPROF
        return ChildStopped("hang" if hangs else "take too long" if too_long else "crash")


def cannot_start(reason: str) -> KedgeError:
    from kedge.errors import KedgeError

    return KedgeError(
        "Images are read in a child process with limited memory and time, and none could be "
        f"started ({reason}); end other programs or raise the limits of this session."
    )


def _folders(packages: Sequence[str]) -> list[str]:
    """Where the child finds kedge and the packages."""
    from importlib.util import find_spec

    folders = [str(Path(__file__).resolve().parents[2])]
    for package in packages:
        spec = find_spec(package)
        if spec is not None and spec.origin is not None:
            folders.append(str(Path(spec.origin).resolve().parents[1]))
    return list(dict.fromkeys(folders))


# The child's side.


def serve(answer: Callable[[BufferedReader, BufferedWriter], None]) -> None:
    """Answer requests until the other end of the socket is closed, also by the parent's death.

    `answer` reads one request and writes the reply.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    with (
        suppress(BrokenPipeError, ConnectionResetError, EOFError),
        open(0, "rb") as requests,
        open(0, "wb", closefd=False) as replies,
    ):
        replies.write(READY)
        replies.flush()
        # What one request leaves in the buffer is nothing: the parent waits for its reply.
        while select.select([requests], [], [], IDLE_SECONDS)[0] and requests.peek(1):
            answer(requests, replies)
            replies.flush()


def read_exactly(file: BufferedReader, n: int) -> bytes:
    content = file.read(n)
    if len(content) < n:
        raise EOFError
    return content


class MemoryLimit:
    """The address space that this process may take beyond that of its start."""

    def __init__(self) -> None:
        self._start = 0
        with suppress(OSError, ValueError):  # not Linux
            pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[0]
            self._start = int(pages) * os.sysconf("SC_PAGE_SIZE")

    def set(self, n_bytes: int) -> None:
        with suppress(ImportError, ValueError, OSError):
            import resource

            _, most = resource.getrlimit(resource.RLIMIT_AS)
            wanted = self._start + n_bytes
            soft = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
            resource.setrlimit(resource.RLIMIT_AS, (soft, most))


def limit_processor_time(seconds: float) -> None:
    """End this process after so much processor time from now on; 0 lifts the limit."""
    signal.setitimer(signal.ITIMER_PROF, seconds)


def write_no_files() -> None:
    """This process will not write files, not even one that tells of its crash."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        for limit in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):
            resource.setrlimit(limit, (0, 0))
