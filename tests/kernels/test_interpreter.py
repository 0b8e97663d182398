"""The tests of the kernels, without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

TESTS = Path(__file__).with_name("test_kernels.py")


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.skipif(torch.cuda.is_available(), reason="the tests run on the GPU")
def test_kernels_in_the_interpreter() -> None:
    """In a process of its own, since Triton must not have been imported before."""
    command = [sys.executable, "-m", "pytest", "-n", "0", "-x", "-v", str(TESTS)]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "passed" in done.stdout
    assert "skipped" not in done.stdout
