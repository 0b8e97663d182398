"""Reports of records: tables in the terminal, Markdown and LaTeX, figures, and an HTML page.

A report depends on its record alone; equal records give equal files, byte for byte.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from kedge.experiments import paper as printed
from kedge.experiments.records import Record, RecordSet
from kedge.report import figures, queries, round_figures
from kedge.report.page import is_report, render_page
from kedge.report.paper_comparison import paper_comparison_table
from kedge.report.render import LATEX_HEADER, markdown, slug, to_latex, to_markdown, to_rich
from kedge.report.style import ReportFigure, encode
from kedge.report.summary import headlines, report_title
from kedge.report.table import Table
from kedge.report.tables import accuracy_table, all_tables
from kedge.utils.atomic_io import write_bytes_atomically
from kedge.utils.progress import task
from kedge.utils.text import printable

MAX_TERMINAL_COLUMNS = 8
PAGE = "report.html"


def write_report(
    record: Record, folder: str | Path, paper: str | None = None, title: str = ""
) -> Path:
    """Write report.html, table.md, table.tex and figures/*; returns the path of the page.

    With the id of one of the paper's tables, its numbers are shown beside the record's.
    """
    return write_record_set(
        RecordSet(record.name, title or record.name, paper, {"": record}), folder
    )


def write_record_set(record_set: RecordSet, folder: str | Path) -> Path:
    """Write the report of a record set; returns the path of its page.

    Every part with a name gets a report of its own, in its own folder.
    """
    parts, folder = record_set.parts, Path(folder)
    for part in filter(None, parts):
        write_report(parts[part], folder / RecordSet.folder_of(part))
    drawn = draw_figures(parts[""]) if "" in parts else []
    files = {f"figures/{figure.key}.svg": svg for figure, svg in drawn}
    files |= {f"figures/{figure.key}.png": encode(figure.figure, "png") for figure, _ in drawn}
    tables, title, sentences = _tables(record_set), report_title(record_set), headlines(record_set)
    about = list(dict.fromkeys(record.sentence for record in parts.values()))
    paragraphs = [f"# {markdown(title)}\n", *(f"{markdown(t)}\n" for t in (*about, sentences[0]))]
    latex = [LATEX_HEADER, *(to_latex(table, record_set.name) for table in tables)]
    files["table.md"] = "\n".join([*paragraphs, *map(to_markdown, tables)]).encode()
    files["table.tex"] = "\n".join(latex).encode()
    files[PAGE] = render_page(title, about, sentences, parts, tables, drawn).encode()
    for name, content in files.items():  # the page last
        write_bytes_atomically(folder / name, content, is_report if name == PAGE else True)
    return folder / PAGE


def terminal_tables(record_set: RecordSet | Record) -> RenderableType:
    """The tables but for cost and wide ones, to print with a `rich.console.Console`."""
    if isinstance(record_set, Record):
        record_set = RecordSet(record_set.name, record_set.name, None, {"": record_set})
    tables = [table for table in _tables(record_set) if table.key != "cost"]
    fitting = [to_rich(t) for t in tables if len(t.columns) <= MAX_TERMINAL_COLUMNS]
    if "" in record_set.parts:
        return Group(*fitting)
    title = Text(f"{printable(report_title(record_set))}\n", style="bold")
    return Group(title, Text(f"{printable(headlines(record_set)[0])}\n"), *fitting)


def all_figures(record: Record) -> list[ReportFigure]:
    """All figures that the record has values for, in reading order."""
    candidates = [
        figures.accuracy_figure(record),
        figures.old_new_figure(record),
        *figures.sweep_figures(record),
        round_figures.rounds_figure(record),
        round_figures.matrix_figure(record),
        round_figures.anchors_figure(record),
        round_figures.drift_figure(record),
        figures.training_figure(record),
    ]
    return [figure for figure in candidates if figure is not None]


def draw_figures(record: Record) -> list[tuple[ReportFigure, bytes]]:
    """The figures with their SVG."""
    candidates, drawn = all_figures(record), []
    with task("drawing figures", len(candidates)) as tick:
        for figure in candidates:
            drawn.append((figure, encode(figure.figure, "svg")))
            tick(1)
    return drawn


def _tables(record_set: RecordSet) -> list[Table]:
    """All tables of a single record, or the main table of each part; and the paper's beside ours.

    The comparison with the paper comes first, but after the accuracies and differences of a record.
    """
    if "" in record_set.parts:
        tables = list(all_tables(record_set.parts[""]))
        first = sum(table.key in ("accuracy", "differences") for table in tables)
    else:
        tables, first = [], 0
        for part, record in record_set.parts.items():
            table = accuracy_table(record, queries.final_round(record))
            title = f"{part}: {table.title.lower()}"
            tables.append(replace(table, key=f"{slug(part)}-{table.key}", title=title))
    if record_set.paper:
        tables.insert(first, paper_comparison_table(record_set, printed.table(record_set.paper)))
    return tables
