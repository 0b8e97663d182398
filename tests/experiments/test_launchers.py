"""Jobs as tasks of a real Ray cluster and of submitit: the record is that of one process, also if
a node or a worker is killed in the middle."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs Linux"),
]
TIMEOUT = 300  # seconds
BENCH = shlex.split(
    "bench drawings --width 4 --n-way 3 --n-shot 2 --n-query 3 --epochs 80 --patience 80 "
    "--episodes 3 --val-episodes 400 --eval-episodes 10 --methods NU FT IDA"
)
KEDGE = "import kedge.cli; kedge.cli.main()"
ON_SUBMITIT = f"""
from kedge.experiments.launchers.slurm import SlurmLauncher
SlurmLauncher.cluster = "local"  # submitit's own, in place of SLURM
{KEDGE}
"""


def start(folder: Path, *words: str, code: str = KEDGE) -> subprocess.Popen[str]:
    """`kedge bench` as a process, with its output in a file."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-P", "-c", code, *BENCH, "--out", str(folder), *words]
    with open(folder.with_suffix(".txt"), "w") as output:
        return subprocess.Popen(
            command, env=environment, cwd=folder.parent, stdout=output, stderr=subprocess.STDOUT
        )


def finish(process: subprocess.Popen[str], folder: Path) -> str:
    rc, output = process.wait(TIMEOUT), folder.with_suffix(".txt").read_text()
    assert rc == 0, output[-3000:]
    return output


def numbers(folder: Path) -> dict[str, Any]:
    """A record without when, where and how fast it was made."""
    record = json.loads((folder / "record.json").read_text())
    for run in record["runs"]:
        for key in ("seconds", "peak_memory_mb", "environment"):
            del run[key]
    return record


def models(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*.kedge")}


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def workers(folder: Path) -> dict[str, int]:
    """The process id of each worker that runs, by its method."""
    found = {}
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes().decode(errors="replace").split("\0")
        except OSError:  # it has just ended
            continue
        if "kedge.experiments.worker" in words and str(folder) in words:
            found[words[words.index(str(folder)) + 2]] = int(file.parent.name)
    return found


def checkpoint(folder: Path, method: str) -> Path:
    return folder / "seed-0" / method / "round-1" / "training.safetensors"


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run in one process."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    finish(start(folder), folder)
    return folder


@pytest.fixture
def cluster() -> Iterator[subprocess.Popen[str]]:
    if find_spec("ray") is None:
        pytest.skip("ray is not installed: pip install 'kedge[ray]'")
    with subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("ray_cluster.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        yield process
        process.communicate(timeout=TIMEOUT)


def test_ray_cluster_that_loses_a_node(
    alone: Path, cluster: subprocess.Popen[str], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    assert cluster.stdin is not None
    assert cluster.stdout is not None
    address = cluster.stdout.readline().strip()
    process = start(folder, "--on", f"ray:{address}")
    wait_until(lambda: all(checkpoint(folder, method).exists() for method in ("FT", "IDA")))
    before = workers(folder)
    cluster.stdin.write("kill\n")
    cluster.stdin.flush()
    assert cluster.stdout.readline() == "killed\n"
    output = finish(process, folder)
    assert set(before) == {"FT", "IDA"}
    assert output.count("its worker was lost (") == 1, output
    assert numbers(folder) == numbers(alone)
    assert models(folder) == models(alone)


def test_submitit_that_loses_a_worker(alone: Path, tmp_path: Path) -> None:
    pytest.importorskip("submitit", reason="pip install 'kedge[slurm]'")
    folder = tmp_path / "run"
    process = start(folder, "--on", "slurm:any cpus=1", code=ON_SUBMITIT)
    wait_until(checkpoint(folder, "FT").exists)
    os.kill(workers(folder)["FT"], signal.SIGKILL)
    output = finish(process, folder)
    assert "seed 0, FT: its worker was lost (it was ended by signal 9)" in output
    assert numbers(folder) == numbers(alone)
    assert models(folder) == models(alone)
