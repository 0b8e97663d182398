"""How tools/fuzz divides its time, and what it reads from the logs of its workers."""

from __future__ import annotations

import pytest
from tools.fuzz.__main__ import read_log
from tools.fuzz.parallel import LEAST, divide
from tools.fuzz.target import TARGETS


@pytest.mark.parametrize("n_workers", [1, 2, 15, 16, 40])
def test_time_is_divided_evenly(n_workers: int) -> None:
    workers = divide(TARGETS, n_workers, 1800, 7)
    runs = [run for runs in workers for run in runs]
    assert all(sum(run.seconds for run in runs) < 1800.01 for runs in workers)
    for parser in TARGETS:
        seconds = sum(run.seconds for run in runs if run.parser == parser)
        assert abs(seconds - n_workers * 1800 / len(TARGETS)) < 2 * LEAST
    assert len({run.seed for run in runs}) == len(runs)


def test_executions_of_workers_that_ended_early_count() -> None:
    start = "INFO: Running with entropic power schedule\n"
    first = f"{start}#2\tINITED cov: 5 ft: 6 corp: 1/9b\n#90\tNEW    cov: 7 ft: 8 corp: 2/9b\n"
    second = f"{start}#50\tDONE   cov: 9 ft: 10 corp: 3/9b\n"
    assert read_log(first + second) == (140, 9, 10, 3)
    assert read_log("") == (0, 0, 0, 0)
