"""The jobs of an experiment: which may start, and what becomes of one whose worker is lost.

Methods wait only for the base round of their seed; those that train from scratch wait for nothing.
Where a job runs is up to a launcher (`kedge.experiments.launchers`).
"""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

from kedge.errors import KedgeError, require
from kedge.experiments.launchers.base import Launcher, Worker, WorkerLost
from kedge.training.loggers import TensorBoardLogger, current_logger
from kedge.utils import progress
from kedge.utils.progress import Tick

BEGUN = "\x1ebegun"  # a worker prints this first: also one that a scheduler has started again
DONE = "\x1e"  # before a number of episodes that a worker has just finished
MOST_LOSSES = 3  # of a job's workers in a row without an episode more
VISIBLE_WITHIN = 90.0  # seconds until all machines see a file in a shared folder


@dataclass(frozen=True)
class Job:
    """A method under one seed, over all its rounds."""

    seed: int
    method: str
    after: Job | None = None  # a job that has to be done before this one
    result: Path | None = None  # the file that exists when it is done

    def __str__(self) -> str:
        return f"seed {self.seed}, {self.method}"


Event = str | int | Exception  # a line of a worker, its exit code, or why it ended
Events = SimpleQueue[tuple[int, Event]]  # with the slot of the worker


@dataclass
class _Running:
    job: Job
    worker: Worker
    messages: list[str] = field(default_factory=list)  # its error


class _JobQueue:
    """The jobs that wait and run, and the episodes that each has reported."""

    def __init__(self, folder: Path, jobs: Iterable[Job], launcher: Launcher, tick: Tick) -> None:
        self.folder, self.waiting, self.launcher, self.tick = folder, list(jobs), launcher, tick
        self.events_folder = _events_folder()
        self.free = deque(range(min(launcher.n_workers, len(self.waiting))))
        self.running: dict[int, _Running] = {}  # by slot
        self.events = Events()
        self.episodes, self.furthest, self.losses = Counter[Job](), Counter[Job](), Counter[Job]()

    def start_ready(self) -> None:
        """Start the jobs that need not wait, in order, as far as there are free slots."""
        undone = {*self.waiting, *(each.job for each in self.running.values())}
        ready = [job for job in self.waiting if job.after not in undone]
        for job in ready[: len(self.free)]:
            self.waiting.remove(job)
            slot = self.free.popleft()
            sharing = self.launcher.n_sharing
            words = (self.folder, job.seed, job.method, sharing, self.events_folder or "")
            worker = self.launcher.start([*map(str, words)], slot)
            self.running[slot] = _Running(job, worker)
            Thread(target=_listen, args=(slot, worker, self.events), daemon=True).start()

    def handle(self, slot: int, event: Event) -> None:
        running = self.running[slot]
        if isinstance(event, str):
            self._read(running, event)
            return
        del self.running[slot]
        self.free.append(slot)
        if isinstance(event, int) and event < 0:
            event = WorkerLost(f"it was ended by signal {-event}")
        if isinstance(event, WorkerLost):
            self._do_again(running.job, event)
        elif isinstance(event, Exception):
            raise event
        elif event != 0:
            raise _failure(running.job, event, running.messages)
        else:
            for message in running.messages:
                progress.note(message)
            _check_result(running.job)

    def _read(self, running: _Running, line: str) -> None:
        job = running.job
        if line == BEGUN:  # what an earlier worker has done is reported again
            self.tick(-self.episodes.pop(job, 0))
        elif line.startswith(DONE):
            n = int(line.removeprefix(DONE))
            self.episodes[job] += n
            self.tick(n)
        elif line.startswith("kedge: ") or running.messages:
            running.messages.append(line)
        else:
            progress.note(line)

    def _do_again(self, job: Job, lost: WorkerLost) -> None:
        """Give the job of a lost worker to another one, which continues from the checkpoint."""
        if self.episodes[job] > self.furthest[job]:
            self.furthest[job], self.losses[job] = self.episodes[job], 0
        self.losses[job] += 1
        if self.losses[job] == MOST_LOSSES:
            raise KedgeError(
                f"The worker for {job} was lost {MOST_LOSSES} times without getting further "
                f"({lost}); give the same command again, with fewer jobs at a time if memory was "
                "short."
            )
        progress.note(f"{job}: its worker was lost ({lost}); another one continues")
        self.waiting.insert(0, job)


def run_jobs(folder: Path, jobs: Iterable[Job], launcher: Launcher, tick: Tick) -> None:
    """Do the jobs of the experiment in a folder, in order but for those that have to wait.

    The first job that fails ends all.
    """
    queue = _JobQueue(folder, jobs, launcher, tick)
    launcher.open(folder)
    if launcher.about and queue.waiting:
        progress.note(launcher.about)
    try:
        while queue.waiting or queue.running:
            queue.start_ready()
            queue.handle(*queue.events.get())
    finally:
        for running in queue.running.values():
            running.worker.stop()
        launcher.close()


def _events_folder() -> Path | None:
    """Where workers write event files for TensorBoard. Other loggers are of this process."""
    logger = current_logger()
    require(
        logger is None or isinstance(logger, TensorBoardLogger),
        "Only the logger of TensorBoard works in other processes: leave --on out.",
    )
    return logger.folder.resolve() if isinstance(logger, TensorBoardLogger) else None


def _listen(slot: int, worker: Worker, events: Events) -> None:
    lines = worker.lines()
    try:
        while True:
            events.put((slot, next(lines)))
    except StopIteration as end:
        events.put((slot, end.value))
    except Exception as error:  # raised again by the main thread
        events.put((slot, error))


def _failure(job: Job, code: int, messages: list[str]) -> KedgeError:
    if messages:
        return KedgeError(" ".join(messages).removeprefix("kedge: "))
    return KedgeError(f"The worker for {job} ended with code {code}; give the same command again.")


def _check_result(job: Job) -> None:
    """Raise unless what a worker has written, perhaps on another machine, is visible here."""
    if job.result is not None and not wait_for_file(job.result):
        raise KedgeError(
            f"{job.result}: a worker has written it, but it is not here; all machines need the "
            "folder of --out under the same path."
        )


def wait_for_file(path: Path) -> bool:
    """Whether a file exists; one that another machine has written may take a while to appear."""
    end = time.monotonic() + VISIBLE_WITHIN
    while not path.exists():
        if time.monotonic() > end:
            return False
        with suppress(OSError):
            os.listdir(path.parent)  # after which NFS no longer remembers that it was missing
        time.sleep(0.2)
    return True
