"""The page: one file that needs nothing else, neither a network nor a folder beside it."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from kedge.experiments.records import Record, RecordSet
from kedge.report import captions, queries
from kedge.report.figures import Drawing
from kedge.report.format import counted
from kedge.report.render import slug
from kedge.report.style import looks
from kedge.report.summary import (
    joint_verdict,
    legends,
    verdict,
)
from kedge.report.table import Table
from kedge.report.tables import accuracy_table

HEADS = {"prototype": "prototypes", "ecm": "ECM", "ridge": "the ridge head"}
PIXELS_PER_INCH = (58, 125)  # below, letters get too small to read; above, too large


def render_page(
    record: Record,
    tables: Sequence[Table],
    drawings: Sequence[tuple[Drawing, bytes]],
    title: str = "",
) -> str:
    """`drawings` come with their SVG, which goes into the page as it is."""
    by_key = {table.key: table for table in tables}
    return _template("page.html.jinja").render(
        name=title or title_of(record),
        sentence=record.sentence,
        source="one record",
        verdict=verdict(record),
        methods=_methods(queries.methods_after(record, queries.final_round(record))),
        tables={key: by_key.get(key) for key in TABLES},
        earlier=[table for table in tables if table.key not in TABLES],
        drawings=_placed(drawings),
        measured=_measured(record),
        configuration=list(_flat(record.config)),
        environment=list(_flat(record.environment)),
        splits=[(seed, list(_flat(roles, counts=True))) for seed, roles in record.splits.items()],
    )


def render_collection(
    collection: RecordSet,
    tables: Sequence[Table],
    drawings: Mapping[str, Sequence[tuple[Drawing, bytes]]],
) -> str:
    """The joint page; `drawings` by part, as many as are to be shown.

    Each part has a page of its own in its folder.
    """
    records = collection.parts.values()
    methods = dict.fromkeys(
        method
        for record in records
        for method in queries.methods_after(record, queries.final_round(record))
    )
    return _template("collection.html.jinja").render(
        name=heading(collection),
        sentence=" ".join(dict.fromkeys(record.sentence for record in records)),
        source="the records of its parts",
        verdict=joint_verdict(collection),
        methods=_methods(tuple(methods)),
        tables=tables,
        parts=[
            {
                "name": part,
                "link": quote(f"{RecordSet.folder_of(part)}/report.html"),
                "table": part_table(part, record),
                "drawings": [_picture(drawing, svg, part) for drawing, svg in drawings[part]],
            }
            for part, record in collection.parts.items()
        ],
    )


def heading(collection: RecordSet) -> str:
    """A recipe's title is a sentence; above a page it needs no full stop. What has no title but
    its name gets that of its record."""
    if collection.title != collection.name:
        return collection.title.removesuffix(".")
    return title_of(next(iter(collection.parts.values())), collection.name)


def title_of(record: Record, name: str = "") -> str:
    """'mine: Drawings, classes split at random, with prototypes, 5-way 5-shot, 3 seeds'."""
    about = re.split(r"[:;(]", record.sentence)[0].strip().rstrip(".")
    kind, shape = record.config.get("head", {}).get("head"), queries.trained(record)
    updates, seeds = len(queries.incremental_rounds(record)), len(record.seeds)
    facts = [
        about,
        f"{updates} updates" if updates > 1 else "",
        f"with {HEADS.get(kind, kind)}" if kind else "",
        str(shape) if shape else "",
        f"{seeds} seeds" if seeds > 1 else "",
    ]
    said = ", ".join(filter(None, facts))
    return ": ".join(filter(None, [name or record.name, said]))


def part_table(part: str, record: Record) -> Table:
    """The main table of a part, named so that several can stand on one page."""
    table = accuracy_table(record, queries.final_round(record))
    return replace(table, key=f"{slug(part)}-{table.key}", title=f"{part}: {table.title.lower()}")


def _template(name: str) -> Template:
    page = Environment(
        loader=PackageLoader("kedge.report", ""),
        autoescape=True,  # labels and class names are free text
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    page.filters["unbroken"] = _unbroken
    return page.get_template(name)


def _methods(labels: Sequence[str]) -> list[dict[str, Any]]:
    look = looks(labels)
    return [
        {"label": label, "legend": line, "look": look[label]}
        for label, line in legends(labels).items()
    ]


TABLES = (
    "accuracy", "differences", "beside", "shapes", "metrics", "matrix", "seeds", "cost",
    "cost-rounds",
)  # fmt: skip
FIGURES = {  # section: keys of the figures in it, in their order; "sweep" is any sweep-…
    "result": ("accuracy", "old-new", "sweep"),
    "rounds": ("rounds", "matrix", "drift"),
    "anchors": ("anchors",),
    "training": ("training",),
}


def in_result(drawing: Drawing) -> bool:
    """Whether a figure stands beside the main table; the joint page shows no others."""
    return _kind(drawing) in FIGURES["result"]


def _placed(drawings: Sequence[tuple[Drawing, bytes]]) -> dict[str, list[dict[str, Any]]]:
    """Figures by section. One that is not known here is shown too, under "further"."""
    known = {kind: where for where, kinds in FIGURES.items() for kind in kinds}
    order = {kind: place for place, kind in enumerate(known)}
    placed: dict[str, list[dict[str, Any]]] = {where: [] for where in (*FIGURES, "further")}
    ranked = sorted(drawings, key=lambda drawn: order.get(_kind(drawn[0]), len(order)))
    for drawing, svg in ranked:
        placed[known.get(_kind(drawing), "further")].append(_picture(drawing, svg))
    return placed


def _kind(drawing: Drawing) -> str:
    return "sweep" if drawing.key.startswith("sweep-") else drawing.key


def _unbroken(text: str) -> str:
    """No line ends within '+3.4 ± 0.3'."""
    return text.replace(" ± ", "\u00a0±\u00a0")


def _picture(drawing: Drawing, svg: bytes, part: str = "") -> dict[str, Any]:
    """As a data address: ids of several inline drawings would clash."""
    inches = drawing.figure.get_figwidth()
    return {
        "key": f"{slug(part)}-{drawing.key}" if part else drawing.key,
        "title": drawing.title,
        "caption": drawing.caption,
        "source": "data:image/svg+xml;base64," + base64.b64encode(svg).decode("ascii"),
        "most": round(inches * PIXELS_PER_INCH[1]),
        "least": round(inches * PIXELS_PER_INCH[0]),
    }


def _measured(record: Record) -> list[str]:
    """What a reader has to know to trust an interval."""
    round = queries.final_round(record)
    every = captions.episodes(record, round) + (" for each seed" if len(record.seeds) > 1 else "")
    episodes = (
        "An episode is a small classification problem: some classes, a few labelled examples of "
        f"each, and further images to be named. Each pool of classes was tested with {every}, "
        "on images that were never trained on."
    )
    seeds = len(record.seeds)
    value = (
        f"A value is the mean over {seeds} seeds, each with its own classes, weights and episodes; "
        "its interval is that of Student’s t over the seeds, so it holds what another draw might "
        "change. All methods share a seed’s classes, weights and episodes, so a difference "
        "between two of them is taken seed by seed: what makes a draw hard for both cancels."
        if queries.intervals_over_seeds(record)
        else "A value is the mean accuracy over episodes, its interval ±1.96 · standard "
        "deviation / √n over those n episodes. All methods answer the very same episodes, so a "
        "difference between two of them is taken episode by episode: what makes it hard for both "
        "cancels."
    )
    intervals = (
        f"{value} Every comparison is judged by itself, at 95%: of two methods that are equal, "
        "one comparison in twenty would still be marked, by chance."
    )
    paragraphs = [" ".join([episodes, *captions.settings(record)]), intervals]
    if seeds > 1 and not queries.intervals_over_seeds(record):
        paragraphs.append(
            f"There are {counted(seeds, 'seeds')}, each with its own classes, weights "
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
