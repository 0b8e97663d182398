"""Workers as jobs of SLURM, by way of submitit.

A job that reaches its time limit, or is preempted, is queued again by submitit. SLURM itself does
so after the failure of a node, where it is set up to; otherwise `kedge.experiments.jobs` does.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, final

from kedge.errors import KedgeError, require
from kedge.experiments.launchers.base import (
    Cores,
    Launcher,
    RemoteWorker,
    Worker,
    WorkerLost,
    not_started,
    work,
)
from kedge.utils.config_io import validated
from kedge.utils.ranges import Range
from kedge.utils.text import pip_install, pluralize

if TYPE_CHECKING:
    from submitit import Job
    from submitit.helpers import DelayedSubmission

MOST_TIME_LIMITS = 1000  # how often a job may reach its time limit and be queued again


@final
class SlurmLauncher(Launcher):
    """slurm:PARTITION queues all jobs at once, each with these resources."""

    cluster = "slurm"  # tests have submitit's "local"

    def __init__(
        self,
        where: str,
        *,
        cpus: int = 4,
        gpus: int = 0,
        hours: float = 24.0,
        memory: float = 0.0,  # GB; 0: what the partition gives by default
    ) -> None:
        require(bool(where), "--on slurm: name the partition, as in slurm:gpu.")
        self.where = where
        self.cpus = validated("--on slurm, cpus", Cores, cpus)
        self.gpus = validated("--on slurm, gpus", Annotated[int, Range(0, 1000)], gpus)
        self.hours = validated("--on slurm, hours", Annotated[float, Range(0.1, 10_000)], hours)
        self.memory = validated("--on slurm, memory", Annotated[float, Range(0, 1e6)], memory)
        of = f"{pluralize(self.cpus, 'core')} and {pluralize(self.gpus, 'GPU')}"
        self.about = f"jobs go to SLURM's partition {where}, each with {of} for {self.hours:g} h"

    def open(self, folder: Path) -> None:
        installed = importlib.util.find_spec("submitit") is not None
        require(installed, f"--on slurm needs submitit: {pip_install('slurm')}.")
        import submitit

        self.logs = folder / "slurm"
        # Only for this user, since submitit reads pickles there.
        self.logs.mkdir(mode=0o700, exist_ok=True)
        try:
            self.executor = submitit.AutoExecutor(
                self.logs, cluster=self.cluster, slurm_max_num_timeout=MOST_TIME_LIMITS
            )
        except RuntimeError as error:  # there is no srun here
            raise KedgeError(f"--on slurm:{self.where}: {error}.") from None
        self.executor.update_parameters(
            name="kedge",
            timeout_min=round(60 * self.hours),
            cpus_per_task=self.cpus,
            gpus_per_node=self.gpus,
            slurm_partition=self.where,
            **({"mem_gb": self.memory} if self.memory else {}),
        )

    def start(self, words: Sequence[str], slot: int) -> Worker:
        log = self.logs / f"{secrets.token_hex(4)}.log"
        try:
            job = self.executor.submit(RestartedWork(), words, str(log), os.getcwd())
        except Exception as error:  # sbatch refuses
            raise not_started(f"slurm:{self.where}", error) from error
        return SlurmWorker(f"slurm:{self.where}", job, log)


class RestartedWork:
    """`work`, which submitit queues again when its time is over: it continues where it was."""

    def __call__(self, words: Sequence[str], log: str, cwd: str) -> int:
        return work(words, log, cwd)

    def checkpoint(self, *arguments: Any) -> DelayedSubmission:
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, *arguments)


class SlurmWorker(RemoteWorker):
    _asking = threading.Lock()  # submitit's list of all jobs is for one thread

    def __init__(self, launcher: str, job: Job[int], log: Path) -> None:
        super().__init__(log)
        self.launcher, self.job = launcher, job

    def poll(self) -> int | None:
        from submitit.core.utils import FailedJobError, UncompletedJobError

        with self._asking:
            if not self.job.done():
                return None
            try:
                return self.job.result()
            except FailedJobError as error:
                raise not_started(self.launcher, error) from error
            except UncompletedJobError:
                state, number = self.job.state, self.job.job_id
        if state.startswith("CANCELLED"):  # by a person: preempted jobs have another state
            raise KedgeError(f"--on {self.launcher}: SLURM's job {number} was cancelled.")
        raise WorkerLost(f"SLURM's job {number} ended as {state}")

    def stop(self) -> None:
        self.job.cancel(check=False)
