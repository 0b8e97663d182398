"""Fuzz all parsers at once on a machine with many processors, each for the same time.

    python -m tools.fuzz.parallel --workers 16 --seconds 1200 --seed 20000

The time of all workers together is divided evenly among the parsers. A worker fuzzes one parser or
a few, one after the other, each with a seed and a folder of its own (OUT/runs/PARSER-SEED).
Meanwhile OUT/status.json says what has been done, and when the time is over three files are there:

    OUT/summary.json   processor minutes, executions, edges, inputs kept and findings of each parser
    OUT/findings.tar.gz   inputs that are findings, each with its traceback
    OUT/corpora.tar.gz    kept inputs, which `--corpora` takes once they are unpacked

Start it with `setsid` where the session may end before. It ends by itself.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import shutil
import tarfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .__main__ import fuzz, read_log
from .target import TARGETS

START = 20  # seconds until a worker has imported what it needs
LEAST = 60  # seconds; a run that would be shorter is left out
EVERY = 10  # seconds between two states of status.json
LARGEST = {"findings": 8 << 20, "corpora": 12 << 20}  # bytes of the archives


class Run(NamedTuple):
    """One parser, fuzzed by one worker without a break."""

    parser: str
    seconds: float
    seed: int


def divide(parsers: Sequence[str], n_workers: int, seconds: float, seed: int) -> list[list[Run]]:
    """The runs of each worker: the parsers follow one another until the time of a worker is over,
    and go on with the next. Runs of less than a minute are left out."""
    workers, left = [list[Run]() for _ in range(n_workers)], [seconds] * n_workers
    worker = 0
    for parser in parsers:
        todo = seconds * n_workers / len(parsers)
        while todo > 1e-6 and worker < n_workers:
            takes = min(todo, left[worker])
            if takes >= min(LEAST, seconds / 2):
                workers[worker].append(Run(parser, takes, seed))
                seed += 100  # further ones of the same run count from it
            todo -= takes
            left[worker] -= takes
            worker += left[worker] < 1e-6
    return workers


class Report:
    """What the runs have done so far, in OUT/status.json."""

    def __init__(self, out: Path) -> None:
        self.out, self.began = out, time.time()
        self.done: dict[Run, float] = {}  # seconds of processor time
        self.running: set[Run] = set()
        self.faults: list[str] = []

    def folder(self, run: Run) -> Path:
        return self.out / "runs" / f"{run.parser}-{run.seed}"

    def of_run(self, run: Run) -> dict[str, int]:
        log = self.folder(run) / "log"
        numbers = read_log(log.read_text("utf-8", "replace") if log.exists() else "")
        return dict(zip(("executions", "edges", "features", "corpus"), numbers, strict=True))

    def of_parser(self, parser: str) -> dict[str, Any]:
        runs = sorted(r for r in {*self.done, *self.running} if r.parser == parser)
        found = [self.of_run(run) for run in runs]
        findings = sorted(
            path for run in runs for path in (self.folder(run) / "findings").glob("*.txt")
        )
        return {
            "processor_minutes": round(sum(self.done.get(run, 0) for run in runs) / 60, 1),
            "executions": sum(x["executions"] for x in found),
            "edges": max((x["edges"] for x in found), default=0),
            "corpus": max((x["corpus"] for x in found), default=0),
            "seeds": [run.seed for run in runs],
            "findings": {
                f"{path.parent.parent.name}/{path.stem}": path.read_text("utf-8", "replace")[:2000]
                for path in findings
            },
        }

    def write(self, name: str, state: str) -> None:
        content = {
            "state": state,
            "seconds": round(time.time() - self.began),
            "running": [f"{run.parser}-{run.seed}" for run in sorted(self.running)],
            "faults": self.faults,
            "parsers": {parser: self.of_parser(parser) for parser in TARGETS},
        }
        path = self.out / f"{name}.part"
        path.write_text(json.dumps(content, indent=1), "utf-8")
        path.replace(self.out / f"{name}.json")


def work(runs: Sequence[Run], corpora: Path, report: Report) -> None:
    for run in runs:
        folder, carried = report.folder(run), corpora / run.parser / "corpus"
        report.running.add(run)
        try:
            if carried.is_dir():
                shutil.copytree(carried, folder / "corpus", dirs_exist_ok=True)
            done = fuzz(run.parser, folder, max(1, run.seconds - START), run.seed)
            report.done[run] = done["processor_seconds"]
        except (Exception, SystemExit) as error:
            report.faults.append(f"{run.parser}-{run.seed}: {error}")
            report.done[run] = 0
        report.running.discard(run)


def pack(path: Path, files: dict[str, Path], most: int) -> None:
    """An archive of the files, the small ones first, as far as they fit in."""
    total = 0
    with tarfile.open(path, "w:gz") as tar:
        for name, file in sorted(files.items(), key=lambda item: item[1].stat().st_size):
            content = file.read_bytes()
            total += len(content)
            if total > most:
                break
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def pack_all(out: Path, carried: Path) -> None:
    findings = {str(path.relative_to(out / "runs")): path for path in out.glob("runs/*/findings/*")}
    pack(out / "findings.tar.gz", findings, LARGEST["findings"])
    kept: dict[str, Path] = {}
    for path in out.glob("runs/*/corpus/*"):
        parser = path.parent.parent.name.rpartition("-")[0]
        name = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        if not (carried / parser / "corpus" / path.name).exists():
            kept[f"{parser}/corpus/{name}"] = path
    pack(out / "corpora.tar.gz", kept, LARGEST["corpora"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parsers", nargs="*", metavar="PARSER", help="by default all")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=600, help="until all of it is over")
    parser.add_argument("--seed", type=int, default=1, help="of the first run; others 100 apart")
    parser.add_argument("--out", type=Path, default=Path("build/fuzz-parallel"))
    parser.add_argument("--corpora", type=Path, default=Path("build/fuzz"), help="to start from")
    options = parser.parse_args()
    if unknown := set(options.parsers) - set(TARGETS):
        parser.error(f"no parser {min(unknown)}; there are {', '.join(TARGETS)}")
    os.nice(19)
    os.environ["OMP_NUM_THREADS"] = "1"
    options.out.mkdir(parents=True, exist_ok=True)
    report = Report(options.out)
    runs = divide(options.parsers or TARGETS, options.workers, options.seconds, options.seed)
    threads = [threading.Thread(target=work, args=(x, options.corpora, report)) for x in runs]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        report.write("status", "running")
        time.sleep(EVERY)
    report.write("summary", "done")
    pack_all(options.out, options.corpora)
    report.write("status", "done")


if __name__ == "__main__":
    main()
