"""The environment of a run and its peak memory."""

from __future__ import annotations

import getpass
import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from kedge.utils.env import environment

Ready = Any  # of conftest.py, which cannot be imported

# In a fresh process, since memory of other tests would hide 200 MB.
PEAKS = """
import json, numpy
from kedge.utils.env import reset_peak_memory, peak_memory_mb
before = peak_memory_mb()
many = numpy.ones(25_000_000)  # 200 MB, every page touched
during = peak_memory_mb()
del many
after = peak_memory_mb()
reset_peak_memory()
print(json.dumps([before, during, after, peak_memory_mb()]))
"""


@pytest.mark.slow
def test_peak_memory_is_measured_and_reset(ready: Ready) -> None:
    ended = ready(PEAKS)
    assert ended.rc == 0, ended.err
    before, during, after, reset = json.loads(ended.out)
    assert 180 < during - before < 220
    assert after == pytest.approx(during, abs=5), "the peak stays when memory is freed"
    if Path("/proc/self/clear_refs").exists():
        assert reset == pytest.approx(before, abs=50)


def test_environment_describes_the_machine_but_not_its_owner() -> None:
    found = environment()
    assert set(found) >= {"date", "commit", "python", "torch", "platform", "cpu", "cores", "gpu"}
    assert all(isinstance(value, str) and value for value in found.values())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", found["date"])
    words = " ".join(found.values())
    assert not re.search(r"(^|\s)/\w", words), "a path"
    for private in (str(Path.home()), str(Path(__file__).parents[2]), socket.gethostname()):
        assert private not in words
    assert getpass.getuser() not in re.split(r"\W+", words)
