"""Training as dependable as a database: killed at any moment it goes on to the same last bit, and
whatever else happens to it (no room, no leave to write, images gone, a second process, numbers that
are none), it says so in a sentence and loses nothing.

Some moments are random, some are those that matter most. For a hundred: tools/kill_test.py.
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
from collections.abc import Callable
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
sys.modules["kill_test"] = tool  # its dataclass asks for it
spec.loader.exec_module(tool)

Ready = Any  # of conftest.py, which cannot be imported
DrawClasses = Callable[..., Path]
Files = dict[str, bytes]
TIMEOUT = 120  # seconds
MODEL, STATE, MEMORY = "m.kedge", "m.kedge.training", "m.kedge.memory"
SHAPE = shlex.split("--n-way 2 --n-shot 1 --n-query 2 --val-episodes 4")
QUICK = [*SHAPE, "--epochs", "3", "--episodes", "2"]
MEMORIES = {"EIML": "EIML exemplars=3", "EWC": "EWC episodes=2"}
CASES = {
    **{f"train, {head}, for {m}": ("train", head, m) for head in tool.HEADS for m in MEMORIES},
    **{f"update, {head}, {m}": ("update", head, m) for head in tool.HEADS for m in tool.METHODS},
}
ONE = "train, prototype, for EIML"
# Files while they are written, by the names that they have then.
PARTS = {
    STATE: r"/\.m\.kedge\.training\.\d+\.part$",
    MEMORY: r"/\.m\.kedge\.memory\.\d+\.part$",
    MODEL: r"/\.m\.kedge\.\d+\.part$",
}
BY_CLOCK = """
import os, signal, threading
timer = threading.Timer({seconds}, os.kill, (os.getpid(), signal.SIGKILL))
timer.daemon = True
timer.start()
"""


@dataclass(frozen=True)
class Case:
    """A command, and what it leaves if nobody disturbs it."""

    words: list[str]
    files: Files
    end: Files  # the state, before it is removed
    seconds: float
    touches: int


class Cases:
    """Each is done when it is first asked for."""

    def __init__(self, ready: Ready, folder: Path) -> None:
        self.ready, self.folder = ready, folder
        self.done: dict[str, Case] = {}

    def __call__(self, name: str) -> Case:
        if name not in self.done:
            kind, head, method = CASES[name]
            if kind == "train":
                words = ["train", "first", "--width", "4", "--head", head]
                words += ["--keep", MEMORIES[method], *QUICK]
            else:
                base = f"train, {head}, for {method if method in MEMORIES else 'EIML'}"
                self(base)
                model = str(self.folder / base / MODEL)
                words = ["update", model, "second", "--method", MEMORIES.get(method, method)]
                words += QUICK
            out, told, began = self.folder / name, self.folder / "told", time.monotonic()
            ended = self.given(words, out, watch(out, 0, told))
            assert ended.rc == 0, ended.err
            seconds, touches = time.monotonic() - began, int(told.read_text())
            self.done[name] = Case(words, content(out), tool.end_of(out), seconds, touches)
        return self.done[name]

    def given(self, words: list[str], out: Path, before: str = "", cwd: Path | None = None) -> Any:
        before = f"{tool.WATCH}\nkeep_state({str(out)!r})\n{before}"
        return self.ready.kedge(*words, "--out", out / MODEL, cwd=cwd or self.folder, first=before)


def watch(folder: Path, at: int, told: Path | None = None, do: str = "kill", **which: Any) -> str:
    """Code that kills its process when it is about to touch files in a folder for the n-th time."""
    there = None if told is None else str(told)
    return f"watch({str(folder)!r}, {at}, {there!r}, do={do}, **{which!r})\n"


def content(folder: Path) -> Files:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def epochs(state: Path) -> int:
    """How many were done; of a copy, since another process may put a newer one in its place."""
    copied = shutil.copy(state, state.with_name("copied"))
    about, _ = load_tensors(copied, "state")
    copied.unlink()
    return len(about["history"])


def sentence(ended: Any) -> str:
    """What the user is told; notes may stand before it."""
    assert ended.rc == 1, ended
    assert "Traceback" not in ended.err
    last = ended.err.splitlines()[-1]
    assert last.startswith("kedge: ")
    assert last.endswith(".")
    return last.removeprefix("kedge: ")


@pytest.fixture(scope="module")
def cases(
    ready: Ready, first: Path, second: Path, tmp_path_factory: pytest.TempPathFactory
) -> Cases:
    folder = tmp_path_factory.mktemp("kills")
    for images in (first, second):
        (folder / images.name).symlink_to(images)
    return Cases(ready, folder)


# ── killed ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", CASES)
def test_killed_at_random_moments_it_goes_on_to_the_same_last_bit(
    name: str, cases: Cases, tmp_path: Path
) -> None:
    """About to touch some file, then at some time, then not."""
    case, rng, out, kills = cases(name), random.Random(name), tmp_path / "out", 0
    touch, moment = rng.randint(1, case.touches), rng.uniform(0, case.seconds)
    for before in (watch(out, touch), BY_CLOCK.format(seconds=moment)):
        ended = cases.given(case.words, out, before)
        kills += ended.rc == -signal.SIGKILL
        assert tool.damaged(out) == []
    assert kills >= 1
    ended = cases.given(case.words, out)
    assert ended.rc == 0 or "already exists" in sentence(ended), ended.err
    assert content(out) == case.files
    assert tool.end_of(out) == case.end


MOMENTS: dict[str, tuple[str, str, int, set[str]]] = {  # what lies there then, of whole files
    "a state that is not flushed": ("open", PARTS[STATE], 2, set()),
    "one beside that of the epoch before": ("open", PARTS[STATE], 4, {STATE}),
    "a state that is not in its place": ("os.rename", PARTS[STATE], 3, {STATE}),
    "a memory that is not flushed": ("open", PARTS[MEMORY], 2, {STATE}),
    "a memory and no model": ("open", PARTS[MODEL], 1, {STATE, MEMORY}),
    "a model that is not flushed": ("open", PARTS[MODEL], 2, {STATE, MEMORY}),
    "a model that is not in its place": ("os.rename", PARTS[MODEL], 1, {STATE, MEMORY}),
    "a model and the state that led to it": ("os.remove", "training$", 1, {STATE, MEMORY, MODEL}),
    "a model, and nobody has said so": ("os.remove", "lock$", 1, {MEMORY, MODEL}),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_while_it_writes_it_leaves_whole_files_and_goes_on(
    moment: str, cases: Cases, tmp_path: Path
) -> None:
    words, whole = cases(ONE).words, cases(ONE).files
    event, named, at, there = MOMENTS[moment]
    out = tmp_path / "out"
    ended = cases.given(words, out, watch(out, at, events=[event], named=named))
    assert ended.rc == -signal.SIGKILL, ended.err
    assert {name for name in content(out) if not name.startswith(".")} == there
    assert tool.damaged(out) == []
    ended = cases.given(words, out)
    if MODEL in there:
        assert "already exists and is not overwritten" in sentence(ended)
    else:
        assert ended.rc == 0, ended.err
    assert content(out) == whole, "and nothing is left over"
    assert tool.end_of(out) == cases(ONE).end


def test_the_state_of_another_model_is_not_removed(cases: Cases, tmp_path: Path) -> None:
    """Somebody has put a model where the one of a stopped command is to be."""
    words, whole = cases(ONE).words, cases(ONE).files
    last = watch(tmp_path, 1, events=["os.remove"], named=PARTS[STATE])
    assert cases.given(words, tmp_path, last).rc == -signal.SIGKILL
    state = content(tmp_path)[STATE]
    other = cases("train, ridge, for EIML").files
    (tmp_path / MODEL).write_bytes(other[MODEL])
    assert "already exists" in sentence(cases.given(words, tmp_path))
    assert content(tmp_path) == {MODEL: other[MODEL], STATE: state}
    (tmp_path / MODEL).unlink()
    assert cases.given(words, tmp_path).rc == 0
    assert content(tmp_path) == whole


EXPERIMENT = """
from kedge.config import BackboneConfig, EpisodeShape, Schedule
from kedge.experiments.experiment import Experiment, run_experiment
run_experiment(
    Experiment(
        "folder",
        ("FT",),
        episode=EpisodeShape(2, 1, 2),
        schedule=Schedule(epochs=1, episodes=2, val_episodes=2),
        backbone=BackboneConfig(width=4),
        eval_episodes=4,
        data={data!r},
    ),
    {out!r},
)
"""


def test_the_state_of_a_round_that_is_done_is_removed_later_if_not_then(
    ready: Ready, draw_classes: DrawClasses, tmp_path: Path
) -> None:
    data = draw_classes(tmp_path / "data", [f"{i:02}" for i in range(20)], per_class=8)
    out, state = tmp_path / "out", tmp_path / "out" / "seed-0" / "base" / "training.safetensors"
    code = EXPERIMENT.format(data=str(data), out=str(out))
    moment = watch(out, 1, events=["os.remove"], named=f"/{state.name}$")
    assert ready(f"{tool.WATCH}\n{moment}{code}").rc == -signal.SIGKILL
    assert state.with_name("run.json").exists()
    assert state.exists()
    assert ready(code).rc == 0
    assert list(out.rglob(state.name)) == []
    assert tool.damaged(out) == []


# ── no room, no leave to write ───────────────────────────────────────────────────────────────

FULL = """
import resource
def full(path):  # writing beyond this fails in the middle of a file, as on a full disk
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
"""
DENIED = """
import os
def deny(path):  # nobody has leave to write here, and root is nobody
    os.seteuid(65534) if os.geteuid() == 0 else os.chmod({folder!r}, 0o555)
"""


@pytest.mark.parametrize("file", PARTS)
@pytest.mark.parametrize("what", ["full", "deny"])
def test_what_cannot_be_written_is_told_and_nothing_is_lost(
    what: str, file: str, cases: Cases, tmp_path: Path
) -> None:
    words, whole = cases(ONE).words, cases(ONE).files
    when = "os.remove" if file == STATE else "open"  # the first state is there, the next is not
    before = FULL + DENIED.format(folder=str(tmp_path))
    before += watch(tmp_path, 1, do=what, events=[when], named=PARTS[file])
    said = sentence(cases.given(words, tmp_path, before))
    tmp_path.chmod(0o755)
    assert f"{file}: could not be written (" in said
    assert ("File too large" if what == "full" else "Permission denied") in said
    assert tool.damaged(tmp_path) == []
    left = {name for name in content(tmp_path) if name.startswith("m.")}
    assert left == ({STATE, MEMORY} if file == MODEL else {STATE})
    assert cases.given(words, tmp_path).rc == 0
    assert content(tmp_path) == whole


SMALL_DISK = """
import ctypes, os, shutil, sys
import kedge.cli
libc, folder, saved = ctypes.CDLL(None, use_errno=True), {folder!r}, {saved!r}
os.makedirs(folder)
ok = libc.unshare(0x20000) == 0 and libc.mount(b"none", b"/", None, 0x44000, None) == 0
if not ok or libc.mount(b"none", folder.encode(), b"tmpfs", 0, b"size={size}") != 0:
    sys.exit("no disk of one's own: " + os.strerror(ctypes.get_errno()))
end = kedge.cli.main
def main():
    try:
        end()
    finally:
        shutil.copytree(folder, saved)
kedge.cli.main = main
"""


@pytest.mark.skipif(sys.platform != "linux", reason="mounts a disk in the way of Linux")
def test_full_disk(cases: Cases, tmp_path: Path) -> None:
    """A real one, with room for one state and not for the next beside it."""
    words, whole = cases(ONE).words, cases(ONE).files
    probe, disk, saved = (tmp_path / name for name in ("probe", "disk", "saved"))
    cases.given(words, probe, watch(probe, 1, events=["os.remove"], named=PARTS[STATE]))
    size = (probe / STATE).stat().st_size
    code = SMALL_DISK.format(folder=str(disk), saved=str(saved), size=int(1.6 * size))
    ended = cases.given(words, disk, code)
    if "no disk of one's own" in ended.err:
        pytest.skip(f"a disk can only be mounted by root: {ended.err.strip()}")
    said = sentence(ended)
    assert f"{STATE}: could not be written (" in said
    assert "No space left on device" in said
    assert content(saved) == {STATE: (saved / STATE).read_bytes()}
    assert tool.damaged(saved) == []
    assert cases.given(words, saved).rc == 0
    assert content(saved) == whole


def test_folder_that_nobody_may_write_to(cases: Cases, tmp_path: Path) -> None:
    words = cases(ONE).words
    before = DENIED.format(folder=str(tmp_path)) + watch(tmp_path, 1, do="deny")
    said = sentence(cases.given(words, tmp_path, before))
    tmp_path.chmod(0o755)
    assert said.startswith(f"{tmp_path}: cannot write here (")
    assert content(tmp_path) == {}


# ── images that are gone, or others ──────────────────────────────────────────────────────────


def test_images_that_are_gone_or_others_do_not_touch_what_was_learned(
    cases: Cases, first: Path, second: Path, tmp_path: Path
) -> None:
    words, whole = cases(ONE).words, cases(ONE).files
    out, images = tmp_path / "out", tmp_path / "first"
    shutil.copytree(first, images)
    after_an_epoch = watch(out, 1, events=["os.remove"], named=PARTS[STATE])
    assert cases.given(words, out, after_an_epoch, tmp_path).rc == -signal.SIGKILL
    there = {STATE: (out / STATE).read_bytes()}

    images.rename(tmp_path / "away")
    assert "first: nothing is there" in sentence(cases.given(words, out, cwd=tmp_path))
    assert content(out) == there
    shutil.copytree(second, images)
    said = sentence(cases.given(words, out, cwd=tmp_path))
    assert (
        f"{STATE}: a stopped run with other options, images or starting weights lies here" in said
    )
    assert content(out) == there
    shutil.rmtree(images)
    (tmp_path / "away").rename(images)
    one = next(images.rglob("*.png"))
    kept = one.read_bytes()
    shutil.copy(next(second.rglob("*.png")), one)
    said = sentence(cases.given(words, out, cwd=tmp_path))
    assert "other options, images" in said, "one is another"
    assert content(out) == there

    one.write_bytes(kept)
    assert cases.given(words, out, cwd=tmp_path).rc == 0
    assert content(out) == whole


IN_ITS_FILE = """
import kedge.data.table
kedge.data.table.SMALL = 0
def remove(path):
    os.remove("packed.images")
"""


def test_packed_images_may_be_deleted_while_they_are_trained_on(
    cases: Cases, first: Path, tmp_path: Path
) -> None:
    packed = ["data", "pack", str(first), "--out", "packed.images"]
    assert cases.ready.kedge(*packed, cwd=tmp_path).rc == 0
    words = ["train", "packed.images", "--width", "4", *QUICK]
    files = []
    for at in (0, 1):  # never, and when there is a first state
        out = tmp_path / f"out-{at}"
        before = watch(out, at, do="remove", events=["os.rename"], named=PARTS[STATE])
        ended = cases.given(words, out, IN_ITS_FILE + before, tmp_path)
        assert ended.rc == 0, ended.err
        assert (tmp_path / "packed.images").exists() == (at == 0)
        files.append(content(out))
    assert files[0] == files[1]


# ── two at once ──────────────────────────────────────────────────────────────────────────────

ANOTHER = """
import os, sys, time, kedge.cli
if (other := os.fork()) == 0:
    sys.argv = {words!r}
    kedge.cli.main()
    os._exit(0)
with open({told!r}, "w") as file:
    file.write(str(other))
while not os.path.exists({state!r}):
    time.sleep(0.01)
"""


def test_second_process_is_told_and_the_first_goes_on(cases: Cases, tmp_path: Path) -> None:
    words, whole = cases(ONE).words, cases(ONE).files
    long = [*words, "--epochs", "100000", "--out", str(tmp_path / "out" / MODEL)]
    told, state = tmp_path / "told", tmp_path / "out" / STATE
    code = ANOTHER.format(words=["kedge", *long], told=str(told), state=str(state))
    try:
        said = sentence(cases.ready.kedge(*long, cwd=cases.folder, first=code))
        assert "another kedge process is working here" in said
        before, end = epochs(state), time.monotonic() + TIMEOUT
        while epochs(state) == before:
            assert time.monotonic() < end, "the first has stopped"
            time.sleep(0.01)
    finally:
        os.kill(int(told.read_text()), signal.SIGKILL)
    assert tool.damaged(tmp_path / "out") == []
    state.unlink()
    assert cases.given(words, tmp_path / "out").rc == 0
    assert content(tmp_path / "out") == whole


# ── numbers that are none ────────────────────────────────────────────────────────────────────

SPOILT = """
import math, torch, kedge.training.step
step, calls = kedge.training.step.TrainStep.__call__, 0
def spoil(self, *args):
    global calls
    losses, calls = step(self, *args), calls + 1
    if calls == {at}:
        {how}
    return losses
kedge.training.step.TrainStep.__call__ = spoil
"""
SPOIL = {
    "loss": ("losses = losses * math.nan", "the loss is not a number any more"),
    "weights": (
        "next(self.student.embedding.parameters()).data.view(-1)[0] = math.inf",
        "some weights are infinite or no numbers any more",
    ),
    "statistics": (
        "[b.fill_(math.inf) for n, b in self.student.embedding.named_buffers() if 'var' in n]",
        "some weights are infinite or no numbers any more",
    ),
    "features": (
        "[w.data.fill_(1e38) for w in self.student.embedding.parameters()]",
        "some features are infinite or no numbers any more",
    ),
    "cross-entropy": ("losses = losses * 1e9", "far worse than that of guessing"),
}


@pytest.mark.parametrize("what", SPOIL)
def test_a_round_that_diverges_says_what_to_do_and_loses_nothing(
    what: str, cases: Cases, tmp_path: Path
) -> None:
    """In the last step of the second of three epochs, of two steps each."""
    words = cases("update, ridge, FT").words
    how, why = SPOIL[what]
    base = Path(words[1]).parent
    before = content(base)
    said = sentence(cases.given(words, tmp_path, SPOILT.format(at=4, how=how)))
    assert said.startswith("Round 1 (FT) diverged in epoch 2: ")
    assert why in said
    assert "Start again with a lower --lr, such as 0.0001, and another --out" in said
    assert "the same command with --epochs 1 " in said
    assert content(base) == before, "the model that was given"
    assert list(content(tmp_path)) == [STATE]
    assert epochs(tmp_path / STATE) == 1, "the last good state"


def test_what_is_said_of_a_round_that_diverged_helps(cases: Cases, tmp_path: Path) -> None:
    """A lower rate, and for those who want what was learned before it, fewer epochs."""
    words = cases("update, ridge, FT").words
    how, _ = SPOIL["weights"]
    sentence(cases.given(words, tmp_path, SPOILT.format(at=4, how=how)))
    assert cases.given([*words, "--lr", "1e-4"], tmp_path / "other").rc == 0
    for out in (tmp_path, tmp_path / "never diverged"):
        ended = cases.given([*words, "--epochs", "1"], out)
        assert ended.rc == 0, ended.err
    assert content(tmp_path / "never diverged") == {MODEL: (tmp_path / MODEL).read_bytes()}


@pytest.mark.parametrize("head", tool.HEADS)
def test_an_absurd_learning_rate_never_makes_a_model(
    head: str, cases: Cases, tmp_path: Path
) -> None:
    words = cases(f"train, {head}, for EIML").words
    for lr in ("1e6", "1e12", "1e30", "inf"):
        said = sentence(cases.given([*words, "--episodes", "10", "--lr", lr], tmp_path))
        assert "Round 0 (base) diverged in epoch 1: " in said
        assert said.endswith("Start again with a lower --lr, such as 0.001, and another --out.")
        assert content(tmp_path) == {}


def test_a_stopped_run_may_become_longer_but_not_shorter_than_it_is(
    cases: Cases, tmp_path: Path
) -> None:
    words, whole = cases(ONE).words, cases(ONE).files
    third = watch(tmp_path, 3, events=["os.remove"], named=PARTS[STATE])
    assert cases.given([*words, "--epochs", "5"], tmp_path, third).rc == -signal.SIGKILL
    said = sentence(cases.given([*words, "--epochs", "2"], tmp_path))
    assert f"{STATE}: a stopped run lies here that has done 3 epochs" in said
    assert cases.given(words, tmp_path).rc == 0
    assert content(tmp_path) == whole
