"""Workers as tasks of a Ray cluster, which gives each the cores and GPUs that it asks for."""

from __future__ import annotations

import importlib.util
import logging
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, final

from kedge.errors import KedgeError, require
from kedge.experiments.launchers.base import (
    POLL_SECONDS,
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


@final
class RayLauncher(Launcher):
    """ray:ADDRESS (or ray:auto on a machine of the cluster) queues all jobs at once."""

    def __init__(self, where: str, *, cpus: int = 1, gpus: float | None = None) -> None:
        """Without `gpus`, a job gets one if the cluster has any."""
        ok = bool(where) and "://" not in where
        require(ok, "--on ray: give the address of a cluster, as in ray:HOST:6379, or ray:auto.")
        self.where = where
        self.cpus = validated("--on ray, cpus", Cores, cpus)
        self.gpus = validated("--on ray, gpus", Annotated[float, Range(0, 1000)] | None, gpus)

    def open(self, folder: Path) -> None:
        installed = importlib.util.find_spec("ray") is not None
        require(installed, f"--on ray needs ray: {pip_install('ray')}.")
        import ray

        self.logs = folder / "ray"
        self.logs.mkdir(exist_ok=True)
        try:
            ray.init(self.where, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError) as error:
            reason = str(error).partition("\n")[0].rstrip(".")
            raise KedgeError(f"--on ray:{self.where}: no Ray cluster here ({reason}).") from None
        gpus = min(1.0, ray.cluster_resources().get("GPU", 0.0)) if self.gpus is None else self.gpus
        resources = {"num_cpus": self.cpus, "num_gpus": gpus}
        # Jobs that are lost are started again by kedge, which knows where they continue.
        self.task = ray.remote(max_retries=0, **resources)(work)
        of = f"{pluralize(self.cpus, 'core')} and {gpus:g} GPU{'' if gpus == 1 else 's'}"
        self.about = f"jobs go to the Ray cluster {self.where}, each with {of}"

    def start(self, words: Sequence[str], slot: int) -> Worker:
        log = self.logs / f"{secrets.token_hex(4)}.log"
        return RayWorker(
            f"ray:{self.where}", self.task.remote([*words], str(log), os.getcwd()), log
        )

    def close(self) -> None:
        import ray

        ray.shutdown()


class RayWorker(RemoteWorker):
    def __init__(self, launcher: str, task: Any, log: Path) -> None:
        super().__init__(log)
        self.launcher, self.task = launcher, task

    def poll(self) -> int | None:
        import ray
        from ray.exceptions import RayTaskError

        try:
            ended, _ = ray.wait([self.task], timeout=POLL_SECONDS)
            return int(ray.get(ended[0])) if ended else None
        except RayTaskError as error:  # an exception of `work`
            raise not_started(self.launcher, error) from error
        except ray.exceptions.RayError as error:
            reason = str(error).partition("\n")[0]
            raise WorkerLost(reason[:200].rstrip(".")) from error

    def stop(self) -> None:
        import ray

        ray.cancel(self.task, force=True)
