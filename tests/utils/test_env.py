"""Where a run was done and what it took."""

from __future__ import annotations

import getpass
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from kedge.utils.env import environment

Ready = Any  # of conftest.py, which cannot be imported

# A process of its own: what the tests before have used would hide 200 MB.
PEAKS = """
import json, numpy
from kedge.utils.env import forget_peak_memory, peak_memory_mb
before = peak_memory_mb()
many = numpy.ones(25_000_000)  # 200 MB, every page touched
during = peak_memory_mb()
del many
after = peak_memory_mb()
forget_peak_memory()
print(json.dumps([before, during, after, peak_memory_mb()]))
"""


@pytest.fixture(scope="module")
def peaks(ready: Ready) -> list[float]:
    ended = ready(PEAKS)
    assert ended.rc == 0, ended.err
    return [float(number) for number in ended.out.strip("[]\n").split(",")]


def test_the_peak_is_what_was_needed_at_once(peaks: list[float]) -> None:
    before, during, after, _ = peaks
    assert 180 < during - before < 220
    assert after == pytest.approx(during, abs=5), "a peak stays when the memory is given back"


def test_a_forgotten_peak_is_forgotten(peaks: list[float]) -> None:
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("this system remembers the peak of the whole process")
    before, during, _, forgotten = peaks
    assert forgotten < during - 150
    assert forgotten == pytest.approx(before, abs=50)


def test_the_environment_tells_the_machine_but_not_whose_it_is() -> None:
    found = environment()
    assert set(found) >= {"date", "commit", "python", "torch", "platform", "cpu", "cores", "gpu"}
    assert all(isinstance(value, str) and value for value in found.values())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", found["date"])
    words = " ".join(found.values())
    assert not re.search(r"(^|\s)/\w", words), "a path"
    for private in (str(Path.home()), str(Path(__file__).parents[2]), socket.gethostname()):
        assert private not in words
    assert getpass.getuser() not in re.split(r"\W+", words)
