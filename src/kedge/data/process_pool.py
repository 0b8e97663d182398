"""Limited child processes that are kept for the next request of this process."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from kedge.data.limited_process import IDLE_SECONDS, LimitedProcess

REUSE_SECONDS = IDLE_SECONDS / 2  # idle processes end by themselves, but never when one is taken
P = TypeVar("P", bound=LimitedProcess)


class ProcessPool(Generic[P]):
    """Processes that wait for requests, and the memory that all of them may take together."""

    def __init__(self, start: Callable[[], P], memory: int) -> None:
        self._start, self._memory = start, memory
        self._reset()
        atexit.register(self.close)

    def prepare(self) -> None:
        """Start a process that the first request would have to wait for, if there is none."""
        self._forget_after_fork()
        with self._changed:
            if not self._idle:
                self._idle.append(self._start())

    @contextmanager
    def process(self, memory: int) -> Iterator[P]:
        """A process for one request that may take so much memory; a new one if none is idle."""
        self._forget_after_fork()
        with self._changed:
            self._changed.wait_for(lambda: self._free >= memory)
            self._free -= memory
            process = self._idle.pop() if self._idle else None
        if process is not None and time.monotonic() - process.idle_since > REUSE_SECONDS:
            process.close()
            process = None
        try:
            process = process or self._start()
            try:
                process.wait_until_ready()
                yield process
            except BaseException:  # what was not received would be taken for the next reply
                process.close()
                raise
        finally:
            with self._changed:
                self._free += memory
                if process is not None and not process.closed:
                    process.idle_since = time.monotonic()
                    self._idle.append(process)
                self._changed.notify_all()

    def close(self) -> None:
        """End the idle processes."""
        self._forget_after_fork()
        with self._changed:
            while self._idle:
                self._idle.pop().close()

    def _reset(self) -> None:
        self._process_id = os.getpid()
        self._changed = threading.Condition()
        self._idle: list[P] = []
        self._free = self._memory

    def _forget_after_fork(self) -> None:
        """A forked process must not share the processes of its parent."""
        if self._process_id != os.getpid():
            for process in self._idle:
                process.forget()
            self._reset()
