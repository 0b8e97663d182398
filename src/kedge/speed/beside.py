"""The plain loop as a process beside kedge, and the files that it reads."""

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
from PIL import Image

from kedge.data.augment import padding
from kedge.data.pools import Pool
from kedge.errors import KedgeError
from kedge.models.model import Model
from kedge.speed.plain import Loop
from kedge.speed.subject import Subject

PER_CLASS = 60  # files: enough for no two episodes to be alike, and all stay in the page cache
START = "from kedge.speed.plain import serve; serve()"
# What the command sets for itself (see kedge.cli), as a plain loop might be given it too.
SETTINGS = {
    "GOMP_SPINCOUNT": "1000",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
}


def default_workers() -> int:
    """As it is commonly written: four where there are cores for them."""
    return 4 if n_cores() >= 8 else 2


def n_cores() -> int:
    known = hasattr(os, "sched_getaffinity")  # Linux
    return len(os.sched_getaffinity(0)) if known else os.cpu_count() or 1


class PlainProcess:
    def __init__(self, loop: Loop, settings: dict[str, str]) -> None:
        ours = {k for k, v in SETTINGS.items() if os.environ.get(k) == v}  # set by the command
        environment = {k: v for k, v in os.environ.items() if k not in ours}
        self._said = Path(loop.folder) / f"said by {id(self)}"
        with open(self._said, "w") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", START],  # no module of the current folder
                env={**environment, **settings},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
            )
        self._say(json.dumps(asdict(loop)))

    def __call__(self, what: str, n_episodes: int) -> float:
        """Train or test; the seconds that it took."""
        self._say(json.dumps([what, n_episodes]))
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        if not answer:
            raise self._failure()
        seconds, _ = json.loads(answer)
        return float(seconds)

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            print(line, file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise self._failure() from None

    def _failure(self) -> KedgeError:
        self._process.wait()
        said = self._said.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
        return KedgeError(
            f"The plain loop that kedge is measured against has stopped: {said[-1].rstrip('.')}."
        )

    def close(self) -> None:
        """It ends with its pipe, and its workers with it; in the midst of a turn it is killed."""
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
def files_of(subject: Subject) -> Iterator[Path]:
    """The images of both pools as files in a temporary folder: JPEG in colour, PNG in grey."""
    with tempfile.TemporaryDirectory(prefix="kedge-speed-") as name:
        folder = Path(name)
        need = subject.shape.shots[1] + subject.shape.n_query
        for part, pool in (("train", subject.trained), ("test", subject.tested)):
            _write(pool, folder / part, max(PER_CLASS, need))
        yield folder


def _write(pool: Pool, folder: Path, most: int) -> None:
    for number, rows in enumerate(pool.class_rows):
        into = folder / f"{number:05}"
        into.mkdir(parents=True)
        for i, pixels in enumerate(pool.table.take(rows[:most])):
            if len(pixels) == 3:
                image = Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())
                image.save(into / f"{i:05}.jpg", quality=90)
            else:
                Image.fromarray(pixels[0].numpy()).save(into / f"{i:05}.png")


def loop_of(subject: Subject, start: Model, folder: Path, workers: int) -> Loop:
    table, shape, device = subject.table, subject.shape, start.device
    mean, std = (
        tuple(part.flatten().tolist()) for part in (start.embedding.mean, start.embedding.std)
    )
    return Loop(
        folder=str(folder),
        backbone=subject.backbone,
        n_channels=table.n_channels,
        image_size=table.image_size,
        padding=padding(table.image_size),
        n_way=shape.ways[1],
        n_shot=shape.shots[1],
        n_query=shape.n_query,
        temperature=start.head.temperature,
        mean=mean,
        std=std,
        device=str(device),
        workers=workers,
    )


def precision(device: torch.device) -> str:
    """What PyTorch's default comes to, which the plain loop leaves as it is."""
    if device.type == "cuda" and torch.backends.cudnn.allow_tf32:
        return "fp32, convolutions in TF32 (PyTorch's default)"
    return "fp32"
