"""Reports: a record as a table in the terminal, as Markdown, as LaTeX and as a page with figures.

A report is a function of its record alone; equal records give equal files, byte for byte. A
collection, the records of a recipe, gets a joint page besides.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from kedge.experiments import paper as printed
from kedge.experiments.records import Record, RecordSet
from kedge.report.figures import Drawing, all_drawings
from kedge.report.page import (
    heading,
    in_result,
    part_table,
    render_collection,
    render_page,
    title_of,
)
from kedge.report.paper_comparison import paper_comparison_table
from kedge.report.render import (
    LATEX_HEADER,
    markdown,
    slug,
    to_latex,
    to_markdown,
    to_rich,
)
from kedge.report.shapes import trained_shapes_table
from kedge.report.style import encode
from kedge.report.summary import joint_verdict, verdict
from kedge.report.table import Table
from kedge.report.tables import all_tables, parts_table
from kedge.utils.atomic_io import write_atomically
from kedge.utils.progress import task

__all__ = [
    "collection_terminal",
    "is_report",
    "terminal_table",
    "write_collection",
    "write_report",
]

IN_TERMINAL = ("accuracy", "differences", "beside", "shapes", "metrics", "matrix", "seeds")
IN_A_TERMINAL = 8  # columns; the matrix of many rounds has more, and its metrics say it shorter


def terminal_table(record: Record, paper: str | None = None) -> RenderableType:
    """The result, the differences and, if there are any, rounds and seeds.

    Print it with a `rich.console.Console`. What it cost and how the rounds in between went is in
    the files of `write_report`.
    """
    tables = [table for table in _tables(record, paper) if table.key in IN_TERMINAL]
    return Group(*(to_rich(table) for table in tables if len(table.columns) <= IN_A_TERMINAL))


def collection_terminal(collection: RecordSet) -> RenderableType:
    """Ours beside the paper's, and the main table of each part."""
    if list(collection.parts) == [""]:
        return terminal_table(collection.parts[""], collection.paper)
    tables = [*_joint_tables(collection), *_part_tables(collection)]
    said = Text(f"{joint_verdict(collection).headline}\n")
    return Group(Text(f"{heading(collection)}\n", style="bold"), said, *map(to_rich, tables))


def write_report(
    record: Record, folder: str | Path, paper: str | None = None, title: str = ""
) -> Path:
    """Write report.html, table.md, table.tex and figures/*; returns the path of the page.

    With the id of one of the paper's tables, its numbers stand beside those of the record.
    """
    return _write_record(record, _draw(record), Path(folder), paper, title)


def write_collection(collection: RecordSet, folder: str | Path) -> Path:
    """The report of every part in its own folder, and a joint page in this one: its path.

    A recipe without parts has one report, and that is it.
    """
    folder = Path(folder)
    if list(collection.parts) == [""]:
        return write_report(collection.parts[""], folder, collection.paper, heading(collection))
    drawn = {part: _draw(record) for part, record in collection.parts.items()}
    joint, mains = _joint_tables(collection), _part_tables(collection)
    files: dict[str, bytes] = {}
    shown = {part: [each for each in drawn[part] if in_result(each.drawing)] for part in drawn}
    for part, each in ((part, each) for part, some in shown.items() for each in some):
        files |= each.files(f"{slug(part)}-")
    files["table.md"] = "\n".join(
        [
            f"# {markdown(heading(collection))}\n",
            f"{markdown(joint_verdict(collection).headline)}\n",
            *(to_markdown(table) for table in (*joint, *mains)),
        ]
    ).encode()
    files["table.tex"] = _latex([*joint, *mains], collection.name)
    svgs = {part: _svgs(some) for part, some in shown.items()}
    files["report.html"] = render_collection(collection, joint, svgs).encode()
    for part, record in collection.parts.items():
        _write_record(record, drawn[part], folder / RecordSet.folder_of(part))
    _write(files, folder)
    return folder / "report.html"


def is_report(page: Path) -> bool:
    """Whether a file is a page that was written here, by its title, and may be written anew."""
    try:
        return " – kedge</title>".encode() in page.read_bytes()
    except OSError:
        return False


class Drawn(NamedTuple):
    drawing: Drawing
    svg: bytes
    png: bytes

    def files(self, prefix: str = "") -> dict[str, bytes]:
        name = f"figures/{prefix}{self.drawing.key}"
        return {f"{name}.svg": self.svg, f"{name}.png": self.png}


def _draw(record: Record) -> list[Drawn]:
    figures, drawn = all_drawings(record), []
    with task("drawing figures", len(figures)) as tick:
        for drawing in figures:
            svg, png = encode(drawing.figure, "svg"), encode(drawing.figure, "png")
            drawn.append(Drawn(drawing, svg, png))
            tick(1)
    return drawn


def _write_record(
    record: Record, drawn: Sequence[Drawn], folder: Path, paper: str | None = None, title: str = ""
) -> Path:
    """Everything is drawn before anything is written; the page, which people open, comes last."""
    tables, files = _tables(record, paper), dict[str, bytes]()
    for each in drawn:
        files |= each.files()
    files["table.md"] = "\n".join(
        [
            f"# {markdown(title or title_of(record))}\n",
            f"{markdown(record.sentence)}\n",
            f"{markdown(verdict(record).headline)}\n",
            *(to_markdown(table) for table in tables),
        ]
    ).encode()
    files["table.tex"] = _latex(tables, record.name)
    files["report.html"] = render_page(record, tables, _svgs(drawn), title).encode()
    _write(files, folder)
    return folder / "report.html"


def _svgs(drawn: Sequence[Drawn]) -> list[tuple[Drawing, bytes]]:
    return [(each.drawing, each.svg) for each in drawn]


def _tables(record: Record, paper: str | None) -> tuple[Table, ...]:
    """Of the record, and after its differences the paper's table, if there is one to repeat."""
    tables = all_tables(record)
    if paper is None:
        return tables
    alone = RecordSet(record.name, record.name, paper, {"": record})
    first = [table for table in tables if table.key in ("accuracy", "differences")]
    rest = [table for table in tables if table not in first]
    return (*first, paper_comparison_table(alone, printed.table(paper)), *rest)


def _joint_tables(collection: RecordSet) -> list[Table]:
    beside = collection.paper and paper_comparison_table(
        collection, printed.table(collection.paper)
    )
    shapes = trained_shapes_table(collection.parts)
    parts = None if beside or shapes else parts_table(collection.parts)
    return [table for table in (beside, shapes, parts) if table]


def _part_tables(collection: RecordSet) -> list[Table]:
    return [part_table(part, record) for part, record in collection.parts.items()]


def _latex(tables: Sequence[Table], prefix: str) -> bytes:
    return "\n".join([LATEX_HEADER, *(to_latex(table, prefix) for table in tables)]).encode()


def _write(files: dict[str, bytes], folder: Path) -> None:
    for name, content in files.items():
        write_atomically(folder / name, partial(Path.write_bytes, data=content))
