"""Jobs of an experiment at the same time: their order, their failures, and the same bits."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from kedge.errors import KedgeError
from kedge.experiments import jobs
from kedge.experiments.jobs import BEGUN, DONE, Job, run_jobs
from kedge.experiments.launchers import local, parse_launcher
from kedge.experiments.launchers.base import Launcher, Worker, WorkerLost

# ── workers that only pretend to work ────────────────────────────────────────────────────────


class FakeWorker(Worker):
    """Prints some lines, and ends with a code or is lost."""

    def __init__(self, printed: list[str], end: int | Exception) -> None:
        self.printed, self.end = printed, end

    def lines(self) -> Generator[str, None, int]:
        yield from self.printed
        if isinstance(self.end, Exception):
            raise self.end
        return self.end

    def stop(self) -> None: ...


class FakeLauncher(Launcher):
    """Starts fake workers; those of one job in turn print and end as `ends` says."""

    def __init__(self, n_workers: int, **ends: list[tuple[list[str], int | Exception]]) -> None:
        self.n_workers, self.ends = n_workers, ends
        self.started: list[str] = []
        self.closed = False

    def start(self, words: Sequence[str], slot: int) -> Worker:
        assert 0 <= slot < self.n_workers
        name = f"{words[2]}{words[1]}"  # method and seed
        self.started.append(name)
        ends = self.ends.get(name)
        return FakeWorker(*ends.pop(0)) if ends else FakeWorker([BEGUN], 0)

    def close(self) -> None:
        self.closed = True


BASES = [Job(seed, "base") for seed in (0, 1)]
METHODS = [Job(seed, "FT", after=BASES[seed]) for seed in (0, 1)]
ALONE = [Job(seed, "PAR") for seed in (0, 1)]
LOST = WorkerLost("its node is gone")


def run(launcher: FakeLauncher, *all_jobs: Job) -> int:
    """Run the jobs; returns the number of episodes that were reported."""
    ticks: list[int] = []
    try:
        run_jobs(Path("folder"), all_jobs, launcher, ticks.append)
    finally:
        assert launcher.closed
    return sum(ticks)


@pytest.mark.parametrize("n_workers", [1, 2, 9])
def test_methods_wait_for_the_base_of_their_seed(n_workers: int) -> None:
    printed = [BEGUN, f"{DONE}3", "a note", f"{DONE}4"]
    launcher = FakeLauncher(n_workers, base0=[(printed, 0)], PAR1=[([BEGUN, f"{DONE}5"], 0)])
    assert run(launcher, *METHODS, *BASES, *ALONE) == 12
    order = launcher.started
    assert sorted(order) == ["FT0", "FT1", "PAR0", "PAR1", "base0", "base1"]
    for seed in (0, 1):
        assert order.index(f"base{seed}") < order.index(f"FT{seed}")
    assert order[0] == "base0"


def test_error_of_a_worker_is_the_error_of_the_command() -> None:
    launcher = FakeLauncher(2, base0=[([BEGUN, "kedge: Round 0 diverged.", "More."], 1)])
    with pytest.raises(KedgeError, match=r"^Round 0 diverged\. More\.$"):
        run(launcher, BASES[0], METHODS[0])
    assert launcher.started == ["base0"]
    with pytest.raises(KedgeError, match=r"seed 0, base ended with code 3.*same command"):
        run(FakeLauncher(2, base0=[([BEGUN], 3)]), BASES[0], METHODS[0])


@pytest.mark.parametrize("lost", [LOST, -9])
def test_job_of_a_lost_worker_is_taken_up_by_another(lost: int | Exception) -> None:
    """What it had done is not counted twice, also where a scheduler starts it again by itself."""
    ends = [
        ([BEGUN, f"{DONE}3", BEGUN, f"{DONE}4"], lost),
        ([BEGUN, f"{DONE}4", f"{DONE}2"], lost),
        ([BEGUN, f"{DONE}6", f"{DONE}1"], 0),
    ]
    launcher = FakeLauncher(1, base0=ends)
    assert run(launcher, BASES[0], METHODS[0]) == 7
    assert launcher.started == ["base0", "base0", "base0", "FT0"]


def test_job_that_always_loses_its_worker_is_an_error() -> None:
    """Three times without an episode more; each worker begins with those before."""
    ends = [([BEGUN, f"{DONE}{n}"], LOST) for n in (1, 2, 2, 2, 2)]
    launcher = FakeLauncher(1, base0=ends)
    with pytest.raises(KedgeError, match=r"seed 0, base was lost 3 times .*its node is gone"):
        run(launcher, BASES[0])
    assert launcher.started == ["base0"] * 4


def test_result_that_is_not_in_the_folder_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machines do not share the folder."""
    monkeypatch.setattr(jobs, "VISIBLE_WITHIN", 0.1)
    with pytest.raises(KedgeError, match=r"run\.json: .* same path"):
        run(FakeLauncher(1), Job(0, "base", result=tmp_path / "run.json"))


@pytest.mark.parametrize(
    ("n_gpus", "visible", "name", "expected"),
    [
        (0, None, "OMP_NUM_THREADS", ["2", "2", "2"]),
        (2, None, "CUDA_VISIBLE_DEVICES", ["0", "1", "0"]),
        (2, "3,5", "CUDA_VISIBLE_DEVICES", ["3", "5", "3"]),
    ],
)
def test_local_workers_take_gpus_in_turn_and_share_cores(
    n_gpus: int,
    visible: str | None,
    name: str,
    expected: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    started: list[dict[str, str]] = []
    monkeypatch.setattr(local, "start_process", lambda *_, **given: started.append(given))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: n_gpus)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 6)
    launcher = parse_launcher("local:3")
    for slot in range(3):
        launcher.start(["folder", str(slot), "PAR", "3"], slot)
    assert [given[name] for given in started] == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("pbs:x", "no 'pbs'.*local, slurm, ray"),
        ("local:0", " local is 0"),
        ("local:x", " local:x: give a number"),
        (f"local:{10**20}", " local is 1000"),
        ("local:2 gpus=1", "has no options"),
        ("slurm", "name the partition"),
        ("slurm:gpu gpu=1", "knows the options cpus, gpus, hours, memory"),
        ("slurm:gpu cpus=0", "cpus is 0"),
        ("slurm:gpu hours=x", "hours must be a number"),
        ("ray", "give the address"),
        ("ray:ray://host:10001", "give the address"),
        ("ray:auto gpus=-1", "gpus is -1"),
    ],
)
def test_launchers_that_make_no_sense(text: str, words: str) -> None:
    with pytest.raises(KedgeError, match=f"^--on.*{words}"):
        parse_launcher(text)


# ── real workers ─────────────────────────────────────────────────────────────────────────────

BENCH = shlex.split("bench drawings --width 4 --n-way 3 --n-shot 2 --n-query 3")
SHORT = shlex.split("--epochs 2 --episodes 3 --val-episodes 5 --eval-episodes 10")
LONG = shlex.split("--epochs 1000 --episodes 3 --val-episodes 5 --eval-episodes 10")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def start(*words: str | Path, cwd: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-m", "kedge", *map(str, words)]
    return subprocess.Popen(
        command, env=ENVIRONMENT, cwd=cwd, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, err = process.communicate(timeout=300)
    return process.returncode, err


def numbers(folder: Path) -> dict[str, Any]:
    """A record without when and how fast it was made."""
    record = json.loads((folder / "record.json").read_text())
    for each in record["runs"]:
        for key in ("seconds", "peak_memory_mb", "environment"):
            del each[key]
    return record


@pytest.mark.slow
def test_record_is_the_same_to_the_last_bit(tmp_path: Path) -> None:
    """Also where a file of the current folder has the name of a standard module."""
    (tmp_path / "statistics.py").write_text("raise SystemExit('not this one')")
    how = [*BENCH, *SHORT, "--methods", "NU", "FT", "EIML exemplars=4"]
    assert finish(start(*how, "--out", "one", cwd=tmp_path))[0] == 0
    two = ("--on", "local:2", "--tensorboard", "events", "--out", "two")
    rc, err = finish(start(*how, *two, cwd=tmp_path))
    assert rc == 0, err
    assert numbers(tmp_path / "two") == numbers(tmp_path / "one")
    for line in ("seed 0, round 0, base", "seed 0, round 1, FT", "round 1, EIML exemplars=4"):
        assert line in err
    logged = {str(file.parent.relative_to(tmp_path)) for file in tmp_path.rglob("*tfevents*")}
    methods = ("base/round-0", "FT/round-1", "EIML_exemplars=4/round-1")
    assert logged == {f"events/seed-0/{name}" for name in methods}
    runs = json.loads((tmp_path / "two" / "record.json").read_text())["runs"]
    assert {each["environment"].get("jobs") for each in runs} == {"2"}
    rc, err = finish(start(*how, "--lr", "1e30", "--on", "local:2", "--out", "three", cwd=tmp_path))
    assert rc == 1
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("kedge: Round 0 (base) diverged in epoch 1: ")


def workers_of(folder: Path) -> list[str]:
    """Command lines of the worker processes of an experiment."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = process.read_bytes().decode(errors="replace").split("\0")
        except OSError:  # it has just ended
            continue
        if "kedge.experiments.worker" in words and str(folder) in words:
            found.append(" ".join(words))
    return found


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs Linux")
@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_their_parent(tmp_path: Path, kill: signal.Signals) -> None:
    out = tmp_path / "run"
    how = [*BENCH, *LONG, "--methods", "NU", "--seeds", "0", "1", "--out", out, "--on", "local:2"]
    process = start(*how, cwd=tmp_path)
    wait_until(lambda: len(workers_of(out)) == 2)
    process.send_signal(kill)
    rc, err = finish(process)
    assert rc == (-kill if kill == signal.SIGKILL else 130)
    assert kill == signal.SIGKILL or err.endswith(
        "continues from the last saved epoch, if there is one.\n"
    )
    wait_until(lambda: not workers_of(out))
