"""Names from files may hold control characters, characters that reverse the direction of writing,
or formulas: no output shows more than their text."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from PIL import Image
from tests.report.made_up import MAIN, make_lineage, make_record, make_runs

from kedge.experiments.records import Record
from kedge.models.model import Model
from kedge.utils.text import csv_line

Cli = Any  # of conftest.py
BELL, BIDI, C1, DEL = "\x1b[2J\x07", "\u202egpj.exe", "\x9b31m", "\x7f"
NAMES = (f"a{BELL}", f"b{BIDI}", f"c{C1}", f"d{DEL}\n\r", "=HYPERLINK(1)", "猫\u3000🐈")


def invisible(text: str) -> set[str]:
    """Characters that a terminal or a browser would not show as they are."""
    blanks = {"\n", *(c for c in text if unicodedata.category(c) == "Zs")}
    return {c for c in text if not c.isprintable()} - blanks


@pytest.fixture
def model(by_command: dict[str, Path], tmp_path: Path) -> Path:
    """A model whose classes, sources and methods have such names."""
    base = Model.load(by_command["base"])
    [entry] = base.lineage
    assert base.calibration is not None
    counts = dict(zip(NAMES, base.calibration.counts.values(), strict=True))
    entry = replace(
        entry,
        classes=NAMES[: len(entry.classes)],
        untrained=NAMES[len(entry.classes) :],
        source=BIDI,
        method=BELL,
        outcome=make_lineage(1)[0].outcome,
    )
    calibration = replace(base.calibration, counts=counts)
    renamed = replace(base, classes=NAMES, lineage=(entry,), calibration=calibration)
    renamed.save(tmp_path / "m.kedge")
    return tmp_path / "m.kedge"


@pytest.fixture
def images(first: Path, tmp_path: Path) -> list[Path]:
    """An image of each class; one has an odd name."""
    found = [sorted(folder.iterdir())[0] for folder in sorted(first.iterdir())]
    odd = tmp_path / f"-2+3{BELL}.png"
    Image.open(found[0]).save(odd)
    return [*found, odd]


def test_a_model_is_described_in_visible_characters(cli: Cli, model: Path) -> None:
    for options in ([], ["--all"], ["--json"]):
        ended = cli("show", model, *options)
        assert ended.rc == 0, ended.err
        assert not invisible(ended.out), options
    names = [each["name"] for each in json.loads(ended.out)["classes"]]
    assert sorted(names) == sorted(NAMES), "JSON has the names themselves"
    assert cli("report", model).rc == 0
    page = Path(f"{model}.html").read_text(encoding="utf-8")
    assert not invisible(page)
    assert "\\x1b[2J" in page


def test_predictions_are_visible_characters(cli: Cli, model: Path, images: list[Path]) -> None:
    outputs = {
        kind: cli("predict", model, *images, "--format", kind, "--top", "6")
        for kind in ("table", "json", "csv")
    }
    for kind, ended in outputs.items():
        assert ended.rc == 0, ended.err
        assert not invisible(ended.out), kind
    lines = [json.loads(line) for line in outputs["json"].out.splitlines()]
    assert [line["image"] for line in lines] == list(map(str, images))
    assert {each["class"] for line in lines for each in line["top"]} == set(NAMES)
    rows = list(csv.DictReader(io.StringIO(outputs["csv"].out)))
    assert "'=HYPERLINK(1)" in {row["class"] for row in rows}
    assert not [row for row in rows if row["class"][0] in "=+-@\t\r"]


def hostile_record() -> Record:
    """Labels, names and settings with such characters."""
    record = make_record(
        make_runs(
            {
                "NU": (69.0, 68.0, 67.0),
                f"FT {BELL}": (66.0, 79.0, 70.0),
                f"IDA {BIDI}": (70.0, 79.0, 75.0),
            },
            MAIN,
        )
    )
    runs = []
    for run in record.runs:
        pools = tuple(replace(p, label=f"{p.label}{BELL}{C1}") for p in run.pools)
        moves = tuple(replace(move, name=f"{move.name}{BIDI}") for move in run.anchors)
        runs.append(replace(run, pools=pools, anchors=moves, environment={"cpu": BELL}))
    return replace(
        record,
        name=f"mine{BELL}",
        sentence=f"About {BIDI} drawings{DEL}: of {C1}.",
        config={**record.config, BELL: BIDI},
        splits={"0": {"rounds": [[BELL, "猫"], [BIDI]], "val": [C1], "held_out": 30}},
        runs=tuple(runs),
    )


def test_reports_of_records_are_visible_characters(cli: Cli, tmp_path: Path) -> None:
    """Terminal, Markdown, LaTeX, HTML and the figures; characters without a glyph cause no
    warning, which would be an error in tests."""
    hostile_record().save(tmp_path / "record.json")
    ended = cli("report", tmp_path)
    assert ended.rc == 0, ended.err
    assert not invisible(ended.out + ended.err)
    texts = [tmp_path / name for name in ("report.html", "table.md", "table.tex")]
    for path in [*texts, *(tmp_path / "figures").glob("*.svg")]:
        text = path.read_text(encoding="utf-8")
        assert not invisible(text), path
        if path.suffix == ".svg":
            ElementTree.fromstring(text)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    for svg in re.findall(r"data:image/svg\+xml;base64,([^\"]+)", page):
        assert not invisible(base64.b64decode(svg).decode())


def test_recipes_are_printed_in_visible_characters(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f'# {BIDI}\ntitle = "x"\t# {C1}\nprotocol = "drawings"\n', encoding="utf-8")
    ended = cli("recipes", path)
    assert ended.rc == 0, ended.err
    assert not invisible(ended.out)


# ── CSV ──────────────────────────────────────────────────────────────────────────────────────

CELLS = (
    *("plain", "größe", "", "'", "''quoted", "it's", 'say "hi"', "a,b", "a;=1+1", "猫"),
    *("=1+1", "+1", "-1", "@SUM(A1)", "＝1", "'=1", " =1"),
)


def test_no_cell_is_a_formula_and_names_come_back() -> None:
    """One ' at the beginning is not part of a text."""
    line = csv_line(*CELLS)
    [row] = csv.reader(io.StringIO(line))
    assert tuple(cell.removeprefix("'") for cell in row) == CELLS
    assert not [cell for cell in row if cell.startswith(("=", "+", "-", "@", "＝"))]
    assert '"a;=1+1"' in line, "not split where semicolons separate cells"
    assert csv_line("\t=1", "\r=1", BELL, 3) == "\\t=1,\\r=1,\\x1b[2J\\x07,3\n"
