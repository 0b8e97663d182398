"""The files of a report: equal numbers in all renderings, escaped labels, repeatable bytes."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import matplotlib as mpl
import pytest
from tests.report.made_up import (
    HOSTILE,
    MAIN,
    ROWS,
    in_terminal,
    make_record,
    make_runs,
    one_round,
    several_rounds,
    several_seeds,
)

from kedge.errors import KedgeError
from kedge.experiments.records import Record, RecordSet
from kedge.report.page import is_report, render_page
from kedge.report.record_report import terminal_tables, write_record_set, write_report
from kedge.report.render import to_latex, to_markdown
from kedge.report.tables import all_tables

VALUE = r"[+−]?\d+\.\d+ ± \d+\.\d+"


def hostile() -> Record:
    record = make_record(make_runs({**ROWS, HOSTILE: (69.0, 75.0, 68.0, 72.0, 71.0)}))
    return replace(record, name="draw<i>ings_&", sentence="</style> & $ 5%")


def page_of(record: Record) -> str:
    """The page without its figures, which take seconds."""
    return render_page("Title", [record.sentence], ["Result"], {"": record}, all_tables(record), [])


class Page(HTMLParser):
    """The text, the table cells, the tags and the addresses of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.cells: list[str] = []
        self.tags: list[str] = []
        self.addresses: list[tuple[str, str]] = []
        self._open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [(tag, v or "") for k, v in attrs if k in ("src", "href", "srcset")]
        self.cells += [""] if tag == "td" else []
        if tag not in ("meta", "link", "img"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "td" in self._open:
            self.cells[-1] += data
        if "style" not in self._open:
            self.words.append(data)


@pytest.mark.parametrize("make", [one_round, several_rounds, several_seeds, hostile])
def test_all_renderings_show_the_same_numbers(make: object) -> None:
    record = make()  # type: ignore[operator]
    tables = all_tables(record)
    values = [cell.text for t in tables for cell in t.cells if re.fullmatch(VALUE, cell.text)]
    assert len(values) > 40
    grid = [li for t in tables for li in to_markdown(t).splitlines() if li.startswith("|")]
    assert re.findall(VALUE, "\n".join(grid).replace("**", "")) == values
    bodies = [to_latex(t, "x").partition(r"\toprule")[2] for t in tables]
    body = re.sub(r"\\textbf{|{\\scriptsize|}", "", "".join(bodies))
    body = body.replace(r"$\pm$", "±").replace("$-$", "−")
    assert re.findall(VALUE, body) == values
    assert re.findall(VALUE, "\n".join(Page(page_of(record)).cells)) == values
    assert re.findall(VALUE, in_terminal(record)) == values


def test_nothing_is_cut_off_in_a_narrow_terminal() -> None:
    for record in (several_rounds(), several_seeds()):
        assert "…" not in in_terminal(record, width=80)


def test_labels_are_escaped_in_every_rendering() -> None:
    record = hostile()
    table, page = all_tables(record)[0], page_of(record)
    assert not re.search("<script|<b>bus", page)
    assert HOSTILE in "".join(Page(page).words)
    assert HOSTILE in in_terminal(record)
    row = next(line for line in to_markdown(table).splitlines() if "alert(1)" in line)
    assert "<script" not in row
    assert len(re.findall(r"(?<!\\)\|", row)) == 7
    assert HOSTILE in re.sub(r"\\([^a-zA-Z0-9\s])", r"\1", html.unescape(row))
    tex = to_latex(table, record.name)
    assert r"a\_b\&50\%\$x\textasciicircum{}2\textasciitilde{}\{\textbackslash{}c\}" in tex
    bare = re.sub(r"\\[{}]", "", tex)
    assert bare.count("{") == bare.count("}")
    assert r"\label{tab:draw-i-ings-accuracy}" in tex


def test_the_page_is_one_file_with_all_tables_figures_settings_and_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "kedge.report.record_report.encode", lambda figure, format: b"<svg/>"
    )  # saves seconds
    written = tmp_path
    text = write_report(several_rounds(), written).read_text(encoding="utf-8")
    page = Page(text)
    outside = [(tag, url) for tag, url in page.addresses if not url.startswith(("data:", "#"))]
    assert all(tag == "a" and url.startswith("https://arxiv.org/") for tag, url in outside)
    assert "script" not in page.tags
    assert not re.search(r"url\(|@import", text[text.index("<style>") : text.index("</style>")])
    drawn = {path.stem for path in (written / "figures").glob("*.svg")}
    assert drawn == {"accuracy", "old-new", "rounds", "matrix", "anchors", "drift", "training"}
    assert set(re.findall(r'id="figure-([^"]+)"', text)) == drawn
    for table in all_tables(several_rounds()):
        assert f'id="{table.key}"' in text
        assert to_markdown(table) in (written / "table.md").read_text(encoding="utf-8")
        assert to_latex(table, "drawings") in (written / "table.tex").read_text(encoding="utf-8")
    words = "".join(page.words)
    for fact in ("schedule · epochs", "sea & sand", "torch", "rounds 0 (2)"):
        assert fact in words
    assert is_report(written / "report.html")
    assert not is_report(written / "table.md")
    assert not is_report(written / "absent")


@pytest.mark.slow
def test_equal_records_give_equal_bytes_whatever_the_callers_settings(tmp_path: Path) -> None:
    written = tmp_path / "first"
    write_report(several_rounds(), written)
    several_rounds().save(tmp_path / "record.json")
    record = Record.load(tmp_path / "record.json")
    with mpl.rc_context({"font.size": 20, "svg.hashsalt": None, "axes.grid": False}):
        before = dict(mpl.rcParams)
        write_report(record, tmp_path / "again")
        assert dict(mpl.rcParams) == before
    files = [path.relative_to(written) for path in written.rglob("*") if path.is_file()]
    assert len(files) == 3 + 2 * 7
    for file in files:
        content = (written / file).read_bytes()
        assert (tmp_path / "again" / file).read_bytes() == content, file
        if file.suffix == ".svg":
            assert ElementTree.fromstring(content).tag.endswith("svg")
            assert b"<dc:date>" not in content


def test_a_record_of_the_base_round_only_can_be_reported_and_an_empty_one_cannot() -> None:
    base = make_record(make_runs({"NU": (70.0, 66.0)}, ("old", "unseen"), round=0))
    assert "70.0 ± 0.4" in in_terminal(base)
    with pytest.raises(KedgeError, match="no runs"):
        terminal_tables(replace(base, runs=(), pairs=()))


def test_a_record_set_has_a_page_that_links_to_the_reports_of_its_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kedge.report.record_report.all_figures", lambda record: [])
    rows = {method: ROWS[method][:3] for method in ROWS}
    parts = {f"{n}-shot": make_record(make_runs(rows, MAIN, (5, n))) for n in (1, 5)}
    parts[HOSTILE] = parts["1-shot"]
    record_set = RecordSet("mini", HOSTILE, "mini-pn", parts)
    page = write_record_set(record_set, tmp_path).read_text(encoding="utf-8")
    assert "<script" not in page
    assert {'id="paper"', 'id="1-shot-accuracy"'} <= set(re.findall(r'id="[^"]+"', page))
    for part, record in parts.items():
        folder = RecordSet.folder_of(part)
        assert f'<a href="{folder}/report.html">' in page or part == HOSTILE
        write_report(record, tmp_path / "alone")
        for name in ("report.html", "table.md", "table.tex"):
            alone = (tmp_path / "alone" / name).read_bytes()
            assert (tmp_path / folder / name).read_bytes() == alone
    assert "same order" in in_terminal(record_set)


def test_a_record_set_without_parts_is_the_report_of_its_record_with_the_papers_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kedge.report.record_report.all_figures", lambda record: [])
    record = make_record(make_runs({"IDA": ROWS["IDA"][:3]}, MAIN))
    record_set = RecordSet("tiny-pn", "One round.", "mini-pn", {"": record})
    page = write_record_set(record_set, tmp_path).read_text(encoding="utf-8")
    assert "<h1>One round</h1>" in page
    assert 'id="paper"' in page
    assert "table 1 of the paper" in in_terminal(record_set)
    assert "of the paper" not in in_terminal(record)
    write_report(record, tmp_path, "mini-pn", "One round")
    assert (tmp_path / "report.html").read_text(encoding="utf-8").count('id="paper"') == 1
