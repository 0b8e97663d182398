"""The scripts of perf/ import each other by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

PERF = Path(__file__).parents[2] / "perf"


@pytest.fixture(autouse=True)
def perf_on_path() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(PERF))
        yield
