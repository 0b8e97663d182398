"""Several methods and seeds of an experiment at the same time, each in a worker process.

Methods wait only for the base round of their seed; those that train from scratch wait for nothing.
Workers take GPUs in turn and share the CPU's cores. Several workers on one GPU are faster only with
NVIDIA's Multi-Process Service (LOG.md).

A worker ends when its parent does, however that ends: its standard input is closed then.
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

DONE = "\x1e"  # before a number of episodes that a worker has just finished


@dataclass(frozen=True)
class Job:
    """A method under one seed, over all its rounds."""

    seed: int
    method: str
    after: Job | None = None  # a job that has to be done before this one


Events = SimpleQueue[tuple[int, str | None]]  # slot of a worker and a line; None: it has ended


def run_jobs(folder: Path, jobs: Iterable[Job], n_workers: int, tick: Tick) -> None:
    """Do the jobs of the experiment in a folder, in order but for those that have to wait.

    The first job that fails ends all.
    """
    waiting, free, events = list(jobs), deque(range(n_workers)), Events()
    running: dict[int, tuple[Job, subprocess.Popen[str], list[str]]] = {}
    try:
        while waiting or running:
            undone = {*waiting, *(job for job, _, _ in running.values())}
            ready = [job for job in waiting if job.after not in undone]
            for job in ready[: len(free)]:
                waiting.remove(job)
                slot = free.popleft()
                process = _start(folder, job, slot, n_workers)
                running[slot] = job, process, []
                Thread(target=_listen, args=(slot, process, events), daemon=True).start()
            slot, line = events.get()
            job, process, messages = running[slot]
            if line is None:
                del running[slot]
                free.append(slot)
                with process:  # which closes its pipes
                    process.wait()
                if process.returncode != 0:
                    raise _failure(job, process.returncode, messages)
                for message in messages:
                    progress.note(message)
            elif line.startswith(DONE):
                tick(int(line.removeprefix(DONE)))
            elif line.startswith("kedge: ") or messages:  # its error
                messages.append(line)
            else:
                progress.note(line)
    finally:
        for _, process, _ in running.values():
            process.kill()
            process.wait()


def _start(folder: Path, job: Job, slot: int, n_workers: int) -> subprocess.Popen[str]:
    import torch

    resources = {"OMP_NUM_THREADS": str(max(1, torch.get_num_threads() // n_workers))}
    if gpus := torch.cuda.device_count():
        names = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))
        resources = {"CUDA_VISIBLE_DEVICES": names.split(",")[slot % gpus]}
    arguments = (folder, job.seed, job.method, n_workers)
    return subprocess.Popen(
        # -P: import nothing from the current folder, which may hold other modules.
        [sys.executable, "-P", "-m", "kedge.experiments.worker", *map(str, arguments)],
        env={**os.environ, **resources},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )


def _listen(slot: int, process: subprocess.Popen[str], events: Events) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        events.put((slot, line.rstrip("\n")))
    events.put((slot, None))


def _failure(job: Job, code: int, messages: list[str]) -> KedgeError:
    if messages:
        return KedgeError(" ".join(messages).removeprefix("kedge: "))
    return KedgeError(
        f"The process that trained {job.method} of seed {job.seed} ended with code {code}; give "
        "the same command again, without --jobs if memory was short."
    )
