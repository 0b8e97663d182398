"""Jobs of an experiment at the same time: their order, their failures, and the same bits."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from kedge.errors import KedgeError
from kedge.experiments import jobs
from kedge.experiments.jobs import DONE, Job, run_jobs

# ── workers that only pretend to work ────────────────────────────────────────────────────────


class FakeWorker(subprocess.Popen):
    """A process that has printed these lines and ended with this code."""

    started: list[tuple[str, dict[str, str]]]
    output: dict[str, tuple[list[str], int]]

    def __init__(self, args: list[str], env: dict[str, str], **_: object) -> None:
        self.job = "/".join(args[-3:-1])  # seed and method
        self.started.append((self.job, env))
        lines, self.returncode = self.output.get(self.job, ([], 0))
        self.stdout = [f"{line}\n" for line in lines]

    def __enter__(self) -> FakeWorker:
        return self

    def __exit__(self, *_: object) -> None: ...

    def __del__(self) -> None: ...

    def wait(self, timeout: float | None = None) -> int:
        return self.returncode

    def kill(self) -> None: ...


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> type[FakeWorker]:
    monkeypatch.setattr(FakeWorker, "started", [], raising=False)
    monkeypatch.setattr(FakeWorker, "output", {}, raising=False)
    monkeypatch.setattr(jobs.subprocess, "Popen", FakeWorker)
    return FakeWorker


BASES = [Job(seed, "base") for seed in (0, 1)]
METHODS = [Job(seed, "FT", after=BASES[seed]) for seed in (0, 1)]
ALONE = [Job(seed, "PAR") for seed in (0, 1)]


def run(all_jobs: Iterable[Job], n_workers: int) -> int:
    """Run the jobs; returns the number of episodes that were reported."""
    ticks: list[int] = []
    run_jobs(Path("folder"), all_jobs, n_workers, ticks.append)
    return sum(ticks)


@pytest.mark.parametrize("n_workers", [1, 2, 9])
def test_methods_wait_for_the_base_of_their_seed(workers: type[FakeWorker], n_workers: int) -> None:
    workers.output = {"0/base": ([f"{DONE}3", "a note", f"{DONE}4"], 0), "1/PAR": ([f"{DONE}5"], 0)}
    assert run([*METHODS, *BASES, *ALONE], n_workers) == 12
    order = [job for job, _ in workers.started]
    assert sorted(order) == ["0/FT", "0/PAR", "0/base", "1/FT", "1/PAR", "1/base"]
    for seed in (0, 1):
        assert order.index(f"{seed}/base") < order.index(f"{seed}/FT")
    assert order[0] == "0/base"


def test_error_of_a_worker_is_the_error_of_the_command(workers: type[FakeWorker]) -> None:
    workers.output = {"0/base": (["kedge: Round 0 diverged.", "More."], 1)}
    with pytest.raises(KedgeError, match=r"^Round 0 diverged\. More\.$"):
        run([BASES[0], METHODS[0]], 2)
    workers.output = {"0/base": ([], -9)}
    with pytest.raises(KedgeError, match=r"base of seed 0 ended with code -9.*same command"):
        run([BASES[0], METHODS[0]], 2)
    assert {job for job, _ in workers.started} == {"0/base"}


@pytest.mark.parametrize(
    ("n_gpus", "visible", "name", "expected"),
    [
        (0, None, "OMP_NUM_THREADS", ["2", "2", "2"]),
        (2, None, "CUDA_VISIBLE_DEVICES", ["0", "1", "0"]),
        (2, "3,5", "CUDA_VISIBLE_DEVICES", ["3", "5", "3"]),
    ],
)
def test_workers_take_gpus_in_turn_and_share_cores(
    n_gpus: int,
    visible: str | None,
    name: str,
    expected: list[str],
    workers: type[FakeWorker],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for each in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"):
        monkeypatch.delenv(each, raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: n_gpus)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 6)
    run([Job(seed, "PAR") for seed in range(3)], 3)
    assert [env[name] for _, env in workers.started] == expected


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
    rc, err = finish(start(*how, "--jobs", "2", "--out", "two", cwd=tmp_path))
    assert rc == 0, err
    assert numbers(tmp_path / "two") == numbers(tmp_path / "one")
    for line in ("seed 0, round 0, base", "seed 0, round 1, FT", "round 1, EIML exemplars=4"):
        assert line in err
    runs = json.loads((tmp_path / "two" / "record.json").read_text())["runs"]
    assert {each["environment"].get("jobs") for each in runs} == {"2"}
    rc, err = finish(start(*how, "--lr", "1e30", "--jobs", "2", "--out", "three", cwd=tmp_path))
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
    how = [*BENCH, *LONG, "--methods", "NU", "--seeds", "0", "1", "--out", out, "--jobs", "2"]
    process = start(*how, cwd=tmp_path)
    wait_until(lambda: len(workers_of(out)) == 2)
    process.send_signal(kill)
    rc, err = finish(process)
    assert rc == (-kill if kill == signal.SIGKILL else 130)
    assert kill == signal.SIGKILL or err.endswith("continues from the last saved epoch.\n")
    wait_until(lambda: not workers_of(out))
