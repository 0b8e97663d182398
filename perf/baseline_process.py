"""The baseline loop in a process of its own, and the image files that it reads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

import torch
from baseline_loop import BaselineConfig
from PIL import Image
from workload import Workload

from kedge.data.augment import padding
from kedge.data.pools import Pool
from kedge.models.model import Model

FILES_PER_CLASS = 60  # few enough that all of them stay in the page cache
LOOP = Path(__file__).with_name("baseline_loop.py")
# The variables that the kedge command sets for itself (see kedge.cli).
KEDGE_SETTINGS = {
    "GOMP_SPINCOUNT": "1000",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
}


def default_workers() -> int:
    """A common setting for num_workers: 4 on 8 cores or more, otherwise 2."""
    linux = hasattr(os, "sched_getaffinity")
    n_cores = len(os.sched_getaffinity(0)) if linux else os.cpu_count() or 1
    return 4 if n_cores >= 8 else 2


class BaselineProcess:
    """Starts the loop, sends it requests and returns its times."""

    def __init__(self, config: BaselineConfig, settings: dict[str, str]) -> None:
        environment = {k: v for k, v in os.environ.items() if KEDGE_SETTINGS.get(k) != v}
        self._errors = Path(config.folder) / f"errors {id(self)}"
        with open(self._errors, "w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(LOOP)],  # -P: no modules from the current folder
                env={**environment, **settings},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._send(json.dumps(asdict(config)))

    def __call__(self, request: str, n_episodes: int) -> float:
        """Seconds to "train" or "test" that many episodes."""
        self._send(json.dumps([request, n_episodes]))
        assert self._process.stdout is not None
        reply = self._process.stdout.readline()
        if not reply:
            raise self._failure()
        seconds, _ = json.loads(reply)
        return float(seconds)

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            print(line, file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise self._failure() from None

    def _failure(self) -> RuntimeError:
        self._process.wait()
        return RuntimeError(f"The baseline loop has stopped: {self._errors.read_text()[-2000:]}")

    def close(self) -> None:
        """Close the pipes, which ends the process and its workers; kill it if it is busy."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def image_files(work: Workload) -> Iterator[Path]:
    """A temporary folder with the images of both pools: JPEG in colour, PNG in grey."""
    with tempfile.TemporaryDirectory(prefix="kedge-perf-") as name:
        folder = Path(name)
        for part, pool in zip(("train", "test"), work.pools, strict=True):
            _write(pool, folder / part, max(FILES_PER_CLASS, work.images_per_class))
        yield folder


def _write(pool: Pool, folder: Path, most: int) -> None:
    for number, rows in enumerate(pool.class_rows):
        class_folder = folder / f"{number:05}"
        class_folder.mkdir(parents=True)
        for i, pixels in enumerate(pool.table.take(rows[:most])):
            if len(pixels) == 3:
                image = Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())
                image.save(class_folder / f"{i:05}.jpg", quality=90)
            else:
                Image.fromarray(pixels[0].numpy()).save(class_folder / f"{i:05}.png")


def baseline_config(work: Workload, model: Model, folder: Path, workers: int) -> BaselineConfig:
    table, shape = work.table, work.shape
    mean, std = (
        tuple(part.flatten().tolist()) for part in (model.embedding.mean, model.embedding.std)
    )
    return BaselineConfig(
        folder=str(folder),
        backbone=work.backbone,
        n_channels=table.n_channels,
        image_size=table.image_size,
        padding=padding(table.image_size),
        n_way=shape.ways[1],
        n_shot=shape.shots[1],
        n_query=shape.n_query,
        temperature=model.head.temperature,
        mean=mean,
        std=std,
        device=str(model.device),
        workers=workers,
    )


def precision(device: torch.device) -> str:
    """PyTorch's default, which the baseline loop does not change."""
    if device.type == "cuda" and torch.backends.cudnn.allow_tf32:
        return "fp32, convolutions in TF32 (PyTorch's default)"
    return "fp32"
