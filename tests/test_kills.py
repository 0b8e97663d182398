"""A training that is killed, out of disk space or diverging loses nothing and continues bit by bit.

Some moments are random, some are the critical ones. For a hundred: tools/kill_test.py.
"""

from __future__ import annotations

import importlib.util
import os
import random
import shlex
import shutil
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kedge.utils.atomic_io import load_tensors

TOOL = Path(__file__).resolve().parents[1] / "tools" / "kill_test.py"
spec = importlib.util.spec_from_file_location("kill_test", TOOL)
assert spec is not None
assert spec.loader is not None
tool = importlib.util.module_from_spec(spec)
sys.modules["kill_test"] = tool  # dataclasses look their module up
spec.loader.exec_module(tool)

pytestmark = pytest.mark.slow

Ready = Any  # of conftest.py, which cannot be imported
TIMEOUT = 120  # seconds
MODEL, CHECKPOINT, MEMORY = "m.kedge", "m.kedge.training", "m.kedge.memory"
PICTURE = "m.kedge.png"
QUICK = shlex.split("--n-way 2 --n-shot 1 --n-query 2 --val-episodes 4 --epochs 3 --episodes 2")
MEMORIES = {"EIML": "EIML exemplars=3", "EWC": "EWC episodes=2"}
TRAIN = "train, prototype, for EIML"
UPDATE = "update, ridge, FT"
RANDOM_KILLS = (TRAIN, "update, ecm, EWC", "update, prototype, EIML", "update, ridge, IDA")
# Temporary names of files that are being written.
PARTS = {
    CHECKPOINT: r"/\.m\.kedge\.training\.[\w-]+\.part$",
    MEMORY: r"/\.m\.kedge\.memory\.[\w-]+\.part$",
    MODEL: r"/\.m\.kedge\.[\w-]+\.part$",
}
KILL_AFTER = """
import os, signal, threading
timer = threading.Timer({seconds}, os.kill, (os.getpid(), signal.SIGKILL))
timer.daemon = True
timer.start()
"""


@dataclass(frozen=True)
class Case:
    """A command and what it writes if it is not disturbed."""

    args: list[str]
    files: dict[str, bytes]
    seconds: float
    n_operations: int


class Cases:
    """Runs each command undisturbed when its case is first asked for."""

    def __init__(self, ready: Ready, folder: Path) -> None:
        self.ready, self.folder = ready, folder
        self.done: dict[str, Case] = {}

    def __getitem__(self, name: str) -> Case:
        if name not in self.done:
            kind, head, method = name.replace("for ", "").split(", ")
            if kind == "train":
                args = ["train", "first", "--width", "4", "--head", head]
                args += ["--save-memory", MEMORIES[method], *QUICK]
            else:
                base = f"train, {head}, for {method if method in MEMORIES else 'EIML'}"
                assert self[base]
                model = str(self.folder / base / MODEL)
                args = ["update", model, "second", "--method", MEMORIES.get(method, method)]
                args += QUICK
            out, count, began = self.folder / name, self.folder / "count", time.monotonic()
            ended = self.run(args, out, watch(out, 0, count))
            assert ended.rc == 0, ended.err
            seconds = time.monotonic() - began
            self.done[name] = Case(args, tool.written(out), seconds, int(count.read_text()))
        return self.done[name]

    def run(self, args: list[str], out: Path, before: str = "", cwd: Path | None = None) -> Any:
        before = f"{tool.WATCH}\nkeep_checkpoint({str(out)!r})\n{before}"
        return self.ready.kedge(*args, "--out", out / MODEL, cwd=cwd or self.folder, first=before)


def watch(folder: Path, at: int, count: Path | None = None, do: str = "kill", **which: Any) -> str:
    """Code that kills its process just before the n-th file operation in a folder."""
    counted = None if count is None else str(count)
    return f"watch({str(folder)!r}, {at}, {counted!r}, do={do}, **{which!r})\n"


def after_epochs(out: Path, n: int) -> str:
    """Code that kills its process once n checkpoints have been written."""
    return watch(out, n, events=["os.remove"], pattern=PARTS[CHECKPOINT])


def visible(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")}


def n_epochs(checkpoint: Path) -> int:
    copied = shutil.copy(checkpoint, checkpoint.with_name("copied"))
    about, _ = load_tensors(copied, "checkpoint")
    copied.unlink()
    return len(about["history"])


def message(ended: Any) -> str:
    """The error that the user sees; notes may precede it."""
    assert ended.rc == 1, ended
    assert "Traceback" not in ended.err
    return ended.err.splitlines()[-1].removeprefix("kedge: ")


@pytest.fixture(scope="module")
def cases(
    ready: Ready, first: Path, second: Path, tmp_path_factory: pytest.TempPathFactory
) -> Cases:
    folder = tmp_path_factory.mktemp("kills")
    for images in (first, second):
        (folder / images.name).symlink_to(images)
    return Cases(ready, folder)


@pytest.mark.parametrize("name", RANDOM_KILLS)
def test_killed_at_random_moments(name: str, cases: Cases, tmp_path: Path) -> None:
    case, rng, out = cases[name], random.Random(name), tmp_path / "out"
    operation, seconds = rng.randint(1, case.n_operations), rng.uniform(0, case.seconds)
    for before in (watch(out, operation), KILL_AFTER.format(seconds=seconds)):
        cases.run(case.args, out, before)
        assert tool.damaged(out) == []
    ended = cases.run(case.args, out)
    assert ended.rc == 0 or "already exists" in message(ended), ended.err
    assert tool.written(out) == case.files


MOMENTS: dict[str, tuple[str, str, int, set[str]]] = {  # and the complete files at that moment
    "first checkpoint not moved": ("os.rename", PARTS[CHECKPOINT], 1, set()),
    "second checkpoint not moved": ("os.rename", PARTS[CHECKPOINT], 3, {CHECKPOINT}),
    "memory not moved": ("os.rename", PARTS[MEMORY], 1, {CHECKPOINT}),
    "model not moved": ("os.rename", PARTS[MODEL], 1, {CHECKPOINT, MEMORY, PICTURE}),
    "checkpoint not removed": (
        *("os.remove", "training$", 1),
        {CHECKPOINT, MEMORY, PICTURE, MODEL},
    ),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_while_writing(moment: str, cases: Cases, tmp_path: Path) -> None:
    case, out = cases[TRAIN], tmp_path / "out"
    event, pattern, at, complete = MOMENTS[moment]
    ended = cases.run(case.args, out, watch(out, at, events=[event], pattern=pattern))
    assert ended.rc == -signal.SIGKILL, ended.err
    assert visible(out) == complete
    assert tool.damaged(out) == []
    ended = cases.run(case.args, out)
    assert ended.rc == 0 or (MODEL in complete and "already exists" in message(ended)), ended.err
    assert tool.written(out) == case.files


def test_checkpoint_of_another_model_is_kept(cases: Cases, tmp_path: Path) -> None:
    """Someone has put a model where a stopped command would write its own."""
    case, out = cases[TRAIN], tmp_path / "out"
    assert cases.run(case.args, out, after_epochs(out, 1)).rc == -signal.SIGKILL
    other = cases["train, ridge, for EIML"].files[MODEL]
    (out / MODEL).write_bytes(other)
    assert "already exists" in message(cases.run(case.args, out))
    assert visible(out) == {MODEL, CHECKPOINT}
    assert (out / MODEL).read_bytes() == other
    (out / MODEL).unlink()
    assert cases.run(case.args, out).rc == 0
    assert tool.written(out) == case.files


FULL = """
import resource
def full(path):  # writing more fails in the middle of a file, as on a full disk
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
"""
DENIED = """
import os
def deny(path):
    os.seteuid(65534) if os.geteuid() == 0 else os.chmod({folder!r}, 0o555)
"""


@pytest.mark.parametrize(
    ("fault", "file"),
    [("full", CHECKPOINT), ("full", MEMORY), ("full", MODEL), ("deny", CHECKPOINT)],
)
def test_failed_writes_lose_nothing(fault: str, file: str, cases: Cases, tmp_path: Path) -> None:
    case, out = cases[TRAIN], tmp_path / "out"
    out.mkdir()
    event = "os.remove" if file == CHECKPOINT else "open"  # after the first checkpoint
    before = FULL + DENIED.format(folder=str(out))
    before += watch(out, 1, do=fault, events=[event], pattern=PARTS[file])
    error = message(cases.run(case.args, out, before))
    out.chmod(0o755)
    assert file in error
    assert ("File too large" if fault == "full" else "Permission denied") in error
    assert tool.damaged(out) == []
    assert visible(out) == ({CHECKPOINT, MEMORY, PICTURE} if file == MODEL else {CHECKPOINT})
    assert cases.run(case.args, out).rc == 0
    assert tool.written(out) == case.files


def test_missing_or_changed_images_do_not_touch_the_checkpoint(
    cases: Cases, first: Path, second: Path, tmp_path: Path
) -> None:
    case, out, images = cases[TRAIN], tmp_path / "out", tmp_path / "first"
    shutil.copytree(first, images)
    ended = cases.run(case.args, out, after_epochs(out, 1), tmp_path)
    assert ended.rc == -signal.SIGKILL
    checkpoint = (out / CHECKPOINT).read_bytes()
    images.rename(tmp_path / "away")
    assert "first" in message(cases.run(case.args, out, cwd=tmp_path))
    (tmp_path / "away").rename(images)
    one = next(images.rglob("*.png"))
    original = one.read_bytes()
    shutil.copy(next(second.rglob("*.png")), one)
    assert CHECKPOINT in message(cases.run(case.args, out, cwd=tmp_path))
    assert (out / CHECKPOINT).read_bytes() == checkpoint
    one.write_bytes(original)
    assert cases.run(case.args, out, cwd=tmp_path).rc == 0
    assert tool.written(out) == case.files


ANOTHER = """
import os, sys, time, kedge.cli
if (other := os.fork()) == 0:
    sys.argv = {args!r}
    kedge.cli.main()
    os._exit(0)
with open({pid!r}, "w") as file:
    file.write(str(other))
while not os.path.exists({checkpoint!r}):
    time.sleep(0.01)
"""


def test_second_process_is_refused_and_the_first_continues(cases: Cases, tmp_path: Path) -> None:
    out, pid = tmp_path / "out", tmp_path / "pid"
    long = [*cases[TRAIN].args, "--epochs", "100000", "--out", str(out / MODEL)]
    code = ANOTHER.format(args=["kedge", *long], pid=str(pid), checkpoint=str(out / CHECKPOINT))
    try:
        ended = cases.ready.kedge(*long, cwd=cases.folder, first=code)
        assert "another kedge process" in message(ended)
        before, end = n_epochs(out / CHECKPOINT), time.monotonic() + TIMEOUT
        while n_epochs(out / CHECKPOINT) == before:
            assert time.monotonic() < end, "the first process has stopped"
            time.sleep(0.01)
    finally:
        os.kill(int(pid.read_text()), signal.SIGKILL)
    assert tool.damaged(out) == []


SPOILT = """
import math, torch, kedge.training.step
step, calls = kedge.training.step.TrainStep.__call__, 0
def spoil(self, *args):
    global calls
    metrics, calls = step(self, *args), calls + 1
    if calls == 4:  # the last step of the second epoch
        {how}
    return metrics
kedge.training.step.TrainStep.__call__ = spoil
"""
SPOIL = {
    "loss": "metrics = metrics * math.nan",
    "weights": "next(self.student.embedding.parameters()).data.view(-1)[0] = math.inf",
    "features": "[w.data.fill_(1e38) for w in self.student.embedding.parameters()]",
    "cross-entropy": "metrics = metrics * 1e9",
}


@pytest.mark.parametrize("what", SPOIL)
def test_divergence_keeps_the_last_good_checkpoint(what: str, cases: Cases, tmp_path: Path) -> None:
    ended = cases.run(cases[UPDATE].args, tmp_path, SPOILT.format(how=SPOIL[what]))
    error = message(ended)
    assert "diverged in epoch 2" in error
    assert what in error
    assert "--lr" in error
    assert visible(tmp_path) == {CHECKPOINT}
    assert n_epochs(tmp_path / CHECKPOINT) == 1


def test_absurd_learning_rate_makes_no_model(cases: Cases, tmp_path: Path) -> None:
    error = message(cases.run([*cases[TRAIN].args, "--lr", "1e12"], tmp_path))
    assert "diverged in epoch 1" in error
    assert visible(tmp_path) == set()


def test_stopped_run_may_become_longer_but_not_shorter(cases: Cases, tmp_path: Path) -> None:
    case, out = cases[TRAIN], tmp_path / "out"
    ended = cases.run([*case.args, "--epochs", "5"], out, after_epochs(out, 3))
    assert ended.rc == -signal.SIGKILL
    assert CHECKPOINT in message(cases.run([*case.args, "--epochs", "2"], out))
    assert cases.run(case.args, out).rc == 0
    assert tool.written(out) == case.files
