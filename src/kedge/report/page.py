"""The page: one file that needs nothing else, neither a network nor a folder beside it."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from kedge.records import Record
from kedge.report import captions, reading
from kedge.report.figures import Drawing
from kedge.report.layout import Table
from kedge.report.notation import counted
from kedge.report.style import looks
from kedge.report.verdict import legends, verdict

PIXELS_PER_INCH = (58, 125)  # below, letters get too small to read; above, too large


def render_page(
    record: Record, tables: Sequence[Table], drawings: Sequence[tuple[Drawing, bytes]]
) -> str:
    """`drawings` come with their SVG, which goes into the page as it is."""
    page = Environment(
        loader=PackageLoader("kedge.report", ""),
        autoescape=True,  # labels and class names are free text
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    page.filters["unbroken"] = _unbroken
    look = looks(record.methods)
    by_key = {table.key: table for table in tables}
    return page.get_template("page.html.jinja").render(
        name=record.name,
        sentence=record.sentence,
        verdict=verdict(record),
        methods=[
            {"label": label, "legend": line, "look": look[label]}
            for label, line in legends(
                reading.methods_after(record, reading.final_round(record))
            ).items()
        ],
        tables={key: by_key.get(key) for key in TABLES},
        earlier=[table for table in tables if table.key not in TABLES],
        drawings={drawing.key: _picture(drawing, svg) for drawing, svg in drawings},
        measured=_measured(record),
        configuration=list(_flat(record.config)),
        environment=list(_flat(record.environment)),
        splits=[(seed, list(_flat(roles, counts=True))) for seed, roles in record.splits.items()],
    )


TABLES = ("accuracy", "differences", "matrix", "seeds", "cost")


def _unbroken(text: str) -> str:
    """No line ends within '+3.4 ± 0.3'."""
    return text.replace(" ± ", "\u00a0±\u00a0")


def _picture(drawing: Drawing, svg: bytes) -> dict[str, Any]:
    """As a data address: ids of several inline drawings would clash."""
    inches = drawing.figure.get_figwidth()
    return {
        "key": drawing.key,
        "title": drawing.title,
        "caption": drawing.caption,
        "source": "data:image/svg+xml;base64," + base64.b64encode(svg).decode("ascii"),
        "most": round(inches * PIXELS_PER_INCH[1]),
        "least": round(inches * PIXELS_PER_INCH[0]),
    }


def _measured(record: Record) -> list[str]:
    """What a reader has to know to trust an interval."""
    round = reading.final_round(record)
    every = captions.episodes(record, round)
    episodes = (
        "An episode is a small classification problem: some classes, a few labelled examples of "
        f"each, and further images to be named. Each pool of classes was tested with {every}, "
        "on images that were never trained on."
    )
    intervals = (
        "A value is the mean accuracy over episodes, its interval ±1.96 · standard deviation / "
        "√n over those n episodes. All methods answer the very same episodes, so a difference "
        "between two of them is taken episode by episode: what makes an episode hard for both "
        "cancels. Every comparison is judged by itself, at 95%: of two methods that are equal, "
        "one comparison in twenty would still be marked, by chance."
    )
    paragraphs = [" ".join([episodes, *captions.settings(record.config)]), intervals]
    if len(record.seeds) > 1:
        paragraphs.append(
            f"There are {counted(len(record.seeds), 'seeds')}, each with its own classes, weights "
            "and episodes. Means are over seeds; the intervals hold the episodes of all seeds "
            "together, not the spread between seeds."
        )
    return paragraphs


def _flat(value: Any, path: str = "", *, counts: bool = False) -> Iterator[tuple[str, str]]:
    """Nested settings as lines, 'schedule · epochs' → '200'; lists of names on one line."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{path} · {key}" if path else str(key), counts=counts)
    elif isinstance(value, list | tuple):
        if value and all(isinstance(inner, list | tuple | Mapping) for inner in value):
            for number, inner in enumerate(value):
                yield from _flat(inner, f"{path} {number}".strip(), counts=counts)
        else:
            number_of = f" ({len(value)})" if counts else ""
            yield path + number_of, ", ".join(str(inner) for inner in value) or "none"
    else:
        yield path, str(value)
