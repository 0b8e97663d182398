"""What `train`, `update`, `show` and `report` tell about a model's life."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tests.report.made_up import HOSTILE, make_lineage

from kedge import api
from kedge.models.model import Model
from kedge.utils import progress

Cli = Any  # of conftest.py
SHAPE = ["--n-way", "3", "--n-shot", "2", "--n-query", "3"]


@pytest.fixture
def measured(by_command: dict[str, Path]) -> Model:
    """A model of two rounds that says what they did."""
    model = Model.load(by_command["next"])
    outcomes = [entry.outcome for entry in make_lineage(2)]
    lineage = [replace(e, outcome=o) for e, o in zip(model.lineage, outcomes, strict=True)]
    return replace(model, lineage=tuple(lineage))


@pytest.fixture
def update(
    cli: Cli, by_command: dict[str, Path], second: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    """`kedge update` whose round gives this model at once."""

    def run(result: Model, folder: Path, *options: str) -> Any:
        monkeypatch.setattr(api, "update", lambda *args, **given: result)
        return cli("update", by_command["base"], second, "--out", folder / "new.kedge", *options)

    return run


def test_an_update_says_what_it_did(
    update: Callable[..., Any], measured: Model, tmp_path: Path
) -> None:
    ended = update(measured, tmp_path)
    assert ended.rc == 0, ended.err
    for words in ("10 classes of round 0    80.0", "estimate", "Old classes kept", "new.kedge.png"):
        assert words in ended.out, words
    assert (tmp_path / "new.kedge.png").read_bytes().startswith(b"\x89PNG")
    assert Model.load(tmp_path / "new.kedge").lineage == measured.lineage
    result = json.loads(update(measured, tmp_path / "json", "--json").out)
    assert result["file"] == str(tmp_path / "json" / "new.kedge")
    assert result["picture"] == f"{result['file']}.png"
    assert (result["round"], result["known_classes"], result["memory"]) == (1, 12, None)
    assert result["outcome"]["naming"][0]["before"] == 80.0
    assert result["outcome"]["few_shot"]["shape"]["n_way"] == 5


def test_a_round_that_was_not_measured_has_no_table_and_no_picture(
    update: Callable[..., Any], measured: Model, tmp_path: Path
) -> None:
    lineage = tuple(replace(entry, outcome=None) for entry in measured.lineage)
    ended = update(replace(measured, lineage=lineage), tmp_path)
    assert len(ended.out.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["new.kedge"]


def test_a_picture_overwrites_no_file_but_a_picture_of_the_same_model(
    update: Callable[..., Any], measured: Model, tmp_path: Path
) -> None:
    picture = tmp_path / "new.kedge.png"
    Image.new("L", (2, 2)).save(picture)
    mine = picture.read_bytes()
    assert "new.kedge.png: already exists" in update(measured, tmp_path).sentence
    assert not (tmp_path / "new.kedge").exists()
    ended = update(measured, tmp_path, "--no-picture")
    assert (ended.rc, "new.kedge.png" in ended.out) == (0, False)
    assert picture.read_bytes() == mine
    picture.unlink()
    for _ in range(2):  # the second time there is a picture of a model that was deleted
        (tmp_path / "new.kedge").unlink()
        assert update(measured, tmp_path).rc == 0


def test_training_shows_loss_and_validation(
    cli: Cli, first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY", 0)
    command = ["train", first, "--out", tmp_path / "m.kedge", "--width", "4", "--json", *SHAPE]
    ended = cli(*command, "--epochs", "2", "--episodes", "2", "--val-episodes", "4")
    assert json.loads(ended.out)["round"] == 0, "progress is not on standard output"
    lines = [line for line in ended.err.splitlines() if line.startswith("round 0: episodes: ")]
    shown = [bool(re.search(r"; loss \d\S*, val \d+\.\d%$", line)) for line in lines]
    assert shown == [False, False, True, True]


def test_show_lists_what_each_round_did_and_every_class(
    cli: Cli, measured: Model, tmp_path: Path
) -> None:
    measured.save(tmp_path / "m.kedge")
    rows = [line.split() for line in cli("show", tmp_path / "m.kedge").out.splitlines()]
    assert ["0", "70.0", "71.2", "90.0", "–"] in rows
    assert ["1", "70.0", "72.2", "~79.0", "90.0"] in rows
    listed = cli("show", tmp_path / "m.kedge", "--all").out.splitlines()[-12:]
    n = measured.calibration.counts["second 5"]
    assert listed[0].split()[:4] == ["first", "0", "round", "0"]
    assert listed[-1].split() == ["second", "5", "round", "1", str(n), "images"]
    about = json.loads(cli("show", tmp_path / "m.kedge", "--json").out)
    assert about["classes"][-1] == {"name": "second 5", "round": 1, "images": n}
    assert about["lineage"][1]["outcome"]["naming"][1]["after"] == 90.0


# ── the page of a model ──────────────────────────────────────────────────────────────────────


def test_report_of_a_model_is_a_page_beside_it(
    cli: Cli, measured: Model, by_command: dict[str, Path], tmp_path: Path
) -> None:
    """Names and paths from the file are not taken for HTML."""
    classes = (HOSTILE, *measured.classes[1:])
    base = measured.lineage[0]
    base = replace(base, classes=(HOSTILE, *base.classes[1:]), source=HOSTILE)
    hostile = replace(measured, classes=classes, lineage=(base, measured.lineage[1]))
    hostile.save(tmp_path / "m.kedge")
    ended = cli("report", tmp_path / "m.kedge")
    page = tmp_path / "m.kedge.html"
    assert ended.out == f"Report: {page}\n", ended.err
    text = page.read_text(encoding="utf-8")
    assert "<script" not in text
    assert text.count("&lt;script&gt;") == 2
    for key in ("naming", "few-shot", "outcome-1"):
        assert f'id="figure-{key}"' in text
    for words in ("Old classes kept", "conv4 of width 4", "SHA-256", "second 5", "schedule · lr"):
        assert words in text, words
    assert cli("report", tmp_path / "m.kedge").rc == 0, "its own page is written again"
    assert page.read_text(encoding="utf-8") == text
    page.write_text("mine")
    assert "m.kedge.html" in cli("report", tmp_path / "m.kedge").sentence
    assert page.read_text() == "mine"


def test_report_of_a_model_of_an_early_version(cli: Cli, tmp_path: Path) -> None:
    model = tmp_path / "old.kedge"
    golden = Path(__file__).parents[1] / "golden" / "format-1.kedge"
    model.write_bytes(golden.read_bytes())
    assert cli("report", model).rc == 0
    text = Path(f"{model}.html").read_text(encoding="utf-8")
    assert "was not measured" in text
    assert "first 0" in text
    assert "gone.kedge" in cli("report", tmp_path / "gone.kedge").sentence
