"""What a launcher is: it starts the worker processes of an experiment, here or on other machines.

A worker does one job (`kedge.experiments.worker`): it finds everything in the folder of the
experiment, prints its progress, and may be killed at any time, since another one continues from its
checkpoint.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import IO, Annotated

from kedge.errors import KedgeError
from kedge.utils.ranges import Range

Cores = Annotated[int, Range(1, 10_000)]
POLL_SECONDS = 1.0  # between two looks at a worker on another machine


class WorkerLost(Exception):
    """A worker has ended without having finished or failed: it was killed, or its machine was."""


class Worker(ABC):
    """A worker process, wherever it runs."""

    @abstractmethod
    def lines(self) -> Generator[str, None, int]:
        """What it prints, line by line, until it has ended; returns its exit code.

        Called once, in a thread. Raises WorkerLost, and KedgeError if it could not be started.
        """

    @abstractmethod
    def stop(self) -> None:
        """End it. Called by the main thread; the worker may have ended."""


class Launcher(ABC):
    """Starts workers. The options of a launcher are keyword arguments of its constructor."""

    n_workers: int = sys.maxsize  # at most so many at a time; a cluster has a queue of its own
    n_sharing: int = 1  # how many share a machine, which a record says beside their times
    in_this_process = False  # whether jobs need no worker at all
    about = ""  # a line for the user

    def open(self, folder: Path) -> None:  # noqa: B027 (local workers need nothing)
        """Get ready to start workers on the experiment in this folder. Raises KedgeError."""

    @abstractmethod
    def start(self, words: Sequence[str], slot: int) -> Worker:
        """A worker with these arguments. Its slot, from 0 to n_workers − 1, is its own."""

    def close(self) -> None:  # noqa: B027
        """Called after `open` when all workers have ended or were stopped."""


def start_process(
    words: Sequence[str], stdout: int | IO[bytes], cwd: str | None = None, **environment: str
) -> subprocess.Popen[bytes]:
    """A worker process on this machine; it ends when its standard input is closed, as it is when
    the process that started it ends, however that happens."""
    return subprocess.Popen(
        # -P: import nothing from the current folder, which may hold other modules.
        [sys.executable, "-P", "-m", "kedge.experiments.worker", *words],
        cwd=cwd,
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=subprocess.STDOUT,
    )


def text_of(line: bytes) -> str:
    return line.decode(errors="replace").rstrip("\n")


# ── workers on other machines ────────────────────────────────────────────────────────────────


def work(words: Sequence[str], log: str, cwd: str) -> int:
    """Run a worker process on the machine that calls this, and return its exit code. Its output
    goes to the end of a file in the shared folder."""
    with open(log, "ab", buffering=0) as file, start_process(words, file, cwd) as process:
        try:
            return process.wait()
        except BaseException:  # the scheduler wants this machine back
            process.kill()
            raise


class RemoteWorker(Worker):
    """A worker on another machine, whose output is read from a file in the shared folder."""

    def __init__(self, log: Path) -> None:
        self.log = log

    @abstractmethod
    def poll(self) -> int | None:
        """Its exit code; None while it waits or runs. Raises WorkerLost or KedgeError."""

    def lines(self) -> Generator[str, None, int]:
        at, rest = 0, b""
        while True:
            code = self.poll()  # before reading, so that nothing is missed at the end
            try:
                with open(self.log, "rb") as file:  # opened again, so that NFS looks again, too
                    file.seek(at)
                    new = file.read()
            except OSError:  # it still waits for a machine
                new = b""
            at += len(new)
            *complete, rest = (rest + new).split(b"\n")
            yield from map(text_of, complete)
            if code is not None:
                if rest:
                    yield text_of(rest)
                return code
            time.sleep(POLL_SECONDS)


def not_started(launcher: str, error: BaseException) -> KedgeError:
    """The error for a worker that never ran."""
    last = (str(error).strip() or type(error).__name__).splitlines()[-1]
    return KedgeError(
        f"--on {launcher}: a worker could not be started ({last[:300].rstrip('.')}). All machines "
        "need the same kedge, and the folder of --out under the same path."
    )
