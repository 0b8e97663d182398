"""Fuzz everything that reads files of others, and say what was found.

    python -m tools.fuzz                                  # every parser, a minute each
    python -m tools.fuzz pickle tar --seconds 3600        # some of them for longer
    python -m tools.fuzz.parallel --workers 16            # on a machine with many processors
    python -m tools.fuzz pickle --replay FILE             # one input, with its traceback

A finding is an input that gives anything but a result or a KedgeError, or takes more time or
memory than the bounds of worker.py. It is written with its traceback to
build/fuzz/PARSER/findings; a small form of it belongs into tests/data/regressions, which a test
replays. The inputs that reached new code stay in build/fuzz/PARSER/corpus, and the next run starts
from them. Needs atheris, of the extra "fuzz".
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from .target import TARGETS

STATUS = re.compile(r"^#(\d+)\s.*cov: (\d+) ft: (\d+) corp: (\d+)/", re.M)
FIRST_LINE = "INFO: Running with"  # of a worker
GRACE = 90  # seconds that a worker may take longer, of which it needs some to begin
LEAST_SECONDS = 5  # a worker that ends early is not started again for less


def read_log(text: str) -> tuple[int, int, int, int]:
    """Executions of all workers in a log; edges, features and kept inputs of the last one."""
    executions, last = 0, (0, 0, 0)
    for part in text.split(FIRST_LINE):
        if found := STATUS.findall(part):
            executions += int(found[-1][0])
            last = (int(found[-1][1]), int(found[-1][2]), int(found[-1][3]))
    return (executions, *last)


def fuzz(name: str, folder: Path, seconds: float, seed: int) -> dict[str, Any]:
    """Run workers until the time is over; what they did."""
    folder.mkdir(parents=True, exist_ok=True)
    end, executions, last = time.monotonic() + seconds, 0, [0, 0, 0]
    processor = 0.0
    while (left := end - time.monotonic()) > LEAST_SECONDS or not executions:
        command = [sys.executable, "-m", f"{__package__}.worker", name, folder]
        command += [str(max(1, int(left))), str(seed)]
        with open(folder / "log", "a+", encoding="utf-8", errors="replace") as log:
            start = log.tell()
            process = subprocess.Popen([*map(str, command)], stdout=log, stderr=log)
            stop = threading.Timer(left + GRACE, process.kill)
            stop.start()
            _, _, usage = os.wait4(process.pid, 0)
            stop.cancel()
            log.seek(start)
            n, *last = read_log(log.read())
        processor += usage.ru_utime + usage.ru_stime
        if not n:
            sys.exit(f"{name}: the worker did not start; see {folder / 'log'}")
        executions += n
        seed += 1
    findings = sorted(
        path.name for path in (folder / "findings").iterdir() if path.suffix != ".txt"
    )
    return {
        "target": name,
        "processor_seconds": round(processor),
        "executions": executions,
        "edges": last[0],
        "features": last[1],
        "corpus": last[2],
        "findings": findings,
    }


def replay(name: str, path: Path) -> None:
    from .bounds import Bounds
    from .target import load_target

    target = load_target(name)
    with tempfile.TemporaryDirectory() as folder:
        target.run(Path(folder), target.seeds()[0])  # what is imported does not count
        bounds = Bounds(60, 1 << 40, target.children)
        began, memory = bounds.processor_seconds(), bounds.peak_memory()
        finding = bounds.check(lambda: target.run(Path(folder), path.read_bytes()))
        print(finding.text if finding else "no exception")
        seconds, grown = bounds.processor_seconds() - began, bounds.peak_memory() - memory
        print(f"{seconds:.2f} s, {grown >> 20} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parsers", nargs="*", choices=[*TARGETS, []], default=[])
    parser.add_argument("--seconds", type=float, default=60, help="for each parser")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("build/fuzz"))
    parser.add_argument("--replay", type=Path, help="an input for one parser")
    options = parser.parse_args()
    if options.replay:
        return replay(options.parsers[0], options.replay)
    n_findings = 0
    for name in options.parsers or TARGETS:
        done = fuzz(name, options.out / name, options.seconds, options.seed)
        n_findings += len(done["findings"])
        print(json.dumps(done), flush=True)
        with open(options.out / "runs.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(done) + "\n")
    sys.exit(n_findings > 0)


if __name__ == "__main__":
    main()
