"""A process that does one job of an experiment; started by `kedge.experiments.jobs`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from threading import Thread

from kedge.errors import KedgeError
from kedge.experiments.jobs import DONE, Job
from kedge.experiments.runner import work
from kedge.utils import progress
from kedge.utils.process import keep_memory, write_anything


def main() -> None:
    """The other end: one job, which says what it has done on standard output."""
    Thread(target=_end_with_the_other, daemon=True).start()
    keep_memory()
    write_anything()
    folder, seed, method, at_once = sys.argv[1:]
    try:
        with progress.display():
            work(Path(folder), Job(int(seed), method), int(at_once), _tell)
    except KedgeError as error:
        print(f"kedge: {progress.printable(str(error), one_line=True)}", flush=True)
        sys.exit(1)


def _tell(n: int) -> None:
    print(f"{DONE}{n}", flush=True)


def _end_with_the_other() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    main()
