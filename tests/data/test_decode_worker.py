"""Processes that decode: the same pixels, whatever happens to one of them."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from kedge.data import decode_worker, parallel_decode
from kedge.data.decode import ImageSpec, Picture
from kedge.data.decode_worker import (
    CRASHED,
    DAMAGED,
    Worker,
    decode_each,
)
from kedge.data.index import ArrayImages, ImageSource
from kedge.data.parallel_decode import (
    CHUNK,
    batches,
    decoded,
    in_memory,
    in_parallel,
    n_chunks,
    n_workers,
)
from kedge.data.readers import read_index
from kedge.data.table import ImageTable

Ready = Any  # of conftest.py, which cannot be imported
LOOK = ImageSpec(16, 3)
# A worker that a certain picture kills, as a fault in a decoder would.
MORTAL = """
import os
from kedge.data import workers
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


def same(a: decode_worker.Answers, b: decode_worker.Answers) -> None:
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
    monkeypatch.setattr(decode_worker, "START", MORTAL)
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
    found = read_index(tmp_path)
    plainly = in_memory(found, LOOK)
    monkeypatch.setattr(parallel_decode, "WORTH_PROCESSES", 0)
    assert in_memory(found, LOOK).fingerprint == plainly.fingerprint


def test_workers_end_with_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the work is broken off."""
    ids: list[int] = []
    real = Worker._asked

    def noted(self: Worker, *args: object) -> decode_worker.Answers:
        answers = real(self, *args)  # type: ignore[arg-type]
        assert self._process is not None
        ids.append(self._process.pid)
        return answers

    monkeypatch.setattr(Worker, "_asked", noted)
    monkeypatch.setattr(parallel_decode, "WORTH_PROCESSES", 0)
    (tmp_path / "a").mkdir()
    for i in range(200):
        (tmp_path / "a" / f"{i}.png").write_bytes(png(0))
    pictures = read_index(tmp_path).pictures
    work = decoded(pictures, LOOK, range(n_chunks(pictures)))
    next(work)
    work.close()
    assert ids
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{i}").exists() for i in ids) and Path("/proc/self").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert os.getpid() not in ids


# ── what lies in the current folder, and what does not start ─────────────────────────────────

WORKERS_ONLY = """
import kedge.data.parallel_decode as d, kedge.data.decode_worker as w
d.WORTH_PROCESSES = 0
d.decode_each = w.decode_each = None  # nothing is decoded in the process itself
"""


def test_modules_in_the_folder_of_the_data_are_not_run(ready: Ready, tmp_path: Path) -> None:
    """As in `kedge data pack .`, within a data set that came from elsewhere."""
    data, canary = tmp_path / "data", tmp_path / "canary"
    for name in "ab":
        (data / name).mkdir(parents=True)
        for i in range(3):
            (data / name / f"{i}.png").write_bytes(png(i))
    (data / "PIL").mkdir()
    for module in ("pickle.py", "numpy.py", "signal.py", "PIL/__init__.py", "sitecustomize.py"):
        (data / module).write_text(f"open({str(canary)!r}, 'a').write(__file__)\nraise SystemExit")
    out = tmp_path / "out.images"
    ended = ready.kedge("data", "pack", ".", "--out", out, cwd=data, first=WORKERS_ONLY)
    assert ended.rc == 0, ended.err
    assert not canary.exists()
    assert len(ImageTable.load(out)) == 6


@pytest.mark.parametrize("broken", ["raise SystemExit", "print('not so')", "no interpreter"])
def test_where_no_worker_starts_this_process_decodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    (tmp_path / "a").mkdir()
    for i in range(70):
        (tmp_path / "a" / f"{i:02}.png").write_bytes(png(i) if i != 7 else b"?")
    found = read_index(tmp_path)
    plainly = in_memory(found, LOOK)
    if broken == "no interpreter":
        monkeypatch.setattr(sys, "executable", str(tmp_path / "gone"))
    else:
        monkeypatch.setattr(decode_worker, "START", broken)
    monkeypatch.setattr(parallel_decode, "WORTH_PROCESSES", 0)
    assert in_memory(found, LOOK).fingerprint == plainly.fingerprint


def test_worker_that_dies_before_it_reads_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was to be written to it is still waiting when its pipe is closed."""
    monkeypatch.setattr(decode_worker, "START", "import os; os.close(0); os.write(1, b'ready')")
    worker = Worker()
    assert worker([b"?", np.zeros((2000, 2000), np.uint8)], LOOK) == [CRASHED] * 2
    worker.close()


def test_what_does_not_start_is_not_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    real = subprocess.Popen

    def noted(*args: Any, **options: Any) -> Any:
        started.append(args)
        return real(*args, **options)

    monkeypatch.setattr(decode_worker, "START", "raise SystemExit")
    monkeypatch.setattr(subprocess, "Popen", noted)
    worker = Worker()
    for i in range(3):
        same(worker([png(i), b"?"], LOOK), decode_each([png(i), b"?"], LOOK))
    assert len(started) == 1


@pytest.mark.parametrize(("cores", "expected"), [(64, 8), (8, 8), (5, 5), (1, 2)])
def test_as_many_workers_as_cores_that_are_ours(
    monkeypatch: pytest.MonkeyPatch, cores: int, expected: int
) -> None:
    """A job that was given 5 of 64 cores shall not start 64 processes."""
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {*range(cores)}, raising=False)
    assert n_workers() == expected
    monkeypatch.delattr(os, "sched_getaffinity")  # as on macOS
    assert n_workers() == 8


# ── memory ───────────────────────────────────────────────────────────────────────────────────


class Sized(ImageSource):
    """Bytes in these numbers, or files where there is none; knows how many it has given out."""

    def __init__(self, sizes: Sequence[int | None]) -> None:
        self.sizes, self.given = sizes, 0

    def __len__(self) -> int:
        return len(self.sizes)

    def name(self, i: int) -> str:
        return str(i)

    def fetch(self, numbers: Sequence[int]) -> Iterator[Picture]:
        for i in numbers:
            size = self.sizes[i]
            self.given += size or 0
            yield Path(str(i)) if size is None else bytes(size)


def test_batches_end_where_pictures_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel_decode, "BATCH_BYTES", 100)
    sizes = [40] * 7 + [500, 500] + [None] * 150 + [1] * 3
    made = list(batches(Sized(sizes), range(len(sizes))))
    assert [i for batch in made for i in batch.numbers] == [*range(len(sizes))]
    assert [len(batch.numbers) for batch in made] == [3, 3, 2, 1, CHUNK, CHUNK, 25]
    assert [batch.n_bytes for batch in made] == [120, 120, 540, 500, 0, 0, 3]
    assert all(len(batch.pictures) == len(batch.numbers) for batch in made)
    arrays = ArrayImages([np.zeros((6, 8, 8), np.uint8)], ["x"])
    assert [batch.n_bytes for batch in batches(arrays, range(6))] == [128] * 3


def test_few_bytes_wait_however_slow_the_work_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel_decode, "BATCH_BYTES", 100)
    monkeypatch.setattr(parallel_decode, "WAITING_BYTES", 300)
    pictures = Sized([60] * 200)
    done = 0
    for n_bytes in in_parallel(lambda batch: batch.n_bytes, batches(pictures, range(200))):
        assert pictures.given - done <= 300 + 120
        done += n_bytes
    assert done == 200 * 60


def test_chunks_of_large_pictures_stay_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(90):
        (tmp_path / f"{i:02}.png").write_bytes(png(i) if i not in (7, 63, 89) else b"?")
    contents = [(tmp_path / f"{i:02}.png").read_bytes() for i in range(90)]

    class InMemory(Sized):
        def fetch(self, numbers: Sequence[int]) -> Iterator[Picture]:
            return (contents[i] for i in numbers)

    pictures = InMemory([0] * 90)
    whole = list(decoded(pictures, LOOK, range(2)))
    monkeypatch.setattr(parallel_decode, "BATCH_BYTES", 2000)
    in_bits = list(decoded(pictures, LOOK, range(2)))
    assert [len(part.numbers) for part in whole] == [62, 25]
    for a, b in zip(whole, in_bits, strict=True):
        np.testing.assert_array_equal(a.numbers, b.numbers)
        np.testing.assert_array_equal(a.pixels, b.pixels)
        assert a.unreadable == b.unreadable
