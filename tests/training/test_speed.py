"""`kedge speed`: the record, the table, and errors."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kedge.cli.speed import Speed, show
from kedge.config import BackboneConfig, EpisodeShape
from kedge.data.open import open_images
from kedge.data.pools import Pool
from kedge.errors import KedgeError
from kedge.training.speed import TimedTraining, untrained_model

TINY = BackboneConfig("conv4", 4)
SHAPE = EpisodeShape(3, 2, 4)


@pytest.fixture(scope="module")
def record(first: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("speed") / "speed.json"
    Speed(str(first), None, SHAPE, TINY, seconds=0.01, out=out).run(Console(file=io.StringIO()))
    found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return found


def test_a_method_with_rules_can_be_timed(first: Path) -> None:
    pool = Pool.all("training", table := open_images(first), table.classes)
    training = TimedTraining(untrained_model(pool, TINY), "IDA+", pool, SHAPE, 0.0)
    assert training.ms_per_step() > 0


def test_rates_are_consistent(record: dict[str, Any]) -> None:
    assert set(record["training"]) == {"FT", "IDA"}
    for rates in record["training"].values():
        assert rates["images_per_s"] == pytest.approx(18 * rates["episodes_per_s"])
        assert rates["first_step_s"] >= 0
    assert record["evaluation"]["episodes"] == 2000
    assert record["evaluation"]["seconds"] > 0
    assert record["device"] == "cpu"
    assert record["execution"]["bf16"] is False
    assert {"torch", "cpu", "gpu", "commit"} <= record["environment"].keys()


def test_table_shows_rates_and_mode(record: dict[str, Any]) -> None:
    console = Console(width=100, file=io.StringIO())
    show(console, record)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    for part in ("conv4 of width 4, 16 px; cpu, fp32", "images/s", "2000 test episodes"):
        assert part in text


@pytest.mark.parametrize(
    ("command", "match"),
    [
        (Speed("gone"), "gone"),
        (Speed(seconds=0.0), "--seconds"),
        (Speed(episode=EpisodeShape((3, 5))), "--n-way"),
        (Speed(out=Path(__file__)), "--out"),
    ],
)
def test_errors_name_the_option(command: Speed, match: str) -> None:
    with pytest.raises(KedgeError, match=match):
        command.run(Console(file=io.StringIO()))
