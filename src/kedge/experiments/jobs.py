"""Several methods and seeds of an experiment at the same time, each in a process of its own.

Once the base round of their seed is there, methods have nothing to do with each other; those that
start from scratch do not even need it. Several GPUs are dealt out in turn; a single one gains where
NVIDIA's Multi-Process Service is on, and loses otherwise (LOG.md); the cores of a CPU are shared
out.

A process that works for another ends with it, however that ends: its standard input is closed then.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

from kedge.errors import KedgeError
from kedge.utils import progress
from kedge.utils.progress import Tick

DONE = "\x1e"  # before a number: so many more episodes


@dataclass(frozen=True)
class Job:
    """A method of one seed, over all its rounds."""

    seed: int
    method: str
    after: Job | None = None  # which has to be done before, now or by an earlier command


Events = SimpleQueue[tuple[int, str | None]]  # from which place, and a line; None: it has ended


def work_off(folder: Path, jobs: Iterable[Job], at_once: int, tick: Tick) -> None:
    """Do the jobs of the experiment in a folder: always the first that need not wait for another.
    The first that fails ends all."""
    waiting, free, events = list(jobs), deque(range(at_once)), Events()
    running: dict[int, tuple[Job, subprocess.Popen[str], list[str]]] = {}
    try:
        while waiting or running:
            undone = {*waiting, *(job for job, _, _ in running.values())}
            ready = [job for job in waiting if job.after not in undone]
            for job in ready[: len(free)]:
                waiting.remove(job)
                place = free.popleft()
                process = _start(folder, job, place, at_once)
                running[place] = job, process, []
                Thread(target=_listen, args=(place, process, events), daemon=True).start()
            place, line = events.get()
            job, process, said = running[place]
            if line is None:
                del running[place]
                free.append(place)
                with process:  # which closes its pipes
                    process.wait()
                if process.returncode != 0:
                    raise _failure(job, process.returncode, said)
                for each in said:
                    progress.note(each)
            elif line.startswith(DONE):
                tick(int(line.removeprefix(DONE)))
            elif line.startswith("kedge: ") or said:  # why it ends
                said.append(line)
            else:
                progress.note(line)
    finally:
        for _, process, _ in running.values():
            process.kill()
            process.wait()


def _start(folder: Path, job: Job, place: int, at_once: int) -> subprocess.Popen[str]:
    import torch

    shared = {"OMP_NUM_THREADS": str(max(1, torch.get_num_threads() // at_once))}
    if gpus := torch.cuda.device_count():
        names = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))
        shared = {"CUDA_VISIBLE_DEVICES": names.split(",")[place % gpus]}
    words = (folder, job.seed, job.method, at_once)
    return subprocess.Popen(
        # -P: no module is looked for in the current folder, which may be anybody's.
        [sys.executable, "-P", "-m", "kedge.experiments.worker", *map(str, words)],
        env={**os.environ, **shared},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )


def _listen(place: int, process: subprocess.Popen[str], events: Events) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        events.put((place, line.rstrip("\n")))
    events.put((place, None))


def _failure(job: Job, code: int, said: list[str]) -> KedgeError:
    if said:
        return KedgeError(" ".join(said).removeprefix("kedge: "))
    return KedgeError(
        f"The process that trained {job.method} of seed {job.seed} has ended with {code}; the same "
        "command goes on from there, and without --jobs if memory was short."
    )
