"""Several jobs of an experiment at the same time give what they give one after the other."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

BENCH = shlex.split("bench drawings --width 4 --n-way 3 --n-shot 2 --n-query 3")
SHORT = shlex.split("--epochs 2 --episodes 3 --val-episodes 5 --eval-episodes 10")
MANY = shlex.split("--epochs 1000 --episodes 3 --val-episodes 5 --eval-episodes 10")


def kedge(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "kedge", *map(str, words)]


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        kedge(*words), env=environment, capture_output=True, text=True, timeout=300, check=False
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


def test_the_error_of_a_job_is_that_of_the_command(tmp_path: Path) -> None:
    how = [*BENCH, *SHORT, "--methods", "FT", "IDA", "--out", tmp_path, "--jobs", "2"]
    ended = run(*how, "--lr", "1e30")
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("kedge: Round 0 (base) diverged in epoch 1: ")
    assert last.endswith(".")
    assert "--jobs is 0" in run(*how, "--jobs", "0").stderr


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs Linux")
@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGTERM])
def test_whoever_works_for_another_ends_with_it(tmp_path: Path, kill: int) -> None:
    def at_work() -> list[int]:
        found = []
        for process in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = process.read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue  # it has just ended
            if "kedge.jobs" in words and str(tmp_path) in words:
                found.append(int(process.parent.name))
        return found

    def wait_for(n: int) -> None:
        until = time.monotonic() + 60
        while len(at_work()) != n:
            assert time.monotonic() < until, at_work()
            time.sleep(0.1)

    how = [*BENCH, *MANY, "--methods", "NU", "--seeds", "0", "1", "--out", tmp_path, "--jobs", "2"]
    process = subprocess.Popen(kedge(*how), stderr=subprocess.PIPE, text=True)
    wait_for(2)
    process.send_signal(kill)
    _, said = process.communicate(timeout=60)
    assert process.returncode == (-kill if kill == signal.SIGKILL else 130)
    assert kill == signal.SIGKILL or said.endswith("the same command continues from here.\n")
    wait_for(0)
