"""One input within bounds of time and memory: what is a finding, and what is not."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from kedge.errors import LONGEST_MESSAGE, KedgeError

TICKS = os.sysconf("SC_CLK_TCK")


class TooLong(BaseException):
    """Raised in the middle of an input that takes too long."""


@dataclass(frozen=True)
class Finding:
    """What an input has caused that no input may."""

    kind: str  # "error", "message", "time" or "memory"
    place: str  # where; inputs with the same kind and place are taken for one finding
    text: str


class Bounds:
    """The processor time and the memory that an input may take, in all processes together."""

    def __init__(self, seconds: float, n_bytes: int, children: bool = False) -> None:
        """`children`: whether there are child processes, whose time and memory count too."""
        self.seconds, self.n_bytes, self.children = seconds, n_bytes, children
        self.forget()
        signal.signal(signal.SIGPROF, _too_long)

    def forget(self) -> None:
        """Count memory from now on: some is kept for good, which is not of one input."""
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        self._memory = self.peak_memory()

    def check(self, work: Callable[[], object]) -> Finding | None:
        """Run the work. The only exception that may come of it is a KedgeError."""
        began = self.processor_seconds()
        finding = None
        signal.setitimer(signal.ITIMER_PROF, self.seconds)
        try:
            work()
        except KedgeError as error:
            finding = _message_fault(error)
        except TooLong as error:
            finding = Finding("time", _place(error), "".join(traceback.format_exception(error)))
        except Exception as error:
            place = f"{type(error).__name__} {_place(error)}"
            finding = Finding("error", place, "".join(traceback.format_exception(error)))
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        took = self.processor_seconds() - began
        if finding is None and took > self.seconds:
            finding = Finding("time", "in a library or a child", f"{took:.1f} s")
        grown = self.grown()
        if grown > self.n_bytes:
            self.forget()
            finding = finding or Finding("memory", f"{grown >> 26 << 6} MiB", f"{grown:,} bytes")
        return finding

    def grown(self) -> int:
        """Bytes: the most memory since `forget`, beyond what there was then."""
        return self.peak_memory() - self._memory

    def processor_seconds(self) -> float:
        seconds = time.process_time()
        if not self.children:
            return seconds
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds += ended.ru_utime + ended.ru_stime
        for process in children():
            with suppress(OSError):
                fields = (process / "stat").read_text().rpartition(")")[2].split()
                seconds += sum(map(int, fields[11:13])) / TICKS
        return seconds

    def peak_memory(self) -> int:
        """Bytes: the most that this process has had since `forget`, and that its children have."""
        total = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        for process in children() if self.children else ():
            with suppress(OSError):
                lines = (process / "status").read_text().splitlines()
                total += sum(int(x.split()[1]) * 1024 for x in lines if x.startswith("VmHWM"))
        return total


def _too_long(number: int, frame: FrameType | None) -> None:
    raise TooLong


def _message_fault(error: KedgeError) -> Finding | None:
    text = str(error)
    try:
        text.encode()
    except UnicodeEncodeError:
        return Finding("message", f"cannot be printed {_place(error)}", ascii(text))
    if len(text) > LONGEST_MESSAGE:
        return Finding("message", f"too long {_place(error)}", text[:LONGEST_MESSAGE])
    return None


def _place(error: BaseException) -> str:
    """The last two functions of kedge that the error went through."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/kedge/" in f.filename]
    return " ".join(f"{Path(f.filename).stem}.{f.name}:{f.lineno}" for f in frames[-2:])


def children() -> list[Path]:
    """The folders in /proc of the child processes."""
    found: list[str] = []
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has just ended
            found += (thread / "children").read_text().split()
    return [Path("/proc", number) for number in found]
