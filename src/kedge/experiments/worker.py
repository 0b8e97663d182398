"""A process that does one job of an experiment; started by `kedge.experiments.jobs`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from threading import Thread

from kedge.errors import KedgeError
from kedge.experiments.experiment import Experiment
from kedge.experiments.jobs import DONE
from kedge.experiments.seed_run import BASE, SeedRun
from kedge.methods.registry import parse_method
from kedge.training.step import load_compiler_in_background
from kedge.utils import progress
from kedge.utils.config_io import from_dict, parse_json
from kedge.utils.process import keep_freed_memory, prepare_streams, shorten_warnings
from kedge.utils.regular_file import read_text


def main() -> None:
    """Do one job, whose parent holds the lock; progress and errors go to standard output."""
    Thread(target=_exit_with_parent, daemon=True).start()
    keep_freed_memory()
    prepare_streams()
    shorten_warnings()
    load_compiler_in_background()
    folder, seed, method, n_workers = sys.argv[1:]
    try:
        with progress.display():
            saved = parse_json(read_text(Path(folder, "experiment.json")))
            del saved["images"]
            experiment, own = from_dict(Experiment, saved), Path(folder, f"seed-{seed}")
            run = SeedRun(experiment, int(seed), own, int(n_workers))
            run.runs_of(
                BASE if method == BASE.label else parse_method(method),
                lambda n: print(f"{DONE}{n}", flush=True),
            )
    except KedgeError as error:
        print(f"kedge: {progress.printable(str(error), one_line=True)}", flush=True)
        sys.exit(1)


def _exit_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    main()
