"""Reports: a record as a table in the terminal, as Markdown, as LaTeX and as a page with figures.

A report is a function of its record alone; equal records give equal files, byte for byte.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from rich.console import Group, RenderableType

from kedge.durable import write_atomically
from kedge.progress import task
from kedge.records import Record
from kedge.report.figures import all_drawings
from kedge.report.page import render_page
from kedge.report.renderings import LATEX_HEADER, markdown, to_latex, to_markdown, to_rich
from kedge.report.style import encode
from kedge.report.tables import all_tables
from kedge.report.verdict import verdict

__all__ = ["terminal_table", "write_report"]


def terminal_table(record: Record) -> RenderableType:
    """The result, the differences and, if there are any, rounds and seeds.

    Print it with a `rich.console.Console`. What it cost and how the rounds in between went is in
    the files of `write_report`.
    """
    shown = ("accuracy", "differences", "matrix", "seeds")
    return Group(*(to_rich(table) for table in all_tables(record) if table.key in shown))


def write_report(record: Record, folder: str | Path) -> Path:
    """Write report.html, table.md, table.tex and figures/*; returns the path of the page.

    Everything is drawn before anything is written, and the page, which people open, comes last.
    """
    folder, tables = Path(folder), all_tables(record)
    figures = all_drawings(record)
    drawings, files = [], dict[str, bytes]()
    with task("drawing figures", len(figures)) as tick:
        for drawing in figures:
            svg, png = encode(drawing.figure, "svg"), encode(drawing.figure, "png")
            drawings.append((drawing, svg))
            files |= {f"figures/{drawing.key}.svg": svg, f"figures/{drawing.key}.png": png}
            tick(1)
    said = verdict(record)
    files["table.md"] = "\n".join(
        [
            f"## {markdown(record.name)}\n",
            f"{markdown(record.sentence)}\n",
            f"{markdown(said.headline)}\n",
            *(to_markdown(table) for table in tables),
        ]
    ).encode()
    files["table.tex"] = "\n".join(
        [LATEX_HEADER, *(to_latex(table, record.name) for table in tables)]
    ).encode()
    files["report.html"] = render_page(record, tables, drawings).encode()
    for name, content in files.items():
        write_atomically(folder / name, partial(_fill, content))
    return folder / "report.html"


def _fill(content: bytes, part: Path) -> None:
    part.write_bytes(content)
