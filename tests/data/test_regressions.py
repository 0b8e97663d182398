"""Inputs that tools/fuzz has found, each of which caused what no input may."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.fuzz.bounds import Bounds
from tools.fuzz.target import load_target

FOUND = Path(__file__).with_name("regressions")
SECONDS, N_BYTES = 5.0, 1 << 30


@pytest.mark.parametrize(
    "path", sorted(FOUND.glob("*/*")), ids=lambda path: f"{path.parent.name}-{path.name}"
)
@pytest.mark.usefixtures("unchecked")
def test_found_inputs_are_read_or_refused(path: Path, tmp_path: Path) -> None:
    target = load_target(path.parent.name)
    bounds = Bounds(SECONDS, N_BYTES, target.children)
    assert bounds.check(lambda: target.run(tmp_path, path.read_bytes())) is None
