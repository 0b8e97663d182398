"""Each hostile file is read with a remark or refused in a sentence, within limits on memory and
time that hold for all processes of the command together."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.data.hostile import GENERATORS, folder_with, png, tar_header

from kedge.data.decode import ImageSpec
from kedge.data.decode_pool import decode_each
from kedge.data.files import open_tree
from kedge.data.files.file_tree import FolderTree
from kedge.data.open import open_images
from kedge.data.parallel_decode import lost_classes
from kedge.data.readers import read_index
from kedge.errors import KedgeError, KedgeWarning

SECONDS = 5.0  # of processor time, beyond what the interpreter takes to load kedge
SLACK = 3  # times the limit: machines differ, and what was mended took ten times as long or more
MEMORY = 1 << 30  # bytes of all processes together, beyond those of the loaded interpreter
# What must be said of the file; the others are refused with a sentence that names the file.
SAID = {
    "png_of_tall_rows": "small",  # it can be decoded within the limits
    "png_of_wide_rows": "cannot be read",
    "png_of_zeros": "several modes",
    "bmp_of_short_rows": "px are too many",
    "jpeg_progressive_cmyk": "px are too many",
    "jpeg_of_empty_scans": "take too long",
    "tiff_of_one_strip": "cannot be read",
    "gif_of_a_large_screen": "",
    "zip_bzip2": "cannot be read",
    "zip_lzma": "cannot be read",
    "maze": "links in a circle",
    "npz_interleaved": "",
    "csv_of_missing_folders": "listed, but missing",
}
pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
# A process that has loaded kedge and runs one command after the other, told by lines of JSON.
COMMANDS = """
import json, sys
import torch, kedge.cli, kedge.data.inspect, kedge.data.pack
print("ready", flush=True)
for line in sys.stdin:
    sys.argv = ["kedge", *json.loads(line)]
    rc = 0
    try:
        kedge.cli.main()
    except SystemExit as end:
        rc = end.code
    print(json.dumps(rc), flush=True)
"""


@dataclass(frozen=True)
class Cost:
    rc: int
    said: str
    seconds: float  # of processor time
    n_bytes: int


def processes(root: int) -> list[tuple[int, float]]:
    """Resident bytes and processor time of a process and those below it, dead ones included."""
    page, tick = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")
    children: dict[int, list[int]] = {}
    found: dict[int, tuple[int, float]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(entry.name))
            seconds = sum(map(int, fields[11:15])) / tick  # its own, and of children that ended
            found[int(entry.name)] = int(fields[21]) * page, seconds
    inside, todo = [], [root]
    while todo:
        process = todo.pop()
        inside.append(found.get(process, (0, 0.0)))
        todo += children.get(process, [])
    return inside


class Commands:
    """Runs commands of kedge one after the other in one process, and measures each."""

    def __init__(self, folder: Path) -> None:
        self.errors = folder / "errors"
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", COMMANDS],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
            )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def __call__(self, *words: object) -> Cost:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        start, lines = self.errors.stat().st_size, list[str]()
        with self.measured() as measured:
            self.process.stdin.write(json.dumps([*map(str, words)]) + "\n")
            self.process.stdin.flush()
            while True:
                lines.append(self.process.stdout.readline())
                if lines[-1].strip().isdigit() or not lines[-1]:
                    break
        text = "".join(lines[:-1]) + self.errors.read_bytes()[start:].decode()
        return Cost(int(lines[-1]), text, *measured)

    @contextmanager
    def measured(self) -> Iterator[list]:
        """Fills in processor time and the peak of memory, beyond those before."""
        found: list = []
        before = processes(self.process.pid)
        memory, seconds = sum(m for m, _ in before), sum(s for _, s in before)
        peak, ended = memory, threading.Event()

        def watch() -> None:
            nonlocal peak
            while not ended.wait(0.01):
                peak = max(peak, sum(m for m, _ in processes(self.process.pid)))

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield found
        finally:
            ended.set()
            thread.join()
        found += [sum(s for _, s in processes(self.process.pid)) - seconds, peak - memory]


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    commands = Commands(tmp_path_factory.mktemp("commands"))
    yield commands
    commands.process.kill()
    commands.process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("name", GENERATORS)
def test_limits(tmp_path: Path, commands: Commands, name: str) -> None:
    data = GENERATORS[name](tmp_path / name)
    for words in (["inspect", data], ["pack", data, "--out", tmp_path / "x.images"]):
        cost = commands("data", *words)
        assert "Traceback" not in cost.said
        assert cost.seconds < SLACK * SECONDS, cost
        assert cost.n_bytes < MEMORY, cost
        if name in SAID:
            assert cost.rc == 0, cost
        else:
            assert cost.rc == 1, cost
            assert str(data) in cost.said
    if SAID.get(name):
        assert SAID[name] in " ".join(commands("data", "inspect", data).said.split())


# ── faults of disks and of networks ──────────────────────────────────────────────────────────


def classes(folder: Path, n: int = 20) -> Path:
    for k in range(n):
        (folder / f"class {k:02}").mkdir(parents=True)
        for i in range(3):
            (folder / f"class {k:02}" / f"{i}.png").write_bytes(png(3 * k + i))
    return folder


def archived(folder: Path) -> Path:
    return Path(shutil.make_archive(str(folder), "zip", classes(folder)))


@pytest.mark.parametrize("damage", ["hole", "missing", "zeros"])
def test_a_zip_that_was_not_downloaded_whole_is_refused(tmp_path: Path, damage: str) -> None:
    """It would lose half of its classes."""
    path = archived(tmp_path / "data")
    content = path.read_bytes()
    middle, n = len(content) // 2, 8192
    rest = {"hole": content[middle:], "missing": content[middle:], "zeros": content[middle:]}
    start = content[: middle - n] + (bytes(n) if damage == "zeros" else b"")
    path.write_bytes((start if damage != "hole" else content[n : middle - n]) + rest[damage])
    with pytest.raises(KedgeError, match=r"data\.zip.*(damaged|missing)"):
        open_images(path)


def test_one_damaged_member_is_one_image(tmp_path: Path) -> None:
    path = archived(tmp_path / "data")
    content = bytearray(path.read_bytes())
    content[content.index(b"class 07/1.png") + 60] ^= 255
    path.write_bytes(content)
    with pytest.warns(KedgeWarning, match=r"1 of 60 images.*class 07/1\.png"):
        assert open_images(path).counts.tolist() == [3] * 7 + [2] + [3] * 12


def test_a_failing_disk_stops_an_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = read_index(archived(tmp_path / "data"))

    def fail(*args: object) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pread", fail)
    with pytest.raises(KedgeError, match=r"data\.zip.*Input/output error"):
        list(index.images.fetch([0]))


@pytest.mark.parametrize("name", ["p", "p.zip", "p.tar", "p.parquet", "p.npz", "p.pkl", "p.csv"])
def test_pipes_are_refused(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(KedgeError, match=r"named pipe, not a file"):
        read_index(tmp_path / name)
    [decoded] = decode_each([tmp_path / name], ImageSpec(16, 3))
    assert "named pipe" in decoded.reason


# ── what takes quadratic time ────────────────────────────────────────────────────────────────


def seconds_of(work: Callable[[], object]) -> float:
    start = time.process_time()
    with suppress(KedgeError):
        work()
    return time.process_time() - start


@pytest.mark.parametrize(
    "name",
    [
        "pickle_memo",
        "pickle_tuple_keys",
        "tar_extended_headers",
        "csv_wide_header",
        "csv_of_commas",
    ],
)
def test_colliding_and_repeated_names(tmp_path: Path, name: str) -> None:
    path = GENERATORS[name](tmp_path / name)
    assert seconds_of(lambda: read_index(path)) < SECONDS


def test_a_maze_of_links(tmp_path: Path) -> None:
    data = folder_with(tmp_path, "x.png", png())
    for i in range(30):
        (data / f"m{i}").mkdir()
        for j in range(30):
            (data / f"m{i}" / f"l{j}").symlink_to(data / f"m{j}")
    n_scans = 0
    real = os.scandir

    def count(path: str) -> object:
        nonlocal n_scans
        n_scans += 1
        return real(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "scandir", count)
        assert len(FolderTree(data).names) == 3
    assert n_scans == 1 + 2 + 30, "each folder once"


def test_many_members(tmp_path: Path) -> None:
    """A name is looked up once and not in a list of all."""
    names = [b"%d/splits/a/train.txt" % i for i in range(5000)]
    content = b"".join(tar_header(name, 0, b"0") for name in names) + bytes(1024)
    (tmp_path / "x.tar").write_bytes(content)
    assert seconds_of(lambda: read_index(tmp_path / "x.tar")) < SECONDS
    assert len(open_tree(tmp_path / "x.tar").names) == 5000


def test_many_records_of_extended_headers(tmp_path: Path) -> None:
    """They take far more time and memory than other parts of an archive."""
    with pytest.raises(KedgeError, match="most of it are names"):
        read_index(GENERATORS["tar_of_records"](tmp_path / "data"))


def test_packing_many_classes(tmp_path: Path) -> None:
    """A set of all classes was built for each class."""
    content = b"".join(tar_header(b"%05d/0.png" % i, 0, b"0") for i in range(5000))
    (tmp_path / "x.tar").write_bytes(content + bytes(1024))
    index = read_index(tmp_path / "x.tar")
    assert seconds_of(lambda: lost_classes(index, index)) < 0.5
