"""Decode workers give the same pixels as this process, whatever happens to one of them."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from kedge.data import decode_worker, parallel_decode
from kedge.data.decode import ImageSpec, RawImage
from kedge.data.decode_worker import CRASHED, DAMAGED, DecodeWorker, decode_each
from kedge.data.index import ArrayImages, ImageSource
from kedge.data.parallel_decode import (
    CHUNK,
    batches,
    decode_images,
    decode_to_table,
    map_batches,
    n_workers,
)
from kedge.data.readers import read_index
from kedge.data.table import ImageTable

Ready = Any  # of conftest.py, which cannot be imported
SPEC = ImageSpec(16, 3)
# A worker that one image kills, as a fault in a decoder would.
MORTAL = """
import os
from kedge.data import decode_worker
real = decode_worker.decode
def deadly(image, spec):
    if image == b"deadly":
        os.kill(os.getpid(), 9)
    return real(image, spec)
decode_worker.decode = deadly
decode_worker.serve()
"""


def png(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (20, 24, 3)).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


class Made(ImageSource):
    """These images; counts the bytes that were fetched."""

    def __init__(self, images: Sequence[RawImage]) -> None:
        self.images, self.given = images, 0

    def __len__(self) -> int:
        return len(self.images)

    def name(self, i: int) -> str:
        return str(i)

    def fetch(self, numbers: Sequence[int]) -> Iterator[RawImage]:
        for i in numbers:
            image = self.images[i]
            self.given += len(image) if isinstance(image, bytes) else 0
            yield image


def same(a: decode_worker.DecodeResults, b: decode_worker.DecodeResults) -> None:
    assert len(a) == len(b)
    for one, other in zip(a, b, strict=True):
        assert isinstance(one, str) == isinstance(other, str)
        np.testing.assert_array_equal(one, other)


def test_worker_gives_what_this_process_would(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(png(0))
    pixels = np.random.default_rng(1).integers(0, 256, (30, 20, 3)).astype(np.uint8)
    pictures = [tmp_path / "x.png", png(1), b"no image", pixels, tmp_path / "gone.png", b""]
    worker = DecodeWorker()
    for _ in range(2):
        same(worker(pictures, SPEC), decode_each(pictures, SPEC))
    assert worker([b"no image"], SPEC) == [DAMAGED]
    worker.close()


def test_only_the_image_that_crashes_a_worker_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_worker, "START", MORTAL)
    worker = DecodeWorker()
    answers = worker([png(0), b"deadly", png(1)], SPEC)
    worker.close()
    assert answers[1] == CRASHED
    same([answers[0], answers[2]], decode_each([png(0), png(1)], SPEC))


def test_whole_index_in_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for k in range(3):
        (tmp_path / f"class {k}").mkdir()
        for i in range(30):
            (tmp_path / f"class {k}" / f"{i}.png").write_bytes(png(30 * k + i) if i != 7 else b"?")
    found = read_index(tmp_path)
    plainly = decode_to_table(found, SPEC)
    monkeypatch.setattr(parallel_decode, "WORTH_PROCESSES", 0)
    assert decode_to_table(found, SPEC).fingerprint == plainly.fingerprint


def test_workers_end_with_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the work is stopped early."""
    started: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def record(*args: Any, **options: Any) -> Any:
        started.append(real(*args, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", record)
    monkeypatch.setattr(parallel_decode, "WORTH_PROCESSES", 0)
    images = Made([png(0)] * 200)
    work = decode_images(images, SPEC, range(200))
    next(work)
    work.close()
    assert started
    assert all(process.returncode is not None for process in started)


WORKERS_ONLY = """
import kedge.data.parallel_decode as d, kedge.data.decode_worker as w
d.WORTH_PROCESSES = 0
d.decode_each = w.decode_each = None  # nothing is decoded in the process itself
"""


@pytest.mark.slow
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


@pytest.mark.parametrize("broken", ["raise SystemExit", "no interpreter"])
def test_this_process_decodes_if_no_worker_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    (tmp_path / "a").mkdir()
    for i in range(70):
        (tmp_path / "a" / f"{i:02}.png").write_bytes(png(i) if i != 7 else b"?")
    found = read_index(tmp_path)
    plainly = decode_to_table(found, SPEC)
    if broken == "no interpreter":
        monkeypatch.setattr(sys, "executable", str(tmp_path / "gone"))
    else:
        monkeypatch.setattr(decode_worker, "START", broken)
    monkeypatch.setattr(parallel_decode, "WORTH_PROCESSES", 0)
    assert decode_to_table(found, SPEC).fingerprint == plainly.fingerprint


@pytest.mark.parametrize(("cores", "expected"), [(64, 8), (5, 5), (1, 2)])
def test_number_of_workers_follows_our_cores(
    monkeypatch: pytest.MonkeyPatch, cores: int, expected: int
) -> None:
    """A job that was given 5 of 64 cores shall not start 64 processes."""
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {*range(cores)}, raising=False)
    assert n_workers() == expected
    monkeypatch.delattr(os, "sched_getaffinity")  # as on macOS
    assert n_workers() == 8


def test_batches_of_large_images_are_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel_decode, "BATCH_BYTES", 100)
    images = [bytes(40)] * 7 + [bytes(500)] * 2 + [Path("x")] * 150 + [bytes(1)] * 3
    made = list(batches(Made(images), range(len(images))))
    assert [i for batch in made for i in batch.numbers] == [*range(len(images))]
    rest = len(images) - 2 * CHUNK
    assert [len(batch.numbers) for batch in made] == [3, 3, 2, 1, CHUNK - 9, CHUNK, rest]
    assert [batch.n_bytes for batch in made] == [120, 120, 540, 500, 0, 0, 3]
    arrays = ArrayImages([np.zeros((6, 8, 8), np.uint8)], ["x"])
    assert [batch.n_bytes for batch in batches(arrays, range(6))] == [128] * 3


def test_few_bytes_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel_decode, "BATCH_BYTES", 100)
    monkeypatch.setattr(parallel_decode, "WAITING_BYTES", 300)
    pictures = Made([bytes(60)] * 200)
    done = 0
    for n_bytes in map_batches(lambda batch: batch.n_bytes, batches(pictures, range(200))):
        assert pictures.given - done <= 300 + 120
        done += n_bytes
    assert done == 200 * 60


def test_large_images_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    images = Made([b"?" if i in (7, 63, 89) else png(0) for i in range(90)])
    expected = list(decode_images(images, SPEC, range(90)))
    monkeypatch.setattr(parallel_decode, "BATCH_BYTES", 2000)
    found = list(decode_images(images, SPEC, range(90)))
    assert [len(batch) for batch in expected] == [64, 26]
    assert [*np.cumsum([len(batch) for batch in found])] == [batch.last + 1 for batch in found]
    assert {63, 89} < {batch.last for batch in found}, "a chunk ends with a batch"
    for name in ("numbers", "pixels"):
        a, b = (np.concatenate([getattr(each, name) for each in x]) for x in (expected, found))
        np.testing.assert_array_equal(a, b)
    assert [i for batch in found for i in batch.unreadable] == [7, 63, 89]
