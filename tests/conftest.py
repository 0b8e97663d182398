"""Shared by all tests: small folders of images, and several ways to run the command."""

from __future__ import annotations

import io
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
import torch
from PIL import Image, ImageDraw

# Many tests compare bits, which a GPU does not promise. KEDGE_TEST_GPU=1 is for tests/kernels and
# tests/training/test_cuda_graph.py.
if "KEDGE_TEST_GPU" not in os.environ:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
TIMEOUT = 120  # seconds: far more than any command of the tests needs
# Bits depend on the number of threads, and threads of several processes slow each other down.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"}
torch.set_num_threads(1)


@dataclass(frozen=True)
class Ended:
    """Exit code and output of a command."""

    rc: int
    out: str
    err: str

    @property
    def sentence(self) -> str:
        """The error message; fails unless it is one line of standard error and all of it."""
        assert self.rc == 1, self
        assert "Traceback" not in self.err, self.err
        lines = [line for line in self.err.splitlines() if line]
        assert len(lines) == 1, self.err
        assert lines[0].startswith("kedge: "), self.err
        assert lines[0].endswith((".", "?")), self.err
        return lines[0].removeprefix("kedge: ")


# ── the command in this process ──────────────────────────────────────────────────────────────


class Cli:
    """`kedge` inside the test process, without the seconds that a new process takes to import."""

    def __call__(self, *args: object, cwd: Path | None = None, stdin: bytes = b"") -> Ended:
        import kedge.cli

        out, err, given = (io.TextIOWrapper(io.BytesIO(b), "utf-8") for b in (b"", b"", stdin))
        on_sigterm = signal.getsignal(signal.SIGTERM)
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            patch.setattr(sys, "argv", ["kedge", *map(str, args)])
            patch.setattr(sys, "stdin", given)
            patch.setattr(kedge.cli, "keep_freed_memory", lambda: None)
            patch.setenv("COLUMNS", "80")
            if cwd is not None:
                patch.chdir(cwd)
            try:
                kedge.cli.main()
                rc = 0
            except SystemExit as end:
                rc = int(end.code or 0)
            finally:
                signal.signal(signal.SIGTERM, on_sigterm)
        printed = (stream.buffer.getvalue().decode() for stream in (out, err) if not stream.flush())
        return Ended(rc, *printed)


@pytest.fixture(scope="session")
def cli() -> Cli:
    return Cli()


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the type checks of the tests, which would raise before the option's own."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


# ── processes ────────────────────────────────────────────────────────────────────────────────


class Command:
    """`kedge`, as it is installed beside this interpreter, as a process."""

    def __init__(self) -> None:
        path = shutil.which("kedge", path=str(Path(sys.executable).parent))
        assert path is not None, "kedge is not installed beside this interpreter"
        self.path = path

    def __call__(self, *args: str | Path, cwd: Path | None = None) -> Ended:
        process = self.start(*args, cwd=cwd)
        try:
            out, err = process.communicate(timeout=TIMEOUT)
        finally:
            process.kill()
        return Ended(process.returncode, out, err)

    def start(self, *args: str | Path, cwd: Path | None = None) -> subprocess.Popen[str]:
        return start([self.path, *map(str, args)], cwd)


def start(
    args: list[str],
    cwd: Path | None = None,
    stdin: int = subprocess.DEVNULL,
    stderr: int | None = subprocess.PIPE,
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        args,
        cwd=cwd,
        env=ENVIRONMENT,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        encoding="utf-8",
        # A shell that runs the tests in the background has told them to ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


@pytest.fixture(scope="session")
def kedge() -> Command:
    return Command()


READY = """
import json, os, sys, traceback
import torch._dynamo, kedge.api, kedge.cli, kedge.experiments.experiment, kedge.report.record_report

def run(code):  # as the interpreter would, but without its second of tidying up
    try:
        exec(code, {"__name__": "__main__"})
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0

for line in sys.stdin:
    code, cwd, out, err = json.loads(line)
    if (child := os.fork()) == 0:
        os.chdir(cwd)
        for number, file in ((0, os.devnull), (1, out), (2, err)):
            os.dup2(os.open(file, os.O_RDWR | os.O_CREAT), number)
        rc = run(code)
        sys.stdout.flush()
        os._exit(rc)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Ready:
    """A process that has imported kedge and PyTorch; each piece of code runs in a fork of it.

    A test gets a real process, which it may kill, without waiting for imports. One runs at a time.
    """

    def __init__(self, folder: Path) -> None:
        self.process = start([sys.executable, "-c", READY], stdin=subprocess.PIPE, stderr=None)
        self.folder, self.number = folder, 0

    def __call__(self, code: str, cwd: Path | None = None) -> Ended:
        self.start(code, cwd)
        return self.wait()

    def kedge(self, *args: str | Path, cwd: Path | None = None, first: str = "") -> Ended:
        words = ["kedge", *map(str, args)]
        return self(f"{first}import sys, kedge.cli; sys.argv = {words!r}; kedge.cli.main()", cwd)

    def start(self, code: str, cwd: Path | None = None) -> int:
        """Returns the id of the process."""
        self.number += 1
        self.out, self.err = (self.folder / f"{self.number}.{name}" for name in ("out", "err"))
        request = (code, str(cwd or self.folder), str(self.out), str(self.err))
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self._read()

    def wait(self) -> Ended:
        rc = self._read()
        return Ended(rc, self.out.read_text("utf-8"), self.err.read_text("utf-8"))

    def _read(self) -> int:
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())


@pytest.fixture(scope="session")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ready]:
    ready = Ready(tmp_path_factory.mktemp("ready"))
    yield ready
    ready.process.communicate(timeout=TIMEOUT)  # it ends at the end of its input


PLAINLY = """
import json, resource, kedge
for name, expression in json.loads({expressions!r}).items():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        said = f"gave {{eval(expression)}}"
    except Exception as error:
        said = f"{{type(error).__name__}}: {{error}}"
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(json.dumps([name, {{"said": said, "grown_mb": grown // 1024}}]))
"""


@pytest.fixture(scope="session")
def plainly(ready: Ready) -> Callable[[dict[str, str]], dict[str, dict[str, Any]]]:
    """Evaluate expressions in another process, without the type checks of the tests.

    Returns for each its value or error in words, and by how much memory has grown.
    """

    def evaluate(expressions: dict[str, str]) -> dict[str, dict[str, Any]]:
        ended = ready(PLAINLY.format(expressions=json.dumps(expressions)))
        assert ended.rc == 0, ended.err
        return dict(json.loads(line) for line in ended.out.splitlines())

    return evaluate


SECONDS = 5  # CPU time of one case
ROOM = 1 << 30  # bytes of address space for all cases together
HANG = 400  # seconds for all cases together


@dataclass(frozen=True)
class Watched(Ended):
    """What one of many cases printed, and what it cost."""

    seconds: float
    grown: int  # MiB

    def fault(self, *names: str) -> str:
        """Why this is not a proper error message; "" if it is one line that names the file."""
        lines = self.err.split("\n")[:-1]
        if self.rc != 1 or len(lines) != 1 or "Traceback" in self.err:
            return f"ended with {self.rc}: {self.err[-1500:]}"
        if self.out:
            return f"printed {self.out[:300]}"
        if not lines[0].startswith("kedge: ") or not lines[0].endswith((".", "?")):
            return f"is no sentence: {lines[0]!a}"
        if not lines[0].isprintable() or len(lines[0]) > 1000:
            return f"is no sentence for people: {lines[0][:1500]!a}"
        if not any(name in lines[0] for name in names):
            return f"does not name {names}: {lines[0]}"
        return ""


@pytest.fixture(scope="session")
def watched() -> Callable[..., dict[str, Watched]]:
    """Run many cases in one process with limits on time and memory: see watched.py.

    The folder is for what they print.
    """

    def watch(
        cases: list[list[str]], folder: Path, cwd: Path | None = None, **environment: str
    ) -> dict[str, Watched]:
        if not Path("/proc/self/status").exists():
            pytest.skip("memory is read from /proc")
        files = [str(folder / name) for name in ("out", "err")]
        process = subprocess.run(
            [sys.executable, "-P", str(Path(__file__).with_name("watched.py"))],
            input=json.dumps([cases, SECONDS, ROOM, files]),
            cwd=cwd,
            env={**ENVIRONMENT, **environment},
            capture_output=True,
            text=True,
            timeout=HANG,
        )
        ended = {}
        for line in process.stdout.splitlines():
            name, *what = json.loads(line)
            ended[name] = Watched(*what)
        run = [case for case in cases if case[0] != "limit"]
        assert len(ended) == len(run), (run[len(ended)], process.returncode, process.stderr)
        return ended

    return watch


@pytest.fixture(scope="session")
def signal_when() -> Callable[[subprocess.Popen[str] | int, Path, signal.Signals], None]:
    """Send a process a signal as soon as it has written a file."""

    def send(process: subprocess.Popen[str] | int, file: Path, number: signal.Signals) -> None:
        end = time.monotonic() + TIMEOUT
        while not file.exists():
            assert time.monotonic() < end, f"it never wrote {file}"
            assert _runs(process), f"it ended before there was {file}"
            time.sleep(0.001)
        os.kill(process if isinstance(process, int) else process.pid, number)

    return send


def _runs(process: subprocess.Popen[str] | int) -> bool:
    if not isinstance(process, int):
        return process.poll() is None
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


OPTIONS = (
    "--n-way 3 --n-shot 2 --n-query 3 --epochs 3 --episodes 20 --val-episodes 40 --seed 3 "
    "--no-picture"
)


@pytest.fixture(scope="session")
def by_command(
    cli: Cli, first: Path, second: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """Two models by the command: "base" of the first folder, "next" updated with the second."""
    folder = tmp_path_factory.mktemp("models")
    base, better = folder / "base.kedge", folder / "next.kedge"
    trained = cli("train", first, "--out", base, "--width", "4", *OPTIONS.split())
    assert trained.rc == 0, trained.err
    updated = cli("update", base, second, "--out", better, *OPTIONS.split())
    assert updated.rc == 0, updated.err
    assert trained.out.startswith(f"{base}: round 0 (base), 6 classes known; validation accuracy ")
    assert updated.out.startswith(f"{better}: round 1 (IDA+), 12 classes known; ")
    assert sorted(path.name for path in folder.iterdir()) == ["base.kedge", "next.kedge"]
    return {"base": base, "next": better}


# ── a benchmark of seconds ───────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def few() -> Iterator[dict[int, str]]:
    """Names of protocols by the number of their rounds: 4 classes of 16 px in each role, of which
    6 to 8 images train and 4 are held out."""
    # Imported here, since the type checks of the tests must be in place before kedge is.
    from kedge.benchmarks import PROTOCOLS, Protocol
    from kedge.benchmarks.base import Split
    from kedge.data.table import ImageTable
    from kedge.utils.seeding import generator

    def images(n: int) -> ImageTable:
        """Each class is a coarse pattern under noise; some have more images than others."""
        seeded = torch.Generator().manual_seed(0)
        coarse = torch.rand(n, 4, 4, generator=seeded)
        patterns = coarse.repeat_interleave(4, 1).repeat_interleave(4, 2)
        labels = torch.arange(n).repeat_interleave(10 + torch.arange(n) % 3)
        noise = torch.rand(len(labels), 16, 16, generator=seeded)
        pixels = (255 * (0.4 * patterns[labels] + 0.6 * noise)).to(torch.uint8)
        return ImageTable.build(pixels[:, None], labels, [f"class {i}" for i in range(n)])

    def split(seed: int, table: ImageTable) -> Split:
        order = generator("few", seed).permutation(len(table.classes)).tolist()
        names = [table.classes[i] for i in order]
        *rounds, val, unseen = (tuple(names[i : i + 4]) for i in range(0, len(names), 4))
        return Split(seed, tuple(rounds), val, {"unseen": unseen}, 4)

    names = {n: f"few-{n}" for n in (2, 3, 5)}
    with pytest.MonkeyPatch.context() as patch:
        for n, name in names.items():
            table = images(4 * (n + 2))
            tiny = Protocol(name, "For tests.", lambda data, table=table: table, split)
            patch.setitem(PROTOCOLS, name, tiny)
        yield names


# ── images ───────────────────────────────────────────────────────────────────────────────────

DrawClasses = Callable[..., Path]


def stripes(number: int, of: int, rng: random.Random, side: int) -> Image.Image:
    """Bright stripes; each class has its own angle and gap, each image its own offset."""
    image = Image.new("L", (side, side), rng.randrange(30))
    pen = ImageDraw.Draw(image)
    angle, gap = math.pi * number / of, 5 + 3 * (number % 2)
    dx, dy = math.cos(angle), math.sin(angle)
    shift = rng.uniform(0, gap)
    for k in range(-2 * side // gap, 2 * side // gap):
        x, y = side / 2 - dy * (k * gap + shift), side / 2 + dx * (k * gap + shift)
        ends = (x - 2 * side * dx, y - 2 * side * dy, x + 2 * side * dx, y + 2 * side * dy)
        pen.line(ends, fill=rng.randrange(200, 256), width=2)
    return image


@pytest.fixture(scope="session")
def draw_classes() -> DrawClasses:
    """Write a folder of class folders: draw_classes(folder, ["a", "b"], per_class=12)."""

    def draw(folder: Path, names: list[str], per_class: int = 12, side: int = 16) -> Path:
        for number, name in enumerate(names):
            (folder / name).mkdir(parents=True)
            for i in range(per_class):
                image = stripes(number, len(names), random.Random(ascii(f"{name} {i}")), side)
                image.save(folder / name / f"{i:02}.png")
        return folder

    return draw


@pytest.fixture(scope="session")
def first(tmp_path_factory: pytest.TempPathFactory, draw_classes: DrawClasses) -> Path:
    """Six classes of twelve images of 16 pixels."""
    folder = tmp_path_factory.mktemp("data") / "first"
    return draw_classes(folder, [f"first {i}" for i in range(6)])


@pytest.fixture(scope="session")
def second(tmp_path_factory: pytest.TempPathFactory, draw_classes: DrawClasses) -> Path:
    """Six other classes."""
    folder = tmp_path_factory.mktemp("data") / "second"
    return draw_classes(folder, [f"second {i}" for i in range(6)])
