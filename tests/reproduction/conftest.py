"""The committed records, read once: that takes seconds."""

from __future__ import annotations

import pytest
from reproduction.claims import Evidence


@pytest.fixture(scope="session")
def evidence() -> Evidence:
    return Evidence()
