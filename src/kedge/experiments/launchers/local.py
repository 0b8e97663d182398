"""Workers on this machine. They take GPUs in turn and share the CPU's cores.

Several workers on one GPU are faster only with NVIDIA's Multi-Process Service (LOG.md).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Generator, Sequence
from typing import Annotated, final

from kedge.errors import KedgeError
from kedge.experiments.launchers.base import Launcher, Worker, start_process, text_of
from kedge.utils.config_io import validated
from kedge.utils.ranges import Range


@final
class LocalLauncher(Launcher):
    """local:N runs N jobs at a time; local, or local:1, runs all in this process."""

    def __init__(self, where: str) -> None:
        if where and not where.isdecimal():
            raise KedgeError(f"--on local:{where}: give a number of jobs, as in local:4.")
        n = validated("--on local", Annotated[int, Range(1, 1000)], int(where or 1))
        self.n_workers = self.n_sharing = n
        self.in_this_process = n == 1

    def start(self, words: Sequence[str], slot: int) -> Worker:
        return LocalWorker(words, self._resources(slot))

    def _resources(self, slot: int) -> dict[str, str]:
        import torch

        if gpus := torch.cuda.device_count():
            names = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))
            return {"CUDA_VISIBLE_DEVICES": names.split(",")[slot % gpus]}
        return {"OMP_NUM_THREADS": str(max(1, torch.get_num_threads() // self.n_workers))}


class LocalWorker(Worker):
    def __init__(self, words: Sequence[str], environment: dict[str, str]) -> None:
        self.process = start_process(words, subprocess.PIPE, **environment)

    def lines(self) -> Generator[str, None, int]:
        with self.process as process:  # which closes its pipes
            assert process.stdout is not None
            yield from map(text_of, process.stdout)
            return process.wait()

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
