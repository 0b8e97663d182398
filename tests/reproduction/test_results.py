"""The committed pages and reports are those that the committed records give."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from reproduction.__main__ import ROOT, render_pages
from reproduction.claims import Evidence
from reproduction.figure import mark
from reproduction.markdown import signed
from reproduction.pages import effects_grid
from reproduction.studies import RECORDS

from kedge.experiments.records import INDEX, Record, RecordSet

FOLDERS = sorted(path for path in RECORDS.iterdir() if path.is_dir())


def test_the_committed_pages_are_current(evidence: Evidence) -> None:
    for path, content in render_pages(evidence).items():
        if path.suffix == ".md":
            committed = (ROOT / path).read_text(encoding="utf-8")
            assert committed == content.decode(), f"{path}: run 'python -m reproduction'"


def test_the_committed_figure_shows_the_effects_of_the_table(evidence: Evidence) -> None:
    """Other versions of matplotlib draw other bytes, but every mark carries its value."""
    svg = (ROOT / "docs" / "figures" / "results-effects.svg").read_text(encoding="utf-8")
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    effects = effects_grid(evidence)
    assert len(effects) == 5 * 3 * 3
    for (rival, source, kind), pooled in effects.items():
        assert f'id="{mark(rival, source, kind, pooled)}"' in svg
        assert f"**{signed(pooled.mean)} ± {pooled.ci:.1f}**" in page


def test_the_results_page_stays_short() -> None:
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    prose = [line for line in page.splitlines() if not line.startswith(("|", "<", "!"))]
    assert len(" ".join(prose).split()) < 1100


def test_every_record_with_a_comparison_is_linked_from_the_details() -> None:
    page = (ROOT / "reproduction" / "claims.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"\(records/([^/)]+)/table\.md\)", page))
    aside = {  # beyond the paper, or without two methods to compare
        folder.name
        for folder in FOLDERS
        if re.search(
            "rounds$|rounds-seeds$|ridge|hard-tasks|any-shape|ways-shots|flowers", folder.name
        )
    }
    assert {folder.name for folder in FOLDERS} - aside <= linked


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_tables_beside_a_record_are_rendered_from_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kedge.report import record_report as report

    monkeypatch.setattr(report, "draw_figures", lambda record: [])  # figures take long
    if (folder / INDEX).exists():
        report.write_record_set(RecordSet.load(folder), tmp_path)
    else:
        report.write_report(Record.load(folder / "record.json"), tmp_path)
    tables = [file for file in folder.iterdir() if file.stem == "table"]
    assert tables
    for file in tables:
        renewed = (tmp_path / file.name).read_bytes()
        assert file.read_bytes() == renewed, "run 'python -m reproduction --records'"
