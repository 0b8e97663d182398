"""Runs many cases in one process and measures each.

Standard input is one JSON list: the cases, the CPU seconds of each, the bytes of address space that
all may take beyond the start, and two files for the output of a case. A case is a name followed by
the arguments of `kedge`, or by `-c` and code. The limit on address space holds after the case
"limit"; cases before it load what is needed. For each case a line of JSON is printed: name, exit
code, output, errors, seconds, and MiB by which memory grew.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import resource
import signal
import sys
import time
import traceback
from types import FrameType

import pyarrow.parquet  # noqa: F401 (loaded here, so that no case has to)
import torch  # noqa: F401
from PIL import Image

import kedge.cli
from kedge.errors import KedgeError
from kedge.utils.progress import printable


class TooLong(BaseException):
    pass


def too_long(number: int, frame: FrameType | None) -> None:
    raise TooLong("took too long:" + " <- ".join(traceback.format_stack(frame)[-3:]))


def memory(what: str) -> int:
    """A field of /proc/self/status in KiB."""
    with open("/proc/self/status") as file:
        found = re.search(what + r":\s+(\d+) kB", file.read())
    assert found is not None
    return int(found[1])


def forget_peak() -> None:
    ctypes.CDLL(None).malloc_trim(0)  # memory that a case keeps must not hide that of the next
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        pass


def command(words: list[str]) -> None:
    if words[0] != "-c":
        sys.argv = ["kedge", *words]
        kedge.cli.main()
        return
    try:
        exec(words[1], {"__name__": "__main__"})
    except KedgeError as error:
        sys.exit(f"kedge: {printable(str(error), one_line=True)}")


def run(words: list[str], seconds: float) -> int:
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, 4 * seconds)
    try:
        command(words)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 99
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
    return 0


def main() -> None:
    cases, seconds, room, files = json.load(sys.stdin)
    report = os.fdopen(os.dup(1), "w")
    Image.init()
    signal.signal(signal.SIGPROF, too_long)
    signal.signal(signal.SIGALRM, too_long)
    for name, *words in cases:
        if name == "limit":
            now = memory("VmSize") * 1024
            resource.setrlimit(resource.RLIMIT_AS, (now + room, now + room))
            continue
        outputs = [os.fdopen(os.open(f, os.O_RDWR | os.O_CREAT | os.O_TRUNC)) for f in files]
        for number, file in zip((1, 2), outputs, strict=True):
            os.dup2(file.fileno(), number)
        forget_peak()
        before, began = memory("VmRSS"), time.process_time()
        rc = run(words, seconds)
        sys.stdout.flush()
        sys.stderr.flush()
        took, grown = time.process_time() - began, (memory("VmHWM") - before) // 1024
        texts = []
        for file in outputs:
            file.seek(0)
            texts.append(file.read())
            file.close()
        print(json.dumps([name, rc, *texts, took, grown]), file=report, flush=True)


if __name__ == "__main__":
    main()
