"""Commands as processes that lack something: a stream, their folder, threads, memory."""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kedge.data.drawings import load_drawings
from kedge.models.model import Model
from kedge.utils.process import shortage

pytestmark = pytest.mark.slow
Kedge = Any  # of conftest.py
TIMEOUT = 600  # seconds, on a machine that is busy with other things
MODEL = Path(__file__).parents[1] / "golden" / "ida.kedge"
QUICK = "--n-way 2 --n-shot 1 --n-query 2 --epochs 1 --episodes 2 --val-episodes 4 --width 2"
DROP_FROM_BOUNDING_SET, SYS_ADMIN, SYS_RESOURCE = 24, 21, 24  # of Linux's prctl.h, capability.h


def run(
    kedge: Kedge, *args: Any, cwd: Path, shell: str = "", before: Callable[[], None] | None = None
) -> subprocess.CompletedProcess[str]:
    """The command, started by a shell if there are redirections."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    environment.pop("OMP_NUM_THREADS", None)
    return subprocess.run(
        [*(["sh", "-c", f'exec "$0" "$@" {shell}'] if shell else []), kedge.path, *map(str, args)],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        preexec_fn=before,
    )


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&- <&-"])
def test_closed_streams(kedge: Kedge, first: Path, tmp_path: Path, closed: str) -> None:
    """The model is written, and nothing that a library prints goes into it."""
    ended = run(
        kedge, "train", first, "--out", "m.kedge", *QUICK.split(), cwd=tmp_path, shell=closed
    )
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr
    assert len(Model.load(tmp_path / "m.kedge").classes) == 6
    for args in (["show", "m.kedge", "--json"], ["--help"]):
        assert run(kedge, *args, cwd=tmp_path, shell=closed).returncode == 0, args
    assert run(kedge, "show", "none.kedge", cwd=tmp_path, shell=closed).returncode == 1


def test_deleted_folder(kedge: Kedge, tmp_path: Path) -> None:
    ended = run(kedge, "show", MODEL, cwd=tmp_path, before=lambda: os.rmdir(tmp_path))
    tmp_path.mkdir()
    assert ended.returncode == 1
    assert "folder" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def without_threads() -> None:
    """Let no thread be started; the limit has no effect on root."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None)
        for capability in (SYS_ADMIN, SYS_RESOURCE):
            libc.prctl(DROP_FROM_BOUNDING_SET, capability, 0, 0, 0)
        os.setresuid(65534, 0, 0)
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))


@pytest.mark.skipif(sys.platform != "linux", reason="limits of other systems differ")
def test_no_threads(kedge: Kedge, first: Path, tmp_path: Path) -> None:
    """OpenMP would end the process without a word of kedge's."""
    shown = run(kedge, "show", MODEL, cwd=tmp_path, before=without_threads)
    assert shown.returncode == 0, shown.stderr
    load_drawings().subset(torch.arange(300)).save(tmp_path / "few.images")  # needs no decoder
    train = ["train", "few.images", "--out", "m", *QUICK.split()]
    for args in (["data", "inspect", first], train):
        ended = run(kedge, *args, cwd=tmp_path, before=without_threads)
        assert "Traceback" not in ended.stderr
        assert "kedge: warning: no further thread" in ended.stderr
        assert ended.returncode == 0 or "ulimit -u" in ended.stderr.splitlines()[-1]


@pytest.mark.parametrize("megabytes", [100, 400, 900])
@pytest.mark.skipif(sys.platform != "linux", reason="limits of other systems differ")
def test_little_address_space(kedge: Kedge, tmp_path: Path, megabytes: int) -> None:
    limit = (megabytes << 20, megabytes << 20)

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, limit)

    command = ["train", "drawings", "--out", "m.kedge", "--episodes", "2", "--epochs", "1"]
    ended = run(kedge, *command, cwd=tmp_path, before=limited)
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    assert "memory" in ended.stderr.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def test_what_is_lacking_is_told_apart() -> None:
    """Also by the cause of an error."""
    wrapped = ImportError("cannot import")
    wrapped.__cause__ = OSError("libx.so: failed to map segment from shared object")
    assert "memory" in shortage(wrapped)
    assert "memory" in shortage(MemoryError())
    assert "files" in shortage(OSError(24, "Too many open files"))
    assert "threads" in shortage(RuntimeError("can't start new thread"))
    assert shortage(ValueError("wrong")) == ""


WARNING = """
import sys, warnings, kedge.cli, kedge.cli.show
def warn(self, console):
    warnings.warn("odd numbers\\x1b[2J (Triggered internally at /src/x.cpp:1.)", stacklevel=1)
    console.print("shown")
kedge.cli.show.Show.run = warn
sys.argv = ["kedge", "show", "m.kedge"]
kedge.cli.main()
"""


def test_warnings_of_libraries_are_one_line_without_paths(tmp_path: Path) -> None:
    given = {k: v for k, v in os.environ.items() if k != "PYTHONWARNINGS"}
    program = [sys.executable, "-c", WARNING]
    ended = subprocess.run(program, env=given, capture_output=True, text=True, timeout=TIMEOUT)
    assert ended.stdout == "shown\n"
    assert ended.stderr == "kedge: warning: odd numbers\\x1b[2J\n"
