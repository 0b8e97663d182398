"""Processes that decode: the same pixels, whatever happens to one of them."""

from __future__ import annotations

import io
import os
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kedge.images import decoding, workers
from kedge.images.decoding import decoded, in_memory, n_chunks
from kedge.images.pictures import Look
from kedge.images.readers import catalogue
from kedge.images.workers import CRASHED, DAMAGED, Worker, decode_each

LOOK = Look(16, 3)
# A worker that a certain picture kills, as a fault in a decoder would.
MORTAL = """
import os
from kedge.images import workers
real = workers.decode
def deadly(picture, look):
    if picture == b"deadly":
        os.kill(os.getpid(), 9)
    return real(picture, look)
workers.decode = deadly
workers.serve()
"""


def png(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (20, 24, 3)).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def same(a: workers.Answers, b: workers.Answers) -> None:
    assert len(a) == len(b)
    for one, other in zip(a, b, strict=True):
        assert isinstance(one, str) == isinstance(other, str)
        np.testing.assert_array_equal(one, other)


def test_worker_gives_what_this_process_would(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(png(0))
    pixels = np.random.default_rng(1).integers(0, 256, (30, 20, 3)).astype(np.uint8)
    pictures = [tmp_path / "x.png", png(1), b"no image", pixels, tmp_path / "gone.png", b""]
    worker = Worker()
    for _ in range(2):
        same(worker(pictures, LOOK), decode_each(pictures, LOOK))
    assert worker([b"no image"], LOOK) == [DAMAGED]
    worker.close()


def test_only_the_picture_that_kills_it_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "START", MORTAL)
    worker = Worker()
    answers = worker([png(0), b"deadly", png(1)], LOOK)
    worker.close()
    assert answers[1] == CRASHED
    same([answers[0], answers[2]], decode_each([png(0), png(1)], LOOK))


def test_all_of_a_catalogue_in_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for k in range(3):
        (tmp_path / f"class {k}").mkdir()
        for i in range(30):
            (tmp_path / f"class {k}" / f"{i}.png").write_bytes(png(30 * k + i) if i != 7 else b"?")
    found = catalogue(tmp_path)
    plainly = in_memory(found, LOOK)
    monkeypatch.setattr(decoding, "WORTH_PROCESSES", 0)
    assert in_memory(found, LOOK).fingerprint == plainly.fingerprint


def test_workers_end_with_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the work is broken off."""
    ids: list[int] = []
    real = Worker._asked

    def noted(self: Worker, *args: object) -> workers.Answers:
        answers = real(self, *args)  # type: ignore[arg-type]
        assert self._process is not None
        ids.append(self._process.pid)
        return answers

    monkeypatch.setattr(Worker, "_asked", noted)
    monkeypatch.setattr(decoding, "WORTH_PROCESSES", 0)
    (tmp_path / "a").mkdir()
    for i in range(200):
        (tmp_path / "a" / f"{i}.png").write_bytes(png(0))
    pictures = catalogue(tmp_path).pictures
    work = decoded(pictures, LOOK, range(n_chunks(pictures)))
    next(work)
    work.close()
    assert ids
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{i}").exists() for i in ids) and Path("/proc/self").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert os.getpid() not in ids
