"""Packing gives the same pixels as decoding one by one, whatever interrupts it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open

from kedge.data import pack
from kedge.data.decode import ImageSpec
from kedge.data.decode_pool import decode_each
from kedge.data.pack import PackJob, pack_images
from kedge.data.parallel_decode import decode_to_table
from kedge.data.readers import read_index
from kedge.data.remarks import kind_of, problems
from kedge.data.table import ImageTable
from kedge.errors import KedgeError
from kedge.utils import atomic_io

Ready = Any  # of conftest.py, which cannot be imported
N_CLASSES, PER_CLASS = 7, 23  # neither fills a chunk
SPEC = ImageSpec(16, 3)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of noise in many sizes."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "photos"
    for k in range(N_CLASSES):
        (folder / f"class {k}").mkdir(parents=True)
        for i in range(PER_CLASS):
            pixels = rng.integers(0, 256, (*rng.integers(17, 40, 2), 3)).astype(np.uint8)
            suffix = ("png", "jpg")[i % 2]
            Image.fromarray(pixels).save(folder / f"class {k}" / f"{i:02}.{suffix}")
    return folder


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def packed(photos: Path, out: Path, spec: ImageSpec = SPEC) -> ImageTable:
    return pack_images(read_index(photos), spec, out)


def damage(photos: Path, k: int, i: int) -> None:
    next((photos / f"class {k}").glob(f"{i:02}.*")).write_bytes(b"not an image")


def metadata(path: Path) -> dict[str, Any]:
    with safe_open(path, "pt") as file:
        return dict(json.loads(file.metadata()["kedge"]))


def assert_decoded(table: ImageTable, folder: Path, spec: ImageSpec = SPEC) -> None:
    """The table has the pixels of each file, decoded one after the other."""
    pixels, names = [], []
    for file in sorted(folder.rglob("*.*")):
        if file.read_bytes() != b"not an image":
            pixels.append(decode_each([file], spec)[0].pixels)
            names.append(file.parent.name)
    np.testing.assert_array_equal(table.images.numpy(), np.stack(pixels))
    assert [table.classes[i] for i in table.labels.tolist()] == names


@pytest.mark.parametrize(
    "spec",
    [SPEC, ImageSpec(20, 1, "stretch", True), ImageSpec(20, 3, interpolation="bilinear")],
)
def test_file_memory_and_reference_agree(photos: Path, out: Path, spec: ImageSpec) -> None:
    table, in_memory = packed(photos, out, spec), decode_to_table(read_index(photos), spec)
    assert_decoded(table, photos, spec)
    assert_decoded(in_memory, photos, spec)
    assert table.fingerprint == in_memory.fingerprint == table.pixel_fingerprint()
    look = {"image_size": spec.image_size, "n_channels": spec.n_channels}
    look |= {"fit": spec.resize, "inverted": spec.inverted}
    if spec.interpolation != "bicubic":  # else files stay as those of earlier versions
        look["interpolation"] = spec.interpolation
    assert metadata(out)["look"] == look
    table.save(out)
    assert table.image_spec == in_memory.image_spec == ImageTable.load(out).image_spec == spec


@pytest.mark.parametrize("broken", [(5, 9, 22), range(PER_CLASS)])
def test_unreadable_images_are_left_out(photos: Path, out: Path, broken: list[int]) -> None:
    for k in (0, 3, N_CLASSES - 1):
        for i in broken:
            damage(photos, k, i)
    table = packed(photos, out)
    assert_decoded(table, photos)
    assert table.fingerprint == decode_to_table(read_index(photos), SPEC).fingerprint
    saved = metadata(out)
    assert f"{3 * len(broken)} of {N_CLASSES * PER_CLASS} images" in saved["remarks"][0]
    assert len(saved["unreadable"]) == min(3 * len(broken), pack.MOST_NAMED)


def test_nothing_is_written_if_no_image_can_be_read(tmp_path: Path, out: Path) -> None:
    (tmp_path / "data" / "a").mkdir(parents=True)
    (tmp_path / "data" / "a" / "x.png").write_bytes(b"not an image")
    with pytest.raises(KedgeError, match=r"x\.png"):
        packed(tmp_path / "data", out)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_images_of_a_class_come_together_with_their_parts(
    photos: Path, tmp_path: Path, out: Path
) -> None:
    expected: dict[tuple[str, str], list[np.ndarray]] = {}
    for number, file in enumerate(sorted(photos.rglob("*.*"))):
        part, name = ("train", "val", "test")[number % 3], file.parent.name
        target = tmp_path / "split" / part / name / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        file.rename(target)
        if number == 40:
            target.write_bytes(b"")
        else:
            expected.setdefault((name, part), []).append(decode_each([target], SPEC)[0].pixels)
    index = read_index(tmp_path / "split")
    for table in (pack_images(index, SPEC, out), decode_to_table(index, SPEC)):
        for (name, part), pixels in expected.items():
            rows = table.rows_of(name)
            images = table.images[rows[table.in_part(part)[rows]]]
            np.testing.assert_array_equal(images.numpy(), np.stack(pixels))


def test_packed_file_keeps_the_remarks(photos: Path, out: Path) -> None:
    shutil.copy(photos / "class 4" / "00.png", photos / "class 4" / "copy.png")
    damage(photos, 3, 5)
    table = packed(photos, out)
    copies, unreadable = table.remarks
    assert copies.startswith("1 image is an exact copy")
    assert "'class 4'" in copies
    assert [kind_of(remark) for remark in table.remarks] == ["leak", "lost"]
    assert table.remarks == decode_to_table(read_index(photos), SPEC).remarks
    table.save(out)
    assert problems(ImageTable.load(out).remarks) == [copies, unreadable]


def test_many_odd_names_fit_into_the_header(tmp_path: Path, out: Path) -> None:
    names = [f"{i} \"'\\ é 中 🙂 " + "x" * 100 for i in range(300)]
    for name in names:
        (tmp_path / "data" / name).mkdir(parents=True)
        Image.new("L", (16, 16)).save(tmp_path / "data" / name / "a.png")
    table = packed(tmp_path / "data", out)
    assert table.classes == tuple(sorted(names))
    assert torch.equal(table.labels, torch.arange(300))


def test_second_time_decodes_nothing(
    photos: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, written = packed(photos, out), out.stat().st_mtime_ns
    monkeypatch.setattr(pack, "decode_images", None)
    assert packed(photos, out).fingerprint == first.fingerprint
    assert out.stat().st_mtime_ns == written


@pytest.mark.parametrize("change", ["new image", "other size", "other file", "other decoder"])
def test_existing_file_is_not_overwritten(
    photos: Path, out: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed(photos, out)
    if change == "new image":
        shutil.copy(photos / "class 0" / "00.png", photos / "class 1" / "new.png")
    elif change == "other file":
        out.write_text("a letter")
    elif change == "other decoder":
        monkeypatch.setattr(pack, "DECODER_VERSION", pack.DECODER_VERSION + 1)
    before = out.read_bytes()
    with pytest.raises(KedgeError, match="already exists"):
        packed(photos, out, ImageSpec(20, 3) if change == "other size" else SPEC)
    assert out.read_bytes() == before


def test_stopped_packing_continues(
    photos: Path, tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, done = packed(photos, tmp_path / "expected"), []
    real = pack.decode_images

    def stop_after_one(images: Any, spec: ImageSpec, numbers: Any) -> Any:
        batch = next(real(images, spec, numbers))
        done.extend(range(batch.last + 1))
        yield batch
        raise KeyboardInterrupt

    def record(images: Any, spec: ImageSpec, numbers: Any) -> Any:
        done.extend(numbers)
        return real(images, spec, numbers)

    monkeypatch.setattr(pack, "decode_images", stop_after_one)
    with pytest.raises(KeyboardInterrupt):  # of other data, so it is not continued
        packed(photos, out, ImageSpec(20, 3))
    done.clear()
    with pytest.raises(KeyboardInterrupt):
        packed(photos, out)
    assert not out.exists()
    monkeypatch.setattr(pack, "decode_images", record)
    assert packed(photos, out).fingerprint == expected.fingerprint
    assert done == list(range(N_CLASSES * PER_CLASS)), "each image once"
    assert out.read_bytes() == (tmp_path / "expected").read_bytes()
    assert not (tmp_path / "out.packing").exists()


def test_too_little_space_is_reported_first(
    photos: Path, tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(KedgeError, match="GB are needed"):
        packed(photos, out)
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]


@pytest.mark.parametrize("name", ["precious.txt", "images/1.png", ""])
def test_foreign_files_are_not_touched(photos: Path, tmp_path: Path, out: Path, name: str) -> None:
    mine = tmp_path / "out.packing" / name
    mine.parent.mkdir(parents=True, exist_ok=True)
    mine.write_text("mine")
    with pytest.raises(KedgeError, match=r"out\.packing"):
        packed(photos, out)
    assert mine.read_text() == "mine"


def test_leftovers_are_removed_but_not_files_of_others(
    photos: Path, tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(pack, "_discard", lambda folder: None)  # killed just before
        packed(photos, out)
    (tmp_path / "out.packing" / ".DS_Store").write_text("mine")
    (tmp_path / ".out.lock").touch()
    packed(photos, out)
    assert not (tmp_path / ".out.lock").exists()
    assert [path.name for path in (tmp_path / "out.packing").iterdir()] == [".DS_Store"]


def test_file_of_a_faster_process_is_used(
    photos: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = atomic_io.file_lock

    @contextmanager
    def late(*args: Any) -> Iterator[None]:
        monkeypatch.setattr(atomic_io, "file_lock", real)
        packed(photos, out)
        with real(*args):
            yield

    monkeypatch.setattr(atomic_io, "file_lock", late)
    assert_decoded(packed(photos, out), photos)
    assert metadata(out)["key"] == PackJob(read_index(photos), SPEC).key


ONE_BY_ONE = """
import time, kedge.data.parallel_decode as d, kedge.data.pack as p
p.CHUNK = d.CHUNK = 1
p.JOURNAL_SECONDS = 0.0
"""
SLOWLY = """
fast = d.decode_each
def slow(*args):
    time.sleep(0.05)
    return fast(*args)
d.decode_each = slow
"""


@pytest.mark.parametrize("what", ["out.packing", "images"])
def test_packing_writes_through_no_link(photos: Path, tmp_path: Path, what: str) -> None:
    """Another user of the folder has prepared a packing that seems to be a stopped one of ours."""
    job, victim = PackJob(read_index(photos), SPEC), tmp_path / "victim"
    (victim / "images").parent.mkdir()
    (victim / "images").write_bytes(b"theirs")
    journal = pack._Journal(victim / "journal.json", job.key)
    with open(tmp_path / "any", "wb") as file:
        journal.save(file)
    folder = tmp_path / "out.packing"
    if what == "out.packing":
        folder.symlink_to(victim)
    else:
        folder.mkdir()
        (folder / "journal.json").write_bytes((victim / "journal.json").read_bytes())
        (folder / "images").symlink_to(victim / "images")
    with pytest.raises(KedgeError, match="out"):
        packed(photos, tmp_path / "out")
    assert (victim / "images").read_bytes() == b"theirs"
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_killed_packing_continues(ready: Ready, photos: Path, tmp_path: Path) -> None:
    for i in (3, 7):
        damage(photos, 1, i)
    out = tmp_path / "out.images"
    words = ["kedge", "data", "pack", str(photos), "--out", str(out), "--image-size", "16"]
    code = f"{ONE_BY_ONE}{SLOWLY}import sys, kedge.cli; sys.argv = {words!r}; kedge.cli.main()"
    process = ready.start(code)
    deadline = time.monotonic() + 60
    while not (tmp_path / "out.images.packing" / "journal.json").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.6)
    os.kill(process, signal.SIGKILL)
    ready.wait()
    assert not out.exists()
    ended = ready.kedge(*words[1:], first=ONE_BY_ONE)
    assert ended.rc == 0, ended.err
    assert_decoded(ImageTable.load(out), photos)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.images", "photos"]
