"""Records: their means and differences, and that damaged files are named."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from kedge.config import EpisodeShape, Schedule
from kedge.errors import KedgeError
from kedge.evaluation.results import AnchorMove, EpochResult, Score
from kedge.experiments.records import (
    PairedDifference,
    PoolInfo,
    Record,
    Run,
    average,
    load_run,
)
from kedge.utils.config_io import to_dict


def run(method: str, seed: int, mean: float) -> Run:
    return Run(
        seed=seed,
        method=method,
        round=1,
        pools=(PoolInfo("old", "old", 4, EpisodeShape((2, 3), 1)), PoolInfo("new at x", "new", 4)),
        scores={"old": Score(mean, 3.0, 10), "new at x": Score(50.0, 1.0, 10)},
        history=(EpochResult(1, 1.0, 0.9, 0.1, 50.0, 1e-3),),
        seconds=1.5,
        peak_memory_mb=10.0,
        kept_bytes_per_class=4.0,
        environment={"date": f"2024-01-0{seed + 1}", "torch": "2"},
        measures={"anchor_drift": 0.5},
        anchors=(AnchorMove("größe", (0.0, 1.0), (1.0, 0.0)),),
    )


RECORD = Record(
    name="few",
    sentence="For tests.",
    config={"schedule": to_dict(Schedule(sampling="hard")), "episode": to_dict(EpisodeShape())},
    splits={"0": {"rounds": [["a"], ["b"]]}},
    runs=tuple(run(m, s, 60.0 + 10 * s + (m == "IDA")) for m in ("FT", "IDA") for s in (0, 1)),
    pairs=tuple(
        PairedDifference(s, 1, "old", "FT", "IDA", Score(-1.0 - s, 3.0, 10)) for s in (0, 1)
    ),
    images="abc",
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    RECORD.save(tmp_path / "record.json")
    return tmp_path / "record.json"


def test_record_is_read_back_as_it_was(file: Path) -> None:
    assert Record.load(file) == RECORD
    lines = file.read_text(encoding="utf-8").splitlines()
    assert sum(line.startswith('{"seed"') for line in lines) == 6  # one line per run and pair


def test_dfa_of_format_1_is_the_sum_over_the_features(file: Path) -> None:
    text = file.read_text(encoding="utf-8").replace('"FT"', '"DFA"')
    file.write_text(text.replace('"format": 2', '"format": 1'), encoding="utf-8")
    earlier = Record.load(file)
    assert earlier.methods == ("DFA reduction=sum", "IDA")
    assert earlier.difference("IDA", "DFA reduction=sum", 1, "old").mean == 1.5
    earlier.save(file)
    assert Record.load(file) == earlier


def test_means_and_differences_are_over_seeds() -> None:
    assert (RECORD.methods, RECORD.rounds, RECORD.seeds) == (("FT", "IDA"), (1,), (0, 1))
    score = RECORD.score("IDA", 1, "old")
    assert (score.mean, score.n) == (66.0, 20)
    assert score.ci == pytest.approx(3 / math.sqrt(2))
    assert RECORD.difference("FT", "IDA", 1, "old").mean == -1.5
    assert RECORD.difference("IDA", "FT", 1, "old").mean == 1.5
    for missing in (("IDA", "PAR", 1, "old"), ("IDA", "FT", 2, "old")):
        with pytest.raises(KedgeError):
            RECORD.difference(*missing)
    with pytest.raises(KedgeError):
        average([])
    assert RECORD.environment == {"date": "2024-01-01 / 2024-01-02", "torch": "2"}
    assert [(pool.pool, pool.first_shape) for pool in RECORD.pools(1)] == [
        ("old", True),
        ("new", False),
    ]


@pytest.mark.parametrize("content", ["", '{"format": 1', "[]", "null", '{"format": 1}', "\x00"])
def test_damaged_record_is_named(file: Path, content: str) -> None:
    file.write_text(content)
    with pytest.raises(KedgeError, match=r"record\.json: ") as caught:
        Record.load(file)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"runs": 3},
        {"runs": [3]},
        {"pairs": [{}]},
        {"extra": 1},
        {"config": {"episode": {"n_way": 5}}},
        {"config": {"schedule": {"epochs": 0}}},
    ],
)
def test_record_with_a_damaged_part_is_named(file: Path, change: dict[str, Any]) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(KedgeError, match=r"record\.json: .*damaged"):
        Record.load(file)


def test_missing_and_damaged_runs_are_named(tmp_path: Path) -> None:
    with pytest.raises(KedgeError, match=r"record\.json: .*kedge bench"):
        Record.load(tmp_path / "record.json")
    path = tmp_path / "run.json"
    for content in ("", "[]", '{"round": 1}'):
        path.write_text(content)
        with pytest.raises(KedgeError, match=r"run\.json: damaged"):
            load_run(path)
