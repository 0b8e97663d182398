"""A process that does one job of an experiment; started by a launcher (`launchers.base`)."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from threading import Thread

from kedge.errors import KedgeError, require
from kedge.experiments.jobs import BEGUN, DONE, wait_for_file
from kedge.experiments.runner import read_experiment
from kedge.experiments.seed_run import BASE, SeedRun
from kedge.methods.registry import parse_method
from kedge.training.loggers import log_to_tensorboard
from kedge.training.step import build_kernels_in_background
from kedge.utils import progress
from kedge.utils.process import keep_freed_memory, prepare_streams, shorten_warnings


def main() -> None:
    """Do one job, whose starter holds the lock; progress and errors go to standard output."""
    Thread(target=_exit_with_parent, daemon=True).start()
    keep_freed_memory()
    prepare_streams()
    shorten_warnings()
    print(BEGUN, flush=True)
    build_kernels_in_background()
    folder, seed, method, n_sharing, events = sys.argv[1:]
    try:
        with progress.display(), log_to_tensorboard(events or None):
            _do_job(Path(folder), int(seed), method, int(n_sharing))
    except KedgeError as error:
        print(f"kedge: {progress.printable(str(error), one_line=True)}", flush=True)
        sys.exit(1)


def _do_job(folder: Path, seed: int, label: str, n_sharing: int) -> None:
    settings = folder / "experiment.json"
    require(
        wait_for_file(settings),
        f"{settings}: is not on {socket.gethostname()}; all machines need the folder of --out "
        "under the same path.",
    )
    experiment = read_experiment(settings).experiment
    run = SeedRun(experiment, seed, folder / f"seed-{seed}", n_sharing)
    method = BASE if label == BASE.label else parse_method(label)
    if not method.from_scratch:
        wait_for_file(run.result_of(BASE))
    run.runs_of(method, lambda n: print(f"{DONE}{n}", flush=True))


def _exit_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    main()
