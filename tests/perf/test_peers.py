"""perf/peers.py: every library trains on the same episodes, and one that is missing says so."""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kedge.config import EpisodeShape

PEERS = Path(__file__).parents[2] / "perf" / "peers.py"
SHAPE = EpisodeShape(2, 1, 2)
TINY = (
    "--classes 3 2 --image-size 16 --n-way 2 --n-shot 1 --n-query 2 --width 4 --warm-up 1 "
    "--episodes 2 --test-episodes 4 --networks resnet12-wide"
)


@pytest.fixture
def config() -> Iterator[Any]:
    """The settings of a row of kedge, on files of three classes to train on and two to test on."""
    import peers
    from peer_libraries import RowConfig

    with peers.files(None, (3, 2), 16, SHAPE) as folder:
        yield RowConfig(
            library="kedge",
            network="resnet12-wide",
            tuned=False,
            folder=str(folder),
            image_size=16,
            width=4,
            shape=SHAPE,
            warm_up=1,
            episodes=2,
            test_episodes=4,
        )


def test_row_of_kedge(config: Any) -> None:
    import peer_row

    row = peer_row.row(config)
    assert "error" not in row
    assert math.isfinite(row["loss"])
    assert row["test_s"] > 0
    # 6 images in each of the two episodes of a turn; the median of three turns counts
    assert row["images_per_s"] == pytest.approx(12 / sorted(row["seconds_each"])[1])
    assert row["first_step_s"] > row["open_s"] > 0


@pytest.mark.parametrize("library", ["easyfsl", "learn2learn"])
def test_missing_library_costs_its_row_only(
    config: Any, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    import peer_row
    import peers

    monkeypatch.setattr("peer_libraries.import_torchvision", lambda: None)
    monkeypatch.setitem(sys.modules, library, None)  # importing it raises ImportError
    result = peer_row.row(replace(config, library=library))
    assert library in result["error"]
    settings = {"test_episodes": 4}
    machine = {"date": "today", "torch": "2", "python": "3", "gpu": "none", "cores": "2"}
    about = {"library": library, "network": "own", "settings": "tuned"}
    rows = [{**about, **result}, {**about, **result}]
    lines = peers.table({"settings": settings, "environment": machine, "rows": rows}).splitlines()
    assert sum(line.startswith(f"| {library} |") for line in lines) == 2
    assert lines.count(result["error"]) == 1  # the reason is given once


def test_stopped_run_leaves_the_rows_that_it_has_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import peers

    def measured(config: Any) -> dict[str, Any]:
        if config.network == "conv4":
            raise KeyboardInterrupt
        about = {"library": "kedge", "network": config.network, "settings": "default"}
        return {**about, "error": "not measured"}

    out = tmp_path / "record.json"
    options = ["--libraries", "kedge", "--networks", "own", "conv4", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["peers.py", *TINY.split(), *options])
    monkeypatch.setattr(peers, "measured", measured)
    with pytest.raises(KeyboardInterrupt):
        peers.main()
    record = json.loads(out.read_text(encoding="utf-8"))
    assert [row["network"] for row in record["rows"]] == ["own"]
    assert record["environment"]["date"]
    with pytest.raises(SystemExit):  # rather than after minutes of measuring
        peers.main()


def test_turns_end_after_their_episodes_or_seconds(config: Any) -> None:
    from dataclasses import replace

    import peer_row

    def turns(limit: float) -> Any:
        result = peer_row.Turns(replace(config, warm_up=2, episodes=4, seconds=limit))
        ends = [0.0]
        while not result.over(ends):  # a step takes 1 s
            ends.append(ends[-1] + 1)
        return result

    assert turns(1000.0).episodes == [4, 4, 4]
    assert turns(1.5).episodes == [2, 2, 2]
    assert turns(1.5).seconds == [2, 2, 2]


def test_timed_loader_stops_at_its_limit() -> None:
    from peer_libraries import Timed

    assert list(Timed([1, 2, 3], 1000.0)) == [1, 2, 3]  # type: ignore[arg-type]
    loader = Timed([1, 2, 3], 0.0)  # type: ignore[arg-type]
    assert list(loader) == [1, 2]
    assert loader.timed == 1
    assert loader.seconds > 0


def test_table_of_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import peers

    machine = {"date": "today", "torch": "2", "python": "3", "gpu": "none", "cores": "2"}
    record = {"settings": {"test_episodes": 4}, "environment": machine, "rows": []}
    file = tmp_path / "record.json"
    file.write_text(json.dumps(record), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["peers.py", "--table", str(file)])
    peers.main()
    assert "4 test episodes" in capsys.readouterr().out


def test_process_that_dies_costs_its_row_only(config: Any) -> None:
    import peers

    done = subprocess.CompletedProcess([], -9, stdout="", stderr="")
    assert "-9" in peers.reply(config, done)["error"]
    done = subprocess.CompletedProcess([], 1, stdout="", stderr="first\nlast\n")
    assert "last" in peers.reply(config, done)["error"]


def test_rows_of_a_table(config: Any) -> None:
    import peers

    rows = [
        (row.library, row.network, peers.settings_name(row))
        for row in peers.configs(config, ["kedge", "easyfsl"], ["own", "resnet12-wide"])
    ]
    assert rows == [
        ("kedge", "own", "default"),
        ("kedge", "resnet12-wide", "default"),
        ("easyfsl", "own", "documented"),
        ("easyfsl", "own", "tuned"),
        ("easyfsl", "resnet12-wide", "documented"),
        ("easyfsl", "resnet12-wide", "tuned"),
    ]


def measured_rows(library: str, out: Path) -> list[dict[str, Any]]:
    command = [sys.executable, str(PEERS), *TINY.split(), "--libraries", library]
    done = subprocess.run(
        [*command, "--out", str(out)], check=True, capture_output=True, text=True, timeout=600
    )
    record: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    assert record["images"]["train"] == {"classes": 3, "files": 180}
    assert f"| {library} " in done.stdout
    rows: list[dict[str, Any]] = record["rows"]
    return rows


@pytest.mark.slow
def test_command_with_kedge_alone(tmp_path: Path) -> None:
    (row,) = measured_rows("kedge", tmp_path / "record.json")
    assert "error" not in row


@pytest.mark.slow
@pytest.mark.parametrize("library", ["easyfsl", "learn2learn"])
def test_command_with_a_peer(library: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    rows = measured_rows(library, tmp_path / "record.json")
    assert [row["settings"] for row in rows] == ["documented", "tuned"]
    for row in rows:
        assert "error" not in row, row["error"]
        assert math.isfinite(row["loss"])
        assert row["versions"][library]
