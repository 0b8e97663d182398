"""A process that does one job of an experiment; started by `kedge.experiments.jobs`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from threading import Thread

from kedge.errors import KedgeError
from kedge.experiments.jobs import DONE, Job
from kedge.experiments.runner import run_job
from kedge.utils import progress
from kedge.utils.process import escape_unencodable, keep_freed_memory


def main() -> None:
    """Do one job, and report progress and errors on standard output."""
    Thread(target=_exit_with_parent, daemon=True).start()
    keep_freed_memory()
    escape_unencodable()
    folder, seed, method, n_workers = sys.argv[1:]
    try:
        with progress.display():
            run_job(Path(folder), Job(int(seed), method), int(n_workers), _report)
    except KedgeError as error:
        print(f"kedge: {progress.printable(str(error), one_line=True)}", flush=True)
        sys.exit(1)


def _report(n: int) -> None:
    print(f"{DONE}{n}", flush=True)


def _exit_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    main()
