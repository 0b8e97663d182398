"""Reports: a record as a table in the terminal, as Markdown, as LaTeX and as a page with figures.

A report is a function of its record alone; equal records give equal files, byte for byte. A
collection, the records of a recipe, gets a joint page besides.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from kedge import paper as printed
from kedge.durable import write_atomically
from kedge.progress import task
from kedge.records import Collection, Record
from kedge.report.beside import beside_table
from kedge.report.figures import Drawing, all_drawings
from kedge.report.layout import Table
from kedge.report.page import part_table, render_collection, render_page
from kedge.report.renderings import LATEX_HEADER, markdown, to_latex, to_markdown, to_rich
from kedge.report.style import encode
from kedge.report.tables import all_tables, trained_shapes_table
from kedge.report.verdict import joint_verdict, verdict

__all__ = ["collection_terminal", "terminal_table", "write_collection", "write_report"]

IN_TERMINAL = ("accuracy", "differences", "beside", "shapes", "metrics", "matrix", "seeds")


def terminal_table(record: Record, paper: str | None = None) -> RenderableType:
    """The result, the differences and, if there are any, rounds and seeds.

    Print it with a `rich.console.Console`. What it cost and how the rounds in between went is in
    the files of `write_report`.
    """
    return Group(*(to_rich(t) for t in _tables(record, paper) if t.key in IN_TERMINAL))


def collection_terminal(collection: Collection) -> RenderableType:
    """Ours beside the paper's, and the main table of each part."""
    if list(collection.parts) == [""]:
        return terminal_table(collection.parts[""], collection.paper)
    tables = [*_joint_tables(collection), *_part_tables(collection)]
    said = Text(f"{joint_verdict(collection).headline}\n")
    return Group(Text(f"{collection.title}\n", style="bold"), said, *map(to_rich, tables))


def write_report(
    record: Record, folder: str | Path, paper: str | None = None, title: str = ""
) -> Path:
    """Write report.html, table.md, table.tex and figures/*; returns the path of the page.

    With the id of one of the paper's tables, its numbers stand beside those of the record.
    """
    return _write_record(record, _draw(record), Path(folder), paper, title)


def write_collection(collection: Collection, folder: str | Path) -> Path:
    """The report of every part in its own folder, and a joint page in this one: its path.

    A recipe without parts has one report, and that is it.
    """
    folder = Path(folder)
    if list(collection.parts) == [""]:
        return write_report(collection.parts[""], folder, collection.paper, collection.title)
    drawings = {part: _draw(record) for part, record in collection.parts.items()}
    joint, mains = _joint_tables(collection), _part_tables(collection)
    files = {
        "table.md": "\n".join(
            [
                f"## {markdown(collection.title)}\n",
                f"{markdown(joint_verdict(collection).headline)}\n",
                *(to_markdown(table) for table in (*joint, *mains)),
            ]
        ).encode(),
        "table.tex": _latex([*joint, *mains], collection.name),
        "report.html": render_collection(collection, joint, drawings).encode(),
    }
    for part, record in collection.parts.items():
        _write_record(record, drawings[part], folder / Collection.folder_of(part))
    _write(files, folder)
    return folder / "report.html"


Drawn = Sequence[tuple[Drawing, bytes]]  # each with its SVG


def _draw(record: Record) -> list[tuple[Drawing, bytes]]:
    figures, drawn = all_drawings(record), []
    with task("drawing figures", len(figures)) as tick:
        for drawing in figures:
            drawn.append((drawing, encode(drawing.figure, "svg")))
            tick(1)
    return drawn


def _write_record(
    record: Record, drawings: Drawn, folder: Path, paper: str | None = None, title: str = ""
) -> Path:
    """Everything is drawn before anything is written; the page, which people open, comes last."""
    tables, files = _tables(record, paper), dict[str, bytes]()
    for drawing, svg in drawings:
        files[f"figures/{drawing.key}.svg"] = svg
        files[f"figures/{drawing.key}.png"] = encode(drawing.figure, "png")
    files["table.md"] = "\n".join(
        [
            f"## {markdown(title or record.name)}\n",
            f"{markdown(record.sentence)}\n",
            f"{markdown(verdict(record).headline)}\n",
            *(to_markdown(table) for table in tables),
        ]
    ).encode()
    files["table.tex"] = _latex(tables, record.name)
    files["report.html"] = render_page(record, tables, drawings, title).encode()
    _write(files, folder)
    return folder / "report.html"


def _tables(record: Record, paper: str | None) -> tuple[Table, ...]:
    """Of the record, and after its differences the paper's table, if there is one to repeat."""
    tables = all_tables(record)
    if paper is None:
        return tables
    alone = Collection(record.name, record.name, paper, {"": record})
    first = [table for table in tables if table.key in ("accuracy", "differences")]
    rest = [table for table in tables if table not in first]
    return (*first, beside_table(alone, printed.table(paper)), *rest)


def _joint_tables(collection: Collection) -> list[Table]:
    beside = collection.paper and beside_table(collection, printed.table(collection.paper))
    return [table for table in (beside, trained_shapes_table(collection.parts)) if table]


def _part_tables(collection: Collection) -> list[Table]:
    return [part_table(part, record) for part, record in collection.parts.items()]


def _latex(tables: Sequence[Table], prefix: str) -> bytes:
    return "\n".join([LATEX_HEADER, *(to_latex(table, prefix) for table in tables)]).encode()


def _write(files: dict[str, bytes], folder: Path) -> None:
    for name, content in files.items():
        write_atomically(folder / name, partial(_fill, content))


def _fill(content: bytes, part: Path) -> None:
    part.write_bytes(content)
