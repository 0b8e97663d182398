"""Images are decoded in worker processes, and what happens to a worker costs one image."""

from __future__ import annotations

import errno
import io
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.data.hostile import jpeg_of_scans

from kedge.data import decode_pool, limited_process, parallel_decode, process_pool
from kedge.data.damage import failed_download
from kedge.data.decode import ImageHeader, ImageSpec, RawImage
from kedge.data.decode_pool import DAMAGED, decode_each, n_workers, read_headers
from kedge.data.index import ArrayImages, ImageSource
from kedge.data.parallel_decode import CHUNK, batches, decode_images, decode_to_table, map_batches
from kedge.data.readers import read_index
from kedge.data.table import ImageTable
from kedge.errors import KedgeError

Ready = Any  # of conftest.py, which cannot be imported
SPEC = ImageSpec(16, 3)
pytestmark = pytest.mark.usefixtures("own_workers")


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


def test_an_image_may_be_given_less_processor_time() -> None:
    """This one takes a third of a second."""
    content, results = jpeg_of_scans(30), list[decode_pool.Decoded]()
    for seconds, stopped in ((0.02, "take too long"), (math.inf, "")):
        worker = decode_pool.DecodeWorker()
        worker.wait_until_ready()
        limits = {"most_processor_seconds": seconds}
        assert worker.decode([content], SPEC, decode_pool.MEMORY, results, **limits) == stopped
        worker.close()
    assert [each.pixels is None for each in results] == [False]


def damaged_among_good() -> list[RawImage]:
    return [png(0), b"no image", png(1), b"", np.zeros((9, 9, 3), np.uint8), png(2)]


def faulty(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers meet a fault at the image b"deadly", as one in a decoder would be."""
    code = f"""
import os, time
from kedge.data import decode_worker
real = decode_worker.open_image
def deadly(image):
    if image == b"deadly":
        {fault}
    return real(image)
decode_worker.open_image = deadly
decode_worker.serve()
"""
    monkeypatch.setattr(limited_process, "START", f"import sys; sys.path += sys.argv[2:]\n{code}")


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("os.kill(os.getpid(), 11)", "crash"),
        ("while True: pass", "take too long"),
        ("time.sleep(600)", "hang"),
        ("[bytearray(1 << 26) for _ in range(64)]", DAMAGED),
        ("os.write(0, b'\\xff' * 1000)", "crash"),
    ],
)
def test_a_fault_costs_one_image(monkeypatch: pytest.MonkeyPatch, fault: str, reason: str) -> None:
    faulty(fault, monkeypatch)
    if reason == "hang":
        monkeypatch.setattr(decode_pool, "WALL_SECONDS", 1.0)
        monkeypatch.setattr(decode_pool, "seconds_for", lambda n_bytes: 0.0)
    good = decode_each([png(0), png(1)], SPEC)
    first, bad, last = decode_each([png(0), b"deadly", png(1)], SPEC)
    assert bad.pixels is None
    assert reason in bad.reason
    np.testing.assert_array_equal(first.pixels, good[0].pixels)
    np.testing.assert_array_equal(last.pixels, good[1].pixels)


def test_attempts_that_fail_do_not_make_up_for_slow_images() -> None:
    """An image that needs much memory is tried twice; the first attempt is short."""
    charged: list[tuple[int, float]] = []
    damaged = png(0)[:-40]
    decode_each([damaged, png(1)], SPEC, lambda i, overtime: charged.append((i, overtime)))
    assert [i for i, _ in charged] == [0, 1, 0]
    assert all((overtime >= 0) == (i == 0) for i, overtime in charged)


def test_damaged_images_are_left_out(tmp_path: Path) -> None:
    decoded = decode_each([*damaged_among_good(), tmp_path / "gone.png"], SPEC)
    reasons = ["", DAMAGED, "", failed_download(b""), "", "", "no such file"]
    assert [each.reason for each in decoded] == reasons
    assert [each.pixels is None for each in decoded] == [bool(each.reason) for each in decoded]
    assert decoded[0].header == ImageHeader(24, 20, "RGB", False)


def test_headers_that_are_longer_than_what_is_read_first(tmp_path: Path) -> None:
    long = tmp_path / "long.jpg"
    comment = b"\xff\xfe\xff\xff" + bytes(65_533)
    file = io.BytesIO()
    Image.new("RGB", (30, 20)).save(file, "JPEG")
    long.write_bytes(file.getvalue()[:2] + 2 * comment + file.getvalue()[2:])
    expected = [ImageHeader(30, 20, "RGB", False), None, ImageHeader(24, 20, "RGB", False)]
    assert read_headers([long, b"?", png(0)]) == expected


def test_workers_are_kept_for_the_next_images(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    real = limited_process.LimitedProcess.__init__

    def record(self: Any, *args: Any) -> None:
        started.append(args)
        real(self, *args)

    monkeypatch.setattr(limited_process.LimitedProcess, "__init__", record)
    for _ in range(3):
        assert decode_each([png(0)], SPEC)[0].pixels is not None
        decode_each([np.zeros((9, 9), np.uint8)], SPEC)
    assert len(started) == 1


def test_a_worker_that_was_idle_for_long_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would end by itself at any time, which must not cost an image."""
    assert decode_each([png(0)], SPEC)[0].pixels is not None
    [first] = decode_pool._POOL._idle
    monkeypatch.setattr(process_pool, "REUSE_SECONDS", -1.0)
    assert decode_each([png(0)], SPEC)[0].pixels is not None
    [second] = decode_pool._POOL._idle
    assert first.closed
    assert not second.closed


def test_an_idle_worker_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    idle = "import_module('kedge.data.limited_process').IDLE_SECONDS = 0.1; import_module(sys"
    start = limited_process.START.replace("import_module(sys", idle)
    monkeypatch.setattr(limited_process, "START", start)
    decode_pool.start_worker()
    [worker] = decode_pool._POOL._idle
    assert worker._process.wait(60) == 0


def test_a_forked_process_has_its_own_workers(ready: Ready) -> None:
    code = """
import io, os
from PIL import Image
from kedge.data.decode import ImageSpec
from kedge.data.decode_pool import decode_each
file = io.BytesIO()
Image.new("RGB", (20, 20), "red").save(file, "PNG")
def decode():
    return [each.pixels.sum() for each in decode_each([file.getvalue()] * 40, ImageSpec(16, 3))]
expected = decode()
child = os.fork()
assert all(decode() == expected for _ in range(20))
if child:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    assert ready(code).rc == 0


def test_whole_index(tmp_path: Path) -> None:
    for k in range(3):
        (tmp_path / f"class {k}").mkdir()
        for i in range(30):
            (tmp_path / f"class {k}" / f"{i}.png").write_bytes(png(30 * k + i) if i != 7 else b"?")
    table = decode_to_table(read_index(tmp_path), SPEC)
    assert table.counts.tolist() == [29, 29, 29]


@pytest.mark.parametrize("error", [errno.EIO, errno.ESTALE, errno.EMFILE])
def test_a_failing_disk_is_no_damaged_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """The image would be left out for good."""

    def fail(path: Path) -> Any:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(decode_pool, "open_regular", fail)
    with pytest.raises(KedgeError, match=r"x\.png.*" + os.strerror(error)):
        decode_each([tmp_path / "x.png"], SPEC)


@pytest.mark.slow
def test_modules_in_the_folder_of_the_data_are_not_run(ready: Ready, tmp_path: Path) -> None:
    """As in `kedge data pack .`, within a data set that came from elsewhere."""
    data, canary = tmp_path / "data", tmp_path / "canary"
    for name in "ab":
        (data / name).mkdir(parents=True)
        for i in range(3):
            (data / name / f"{i}.png").write_bytes(png(i))
    (data / "PIL").mkdir()
    for module in ("struct.py", "kedge.py", "signal.py", "PIL/__init__.py", "sitecustomize.py"):
        (data / module).write_text(f"open({str(canary)!r}, 'a').write(__file__)\nraise SystemExit")
    out = tmp_path / "out.images"
    ended = ready.kedge("data", "pack", ".", "--out", out, cwd=data)
    assert ended.rc == 0, ended.err
    assert not canary.exists()
    assert len(ImageTable.load(out)) == 6


@pytest.mark.parametrize("broken", ["raise SystemExit", "no interpreter", "no process"])
def test_nothing_is_decoded_unprotected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def refuse(*args: Any, **options: Any) -> Any:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    if broken == "no interpreter":
        monkeypatch.setattr(sys, "executable", str(tmp_path / "gone"))
    elif broken == "no process":
        monkeypatch.setattr(subprocess, "Popen", refuse)
    else:
        monkeypatch.setattr(limited_process, "START", broken)
    with pytest.raises(KedgeError, match=r"child process.*none could be started"):
        decode_each([png(0)], SPEC)
    arrays = decode_each([np.zeros((16, 16, 3), np.uint8)], SPEC)
    assert arrays[0].pixels is not None


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


def test_few_bytes_of_files_are_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    real = decode_pool._decode_encoded

    def record(contents: Sequence[bytes], *rest: Any) -> Any:
        sent.append(len(contents))
        return real(contents, *rest)

    monkeypatch.setattr(decode_pool, "_decode_encoded", record)
    monkeypatch.setattr(decode_pool, "REQUEST_BYTES", 3 * len(png(0)))
    for i in range(10):
        (tmp_path / f"{i}.png").write_bytes(png(0))
    images = [tmp_path / f"{i}.png" for i in range(10)]
    assert all(each.pixels is not None for each in decode_each(images, SPEC))
    assert sent == [4, 4, 2]
