"""Packing: the same pixels as decoding one after the other, whatever happens on the way."""

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
from kedge.data.decode import ImageSpec, decode
from kedge.data.pack import pack
from kedge.data.parallel_decode import (
    CHUNK,
    in_memory,
    suited,
)
from kedge.data.readers import read_index
from kedge.data.table import ImageTable
from kedge.errors import KedgeError

Kedge = Ready = Any  # of conftest.py, which cannot be imported
N_CLASSES, N_EACH = 7, 23  # neither fills a chunk
LOOK = ImageSpec(16, 3)


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    """Noise of many sizes, a file for each."""
    numbers = np.random.default_rng(0)
    folder = tmp_path / "photographs"
    for k in range(N_CLASSES):
        (folder / f"class {k}").mkdir(parents=True)
        for i in range(N_EACH):
            shape = (*numbers.integers(17, 40, 2), 3)
            image = Image.fromarray(numbers.integers(0, 256, shape).astype(np.uint8))
            image.save(folder / f"class {k}" / f"{i:02}.{('png', 'jpg')[i % 2]}")
    return folder


def slowly(folder: Path, look: ImageSpec) -> tuple[np.ndarray, list[str]]:
    """The obvious way: one file after the other, in the order of their names."""
    pixels, names = [], []
    for file in sorted(folder.rglob("*.*")):
        try:
            pixels.append(decode(file, look))
            names.append(file.parent.name)
        except Exception:
            continue
    return np.stack(pixels), names


def as_slow(table: ImageTable, folder: Path, look: ImageSpec) -> None:
    pixels, names = slowly(folder, look)
    np.testing.assert_array_equal(table.images.numpy(), pixels)
    assert [table.classes[i] for i in table.labels.tolist()] == names


@pytest.mark.parametrize(
    "look", [LOOK, ImageSpec(20, 1), ImageSpec(16, 3, "stretch"), ImageSpec(16, 1, "crop", True)]
)
def test_store_memory_and_the_obvious_way_agree(
    photographs: Path, tmp_path: Path, look: ImageSpec
) -> None:
    found = read_index(photographs)
    packed, decoded = pack(found, look, tmp_path / "out"), in_memory(found, look)
    as_slow(packed, photographs, look)
    as_slow(decoded, photographs, look)
    assert packed.fingerprint == decoded.fingerprint  # the file's own sum, and one of the pixels


@pytest.mark.parametrize("broken", [(0,), (22,), (0, 1, 2), (5, 9, 22)])
def test_gaps_of_unreadable_images_are_closed(
    photographs: Path, tmp_path: Path, broken: tuple[int, ...]
) -> None:
    for k in (0, 3, N_CLASSES - 1):
        for i in broken:
            next((photographs / f"class {k}").glob(f"{i:02}.*")).write_bytes(b"not an image")
    packed = pack(read_index(photographs), LOOK, tmp_path / "out")
    as_slow(packed, photographs, LOOK)
    assert len(packed) == N_CLASSES * N_EACH - 3 * len(broken)
    with safe_open(tmp_path / "out", "pt") as file:
        about = json.loads(file.metadata()["kedge"])
    assert f"{3 * len(broken)} of {N_CLASSES * N_EACH} images could not be read" in str(about)
    assert len(about["unreadable"]) == 3 * len(broken)
    assert packed.fingerprint == in_memory(read_index(photographs), LOOK).fingerprint


def test_what_was_stopped_after_all_was_done_leaves_nothing(
    photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = pack._discard
    monkeypatch.setattr(pack, "_discard", lambda folder: None)  # killed just before
    pack(read_index(photographs), LOOK, tmp_path / "out")
    assert (tmp_path / "out.packing").is_dir()
    monkeypatch.setattr(pack, "_discard", real)
    pack(read_index(photographs), LOOK, tmp_path / "out")
    assert not (tmp_path / "out.packing").exists()


def test_data_whose_name_is_no_text_can_be_packed(photographs: Path, tmp_path: Path) -> None:
    try:
        odd = photographs.rename(os.fsdecode(os.fsencode(tmp_path) + b"/odd\xff"))
    except OSError:
        pytest.skip("this file system takes no such name")
    packed = pack(read_index(odd), LOOK, tmp_path / "out")
    assert pack(read_index(odd), LOOK, tmp_path / "out").fingerprint == packed.fingerprint
    packed.save(tmp_path / "again")
    assert ImageTable.load(tmp_path / "again").fingerprint == packed.fingerprint


def test_class_that_is_all_broken_is_left_out(photographs: Path, tmp_path: Path) -> None:
    for file in (photographs / "class 2").iterdir():
        file.write_bytes(b"")
    packed = pack(read_index(photographs), LOOK, tmp_path / "out")
    assert packed.classes == tuple(f"class {k}" for k in range(N_CLASSES) if k != 2)
    as_slow(packed, photographs, LOOK)


def test_nothing_to_pack_leaves_nothing(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / "data" / name).mkdir(parents=True)
        (tmp_path / "data" / name / "x.png").write_bytes(b"no image")
    with pytest.raises(KedgeError, match="nor can any other"):
        pack(read_index(tmp_path / "data"), LOOK, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_parts_of_the_split_go_with_the_images(photographs: Path, tmp_path: Path) -> None:
    for part, classes in {"train": range(3), "val": range(3, 5), "test": range(5, 7)}.items():
        for k in classes:
            (tmp_path / "split" / part).mkdir(parents=True, exist_ok=True)
            (photographs / f"class {k}").rename(tmp_path / "split" / part / f"class {k}")
    packed = pack(read_index(tmp_path / "split"), LOOK, tmp_path / "out")
    assert packed.parts == ("train", "val", "test")
    for part, classes in {"train": range(3), "val": range(3, 5), "test": range(5, 7)}.items():
        there = packed.labels[packed.in_part(part)].unique().tolist()
        assert there == list(classes)
        assert int(packed.in_part(part).sum()) == N_EACH * len(classes)


def test_images_of_a_class_that_lie_apart_come_together(photographs: Path, tmp_path: Path) -> None:
    """Each in its row, with its own part of the split; one that is broken moves all behind it."""
    expected: dict[tuple[str, str], list[np.ndarray]] = {}
    for number, file in enumerate(sorted(photographs.rglob("*.*"))):
        part, name = ("train", "val", "test")[number % 3], file.parent.name
        into = tmp_path / "split" / part / name
        into.mkdir(parents=True, exist_ok=True)
        file.rename(into / file.name)
        if number == 40:
            (into / file.name).write_bytes(b"")
        else:
            expected.setdefault((name, part), []).append(decode(into / file.name, LOOK))
    found = read_index(tmp_path / "split")
    for table in (pack(found, LOOK, tmp_path / "out"), in_memory(found, LOOK)):
        for (name, part), pixels in expected.items():
            rows = table.rows_of(name)
            there = table.images[rows[table.in_part(part)[rows]]]
            np.testing.assert_array_equal(there.numpy(), np.stack(pixels))


def test_exact_copies_within_a_class_are_told(photographs: Path, tmp_path: Path) -> None:
    ours = photographs / "class 4"
    shutil.copy(ours / "00.png", ours / "copy.png")
    shutil.copy(ours / "00.png", photographs / "class 5" / "other class.png")  # no harm there
    pack(read_index(photographs), LOOK, tmp_path / "out")
    with safe_open(tmp_path / "out", "pt") as file:
        remarks = json.loads(file.metadata()["kedge"])["remarks"]
    assert len(remarks) == 1
    assert remarks[0].startswith("1 image is an exact copy of another of the same class (in")
    assert "'class 4'" in remarks[0]


# ── again, other, interrupted ────────────────────────────────────────────────────────────────


def test_second_time_decodes_nothing(
    photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = pack(read_index(photographs), LOOK, tmp_path / "out")
    written = (tmp_path / "out").stat().st_mtime_ns
    monkeypatch.setattr(pack, "decoded", None)
    again = pack(read_index(photographs), LOOK, tmp_path / "out")
    assert again.fingerprint == first.fingerprint
    assert (tmp_path / "out").stat().st_mtime_ns == written


@pytest.mark.parametrize(
    "change", ["a new image", "an image written again", "another size", "not a store"]
)
def test_what_is_there_is_never_overwritten(photographs: Path, tmp_path: Path, change: str) -> None:
    out, look = tmp_path / "out", LOOK
    pack(read_index(photographs), look, out)
    if change == "a new image":
        shutil.copy(photographs / "class 0" / "00.png", photographs / "class 1" / "new.png")
    elif change == "an image written again":
        Image.new("RGB", (20, 20)).save(photographs / "class 0" / "00.png")
    elif change == "another size":
        look = ImageSpec(20, 3)
    else:
        out.write_text("a letter")
    before = out.read_bytes()
    with pytest.raises(KedgeError, match="already exists"):
        pack(read_index(photographs), look, out)
    assert out.read_bytes() == before


def test_originals_are_not_touched(photographs: Path, tmp_path: Path) -> None:
    def all_of_it() -> dict[str, tuple[int, bytes]]:
        files = sorted(photographs.rglob("*"))
        return {str(f): (f.stat().st_mtime_ns, f.read_bytes()) for f in files if f.is_file()}

    before = all_of_it()
    pack(read_index(photographs), LOOK, tmp_path / "out")
    assert all_of_it() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "photographs"]


def test_stopped_packing_goes_on_where_it_was(
    photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = pack(read_index(photographs), LOOK, tmp_path / "whole")
    asked: list[int] = []
    real = pack.decoded

    def stopped(pictures: Any, look: ImageSpec, chunks: Any) -> Any:
        for chunk, some in zip(chunks, real(pictures, look, chunks), strict=True):
            if len(asked) == 1:
                raise KeyboardInterrupt
            asked.append(chunk)
            yield some

    monkeypatch.setattr(pack, "decoded", stopped)
    with pytest.raises(KeyboardInterrupt):
        pack(read_index(photographs), LOOK, tmp_path / "out")
    assert not (tmp_path / "out").exists()

    def noted(pictures: Any, look: ImageSpec, chunks: Any) -> Any:
        asked.extend(chunks)
        return real(pictures, look, chunks)

    monkeypatch.setattr(pack, "decoded", noted)
    goes_on = pack(read_index(photographs), LOOK, tmp_path / "out")
    assert asked == list(range(-(-N_CLASSES * N_EACH // CHUNK)))  # each once
    assert goes_on.fingerprint == whole.fingerprint
    assert (tmp_path / "out").read_bytes() == (tmp_path / "whole").read_bytes()
    assert not (tmp_path / "out.packing").exists()


def test_other_data_do_not_go_on_from_it(
    photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(pictures: Any, look: ImageSpec, chunks: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(pack, "decoded", stopped)
        with pytest.raises(KeyboardInterrupt):
            pack(read_index(photographs), LOOK, tmp_path / "out")
    (photographs / "class 0" / "00.png").unlink()
    as_slow(pack(read_index(photographs), LOOK, tmp_path / "out"), photographs, LOOK)


BIT_BY_BIT = """
import time, kedge.data.parallel_decode as d, kedge.data.pack as s
s.CHUNK = d.CHUNK = 1
s.NOTE_EVERY = 0.0
"""
SLOW = """
fast = d.decode_each
def slow(*args):
    time.sleep(0.05)
    return fast(*args)
d.decode_each = slow
"""


@pytest.mark.parametrize("after", [0.2, 0.6, 1.0])
def test_killed_packing_goes_on(
    ready: Ready, photographs: Path, tmp_path: Path, after: float
) -> None:
    """A real process, killed in the middle, and another after it."""
    for i in (3, 7):  # gaps, so that the last step is there too
        next((photographs / "class 1").glob(f"{i:02}.*")).write_bytes(b"no image")
    out = tmp_path / "out.images"
    words = ["kedge", "data", "pack", str(photographs), "--out", str(out), "--image-size", "16"]
    code = f"{BIT_BY_BIT}{SLOW}import sys, kedge.cli; sys.argv = {words!r}; kedge.cli.main()"
    process = ready.start(code)
    deadline = time.monotonic() + 60
    while not (tmp_path / "out.images.packing" / "journal.json").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(after)
    os.kill(process, signal.SIGKILL)
    ready.wait()
    assert not out.exists()
    ended = ready.kedge(*words[1:], first=BIT_BY_BIT)
    assert ended.rc == 0, ended.err
    table = ImageTable.load(out)
    as_slow(table, photographs, LOOK)
    assert table.fingerprint == in_memory(read_index(photographs), LOOK).fingerprint
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.images", "photographs"]


def test_too_little_room_is_said_before_it_begins(
    photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(KedgeError, match=r"0\.0 GB are needed .* make room"):
        pack(read_index(photographs), LOOK, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["photographs"]


def test_read_only_place_is_a_sentence(photographs: Path, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        (tmp_path / "place").write_text("no folder")
    else:
        (tmp_path / "place").mkdir(mode=0o500)
    with pytest.raises(KedgeError, match="place"):
        pack(read_index(photographs), LOOK, tmp_path / "place" / "out")


def test_many_odd_class_names_fit_into_the_header(tmp_path: Path) -> None:
    names = [f"{i} \"'\\ é 中 🙂 " + "x" * 100 for i in range(300)]
    for name in names:
        (tmp_path / "data" / name).mkdir(parents=True)
        Image.new("L", (16, 16)).save(tmp_path / "data" / name / "a.png")
    found = read_index(tmp_path / "data")
    packed = pack(found, suited(found), tmp_path / "out")
    assert packed.classes == tuple(sorted(names))
    assert torch.equal(packed.labels, torch.arange(300))


# ── what a user has there, and who was faster ────────────────────────────────────────────────


def test_other_decoder_is_another_packing(
    photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packing = pack.Packing(read_index(photographs), LOOK)
    before = packing.key
    assert pack.Packing(read_index(photographs), LOOK).key == before
    pack(packing.catalogue, LOOK, tmp_path / "out")
    monkeypatch.setattr(pack, "DECODER", pack.DECODER + 1)
    assert packing.key != before
    with pytest.raises(KedgeError, match="already exists"):
        pack(packing.catalogue, LOOK, tmp_path / "out")


@pytest.mark.parametrize("name", ["precious.txt", "images/1.png", "journal.json/x", ".hidden", ""])
def test_files_of_others_where_packing_grows_are_left_alone(
    photographs: Path, tmp_path: Path, name: str
) -> None:
    """The folder beside OUT may be somebody's, or even be no folder."""
    mine = tmp_path / "out.packing" / name
    mine.parent.mkdir(parents=True, exist_ok=True)
    mine.write_text("mine")
    with pytest.raises(KedgeError, match=r"not of kedge's making.*choose another --out\.$") as said:
        pack(read_index(photographs), LOOK, tmp_path / "out")
    assert str(tmp_path / "out.packing") in str(said.value)
    assert mine.read_text() == "mine"
    left = [path.name for path in tmp_path.iterdir()]
    assert sorted(left) == ["out.packing", "photographs"]


def test_a_file_that_comes_while_it_packs_stays(
    photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = pack._complete

    def with_company(*args: Any) -> None:
        (tmp_path / "out.packing" / ".DS_Store").write_text("mine")
        real(*args)

    monkeypatch.setattr(pack, "_complete", with_company)
    as_slow(pack(read_index(photographs), LOOK, tmp_path / "out"), photographs, LOOK)
    assert [path.name for path in (tmp_path / "out.packing").iterdir()] == [".DS_Store"]


@pytest.mark.parametrize("same", [True, False])
def test_who_waited_for_the_lock_looks_again(
    photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same: bool
) -> None:
    """Another packing to the same place ends between our first look and our turn."""
    theirs, ours, out = read_index(photographs), read_index(photographs), tmp_path / "out"
    if not same:
        ours = ours.only({"class 1", "class 2"})
    real, written = pack.locked, []

    @contextmanager
    def late(*args: Any) -> Iterator[None]:
        monkeypatch.setattr(pack, "locked", real)
        pack(theirs, LOOK, out)
        written.append((out.stat().st_mtime_ns, out.read_bytes()))
        with real(*args):
            yield

    monkeypatch.setattr(pack, "locked", late)
    if same:
        as_slow(pack(ours, LOOK, out), photographs, LOOK)
    else:
        with pytest.raises(KedgeError, match="already exists, of other images"):
            pack(ours, LOOK, out)
    assert written == [(out.stat().st_mtime_ns, out.read_bytes())]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "photographs"]


TWO_AT_ONCE = """
import os, time
from pathlib import Path
import kedge.data.parallel_decode as d, kedge.data.open as s
place = Path({place!r})
os.environ["KEDGE_CACHE"] = str(place / "cache")
s.WORTH_KEEPING = 0
real = d.decode_each
def noted(pictures, look):
    with open(place / f"decoded by {{number}}", "a") as file:
        file.write("x" * len(pictures))
    time.sleep(0.2)
    return real(pictures, look)
d.decode_each = noted
children = []
for number in range(2):
    if (child := os.fork()) == 0:
        try:
            while number and not (place / "decoded by 0").exists():
                time.sleep(0.001)
            table = s.open_images({data!r}, 16, 3, keep=True)
            (place / f"table {{number}}").write_text(table.fingerprint)
        finally:
            os._exit(0)
    children.append(child)
for child in children:
    os.waitpid(child, 0)
"""


def test_second_process_waits_for_what_the_first_keeps(
    ready: Ready, photographs: Path, tmp_path: Path
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    ended = ready(TWO_AT_ONCE.format(place=str(place), data=str(photographs)))
    assert ended.rc == 0, ended.err
    expected = in_memory(read_index(photographs), LOOK).fingerprint
    assert [(place / f"table {i}").read_text() for i in range(2)] == [expected] * 2
    assert len((place / "decoded by 0").read_text()) == N_CLASSES * N_EACH  # each once,
    assert not (place / "decoded by 1").exists()  # and by one of them
    (kept,) = (place / "cache").iterdir()
    as_slow(ImageTable.load(kept), photographs, LOOK)
