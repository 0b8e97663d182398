"""The tests of the kernels, without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from kedge import kernels

TESTS = Path(__file__).with_name("test_kernels.py")


def test_kernels_are_found_by_an_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial needs gradients, whoever asks first, and its answer is kept."""

    def trial() -> None:
        torch.ones(1, requires_grad=True).sum().backward()

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "hip", None)
    for name in ("_build_norm_act", "_build_pool_act"):
        monkeypatch.setattr(kernels, name, trial)
    kernels._can_be_built.cache_clear()
    try:
        with torch.inference_mode():
            assert kernels.available()
    finally:
        kernels._can_be_built.cache_clear()


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
