"""HTML pages: each is one file that needs neither a network nor other files."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined

from kedge.experiments.records import Record, RecordSet
from kedge.report import queries
from kedge.report.style import ReportFigure, looks
from kedge.report.summary import METHODS
from kedge.report.table import Table
from kedge.utils.regular_file import read_text
from kedge.utils.text import printable


def is_report(page: Path) -> bool:
    """Whether a file is a page written by kedge, which may be overwritten."""
    try:
        return " – kedge</title>" in read_text(page)
    except (OSError, ValueError):
        return False


def render_page(
    title: str,
    sentences: Sequence[str],
    headlines: Sequence[str],
    parts: dict[str, Record],
    tables: Sequence[Table],
    figures: Sequence[tuple[ReportFigure, bytes]],
) -> str:
    """The page of a record (one part, named "") or of a record set; figures come with their SVG.

    The page of a record set links to the pages of its parts, which have the figures.
    """
    labels = [method for record in parts.values() for method in queries.final_methods(record)]
    families = looks(list(dict.fromkeys(map(queries.family, labels))))
    return render(
        "page.html.jinja",
        figures,
        title=title,
        headlines=headlines,
        sentences=sentences,
        methods=[(name, look, METHODS.get(name, "")) for name, look in families.items()],
        tables=tables,
        links={part: quote(f"{RecordSet.folder_of(part)}/report.html") for part in parts if part},
        record=parts.get(""),
    )


def render(
    template: str,
    figures: Sequence[tuple[ReportFigure, bytes]],
    *,
    headlines: Sequence[str],
    **values: Any,
) -> str:
    """A page from a template; figures come with their SVG."""
    environment = Environment(
        loader=PackageLoader("kedge.report", ""),
        autoescape=True,  # labels and class names are free text
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    return environment.get_template(template).render(
        headlines=[line.replace(" ± ", "\u00a0±\u00a0") for line in headlines],
        # As data URLs, because ids of several inline SVGs would clash.
        figures=[(figure, base64.b64encode(svg).decode("ascii")) for figure, svg in figures],
        **values,
    )
