"""Several jobs of an experiment at the same time give what they give one after the other."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kedge.experiments import jobs

BENCH = shlex.split("bench drawings --width 4 --n-way 3 --n-shot 2 --n-query 3")
SHORT = shlex.split("--epochs 2 --episodes 3 --val-episodes 5 --eval-episodes 10")
MANY = shlex.split("--epochs 1000 --episodes 3 --val-episodes 5 --eval-episodes 10")


PLAIN = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
NEEDS_LINUX = pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs Linux")


def kedge(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "kedge", *map(str, words)]


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        kedge(*words), env=PLAIN, capture_output=True, text=True, timeout=300, check=False
    )


def numbers(folder: Path) -> dict[str, Any]:
    """A record without when and how fast it was made."""
    record = json.loads((folder / "record.json").read_text())
    for each in record["runs"]:
        for key in ("seconds", "peak_memory_mb", "environment"):
            del each[key]
    return record


def test_the_record_is_the_same_to_the_last_bit(tmp_path: Path) -> None:
    how = [*BENCH, *SHORT, "--methods", "NU", "FT", "EIML exemplars=4"]
    one, several = tmp_path / "one", tmp_path / "several"
    assert run(*how, "--out", one).returncode == 0
    ended = run(*how, "--jobs", "2", "--out", several)
    assert ended.returncode == 0, ended.stderr
    assert numbers(several) == numbers(one)
    for line in ("seed 0, round 0, base", "seed 0, round 1, FT", "round 1, EIML exemplars=4"):
        assert line in ended.stderr
    runs = json.loads((several / "record.json").read_text())["runs"]
    assert {each["environment"].get("jobs") for each in runs} == {"2"}  # what is only tested, too
    assert not list(several.rglob("*.part"))


def test_no_module_of_the_current_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "statistics.py").write_text("raise SystemExit('not this one')")
    words = map(str, (*BENCH, *SHORT, "--methods", "FT", "--jobs", "2"))
    command = [sys.executable, "-P", "-m", "kedge", *words]  # as the command itself does it
    ended = subprocess.run(
        command, env=PLAIN, capture_output=True, text=True, timeout=300, cwd=tmp_path, check=False
    )
    assert ended.returncode == 0, ended.stderr


def test_the_error_of_a_job_is_that_of_the_command(tmp_path: Path) -> None:
    how = [*BENCH, *SHORT, "--methods", "FT", "IDA", "--out", tmp_path, "--jobs", "2"]
    ended = run(*how, "--lr", "1e30")
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("kedge: Round 0 (base) diverged in epoch 1: ")
    assert last.endswith(".")
    assert "--jobs is 0" in run(*how, "--jobs", "0").stderr


def at_work(folder: Path) -> dict[tuple[str, str], int]:
    """The processes that have a job of the experiment in a folder, by its seed and method."""
    found = {}
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = process.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue  # it has just ended
        if "kedge.experiments.jobs" in words and str(folder) in words:
            _, seed, method, *_ = words[words.index("kedge.experiments.jobs") + 1 :]
            found[seed, method] = int(process.parent.name)
    return found


def wait_until(true: Callable[[], bool], folder: Path) -> None:
    until = time.monotonic() + 120
    while not true():
        assert time.monotonic() < until, at_work(folder)
        time.sleep(0.05)


@NEEDS_LINUX
def test_a_method_waits_for_nothing_but_the_base_of_its_seed(tmp_path: Path) -> None:
    """The base of seed 1 is held up, and at last killed; the same command goes on from there."""
    how = [*BENCH, *SHORT, "--methods", "FT", "PAR", "--seeds", "0", "1"]
    one, several = tmp_path / "one", tmp_path / "several"
    assert run(*how, "--out", one).returncode == 0
    how += ["--jobs", "2", "--out", str(several)]
    process = subprocess.Popen(kedge(*how), env=PLAIN, stderr=subprocess.PIPE, text=True)
    base = "1", "base"
    wait_until(lambda: base in at_work(several), several)
    held_up = at_work(several)[base]
    os.kill(held_up, signal.SIGSTOP)
    try:
        done = [several / f"seed-{job}/round-1/run.json" for job in ("0/FT", "0/PAR", "1/PAR")]
        wait_until(lambda: all(path.exists() for path in done), several)
        assert sorted(path.name for path in (several / "seed-1").iterdir()) == ["PAR", "split.json"]
    finally:
        os.kill(held_up, signal.SIGKILL)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "The process that trained base of seed 1 has ended with -9; the same command" in said
    in_turn = re.findall(r"^seed (\d), round \d, (\w+)", said, re.MULTILINE)
    assert in_turn[:3] == [("0", "base"), ("0", "FT"), ("0", "PAR")]
    assert run(*how).returncode == 0
    assert numbers(several) == numbers(one)


@pytest.mark.parametrize(
    ("gpus", "visible", "expected"),
    [
        (0, None, {"OMP_NUM_THREADS": ["2", "2", "2"]}),
        (2, None, {"CUDA_VISIBLE_DEVICES": ["0", "1", "0"]}),
        (2, "3,5", {"CUDA_VISIBLE_DEVICES": ["3", "5", "3"]}),
    ],
)
def test_gpus_are_dealt_out_in_turn_and_cores_are_shared_out(
    gpus: int,
    visible: str | None,
    expected: dict[str, list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    given: list[dict[str, str]] = []

    class Started(subprocess.Popen):
        def __init__(self, *_: object, env: dict[str, str], **__: object) -> None:
            given.append(env)
            self.returncode = 0

    monkeypatch.setattr(subprocess, "Popen", Started)
    for place in range(3):
        jobs._start(tmp_path, jobs.Job(0, "FT"), place, 3)
    for name, values in expected.items():
        assert [env[name] for env in given] == values


@NEEDS_LINUX
@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGTERM])
def test_whoever_works_for_another_ends_with_it(tmp_path: Path, kill: int) -> None:
    def wait_for(n: int) -> None:
        wait_until(lambda: len(at_work(tmp_path)) == n, tmp_path)

    how = [*BENCH, *MANY, "--methods", "NU", "--seeds", "0", "1", "--out", tmp_path, "--jobs", "2"]
    process = subprocess.Popen(kedge(*how), stderr=subprocess.PIPE, text=True)
    wait_for(2)
    process.send_signal(kill)
    _, said = process.communicate(timeout=60)
    assert process.returncode == (-kill if kill == signal.SIGKILL else 130)
    assert kill == signal.SIGKILL or said.endswith("the same command continues from here.\n")
    wait_for(0)
