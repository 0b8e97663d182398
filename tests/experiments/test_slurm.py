"""The launcher of SLURM, with stand-ins for its commands: what it asks for, and how jobs end."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from kedge.errors import KedgeError
from kedge.experiments.launchers import parse_launcher
from kedge.experiments.launchers.base import WorkerLost

pytest.importorskip("submitit", reason="pip install 'kedge[slurm]'")

COMMANDS = {  # a job gets the number 7; its state is in a file
    "srun": "exit 0",
    "sbatch": "cp $1 $STANDIN/script && echo Submitted batch job 7",
    "sacct": "printf 'JobID|State|NodeList\\n7|%s|node-3\\n' \"$(cat $STANDIN/state)\"",
    "scancel": "echo $1 > $STANDIN/cancelled",
}


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from submitit.core.core import Job
    from submitit.slurm.slurm import SlurmJob

    folder = tmp_path / "slurm commands"
    folder.mkdir()
    for name, text in COMMANDS.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    monkeypatch.setenv("STANDIN", str(tmp_path))
    monkeypatch.setattr(Job, "_results_timeout_s", 0)  # of the result of a job that has ended
    SlurmJob.watcher.clear()  # jobs of other tests have the same number
    return tmp_path


def test_job_asks_for_what_the_option_says(slurm: Path) -> None:
    launcher = parse_launcher("slurm:big gpus=2 cpus=8 hours=1.5 memory=32")
    launcher.open(slurm)
    worker = launcher.start(["folder", "0", "IDA"], 0)
    worker.stop()
    script = (slurm / "script").read_text()
    for line in ("partition=big", "gpus-per-node=2", "cpus-per-task=8", "time=90", "mem=32GB"):
        assert f"#SBATCH --{line}\n" in script
    assert sys.executable in script
    assert (slurm / "cancelled").read_text() == "7\n"
    assert (slurm / "slurm").stat().st_mode & 0o77 == 0  # pickles are read there


@pytest.mark.parametrize(
    ("state", "error", "words"),
    [
        ("NODE_FAIL", WorkerLost, "7 ended as NODE_FAIL"),
        ("OUT_OF_MEMORY", WorkerLost, "OUT_OF_MEMORY"),
        ("CANCELLED by 1000", KedgeError, "7 was cancelled"),
    ],
)
def test_job_without_a_result_is_lost_unless_it_was_cancelled(
    slurm: Path, state: str, error: type[Exception], words: str
) -> None:
    (slurm / "state").write_text(state)
    launcher = parse_launcher("slurm:big")
    launcher.open(slurm)
    with pytest.raises(error, match=words):
        list(launcher.start(["folder", "0", "IDA"], 0).lines())


def test_submission_that_slurm_refuses_is_an_error(slurm: Path) -> None:
    refuse = "echo 'sbatch: error: invalid partition specified: big' >&2; exit 1"
    (slurm / "slurm commands" / "sbatch").write_text(f"#!/bin/sh\n{refuse}\n")
    launcher = parse_launcher("slurm:big")
    launcher.open(slurm)
    with pytest.raises(KedgeError, match=r"slurm:big: .*invalid partition"):
        launcher.start(["folder", "0", "IDA"], 0)


def test_machine_without_slurm_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(KedgeError, match=r"--on slurm:big: .*srun"):
        parse_launcher("slurm:big").open(tmp_path)
