"""The page of a model: its rounds and what they did, its classes, network, settings and file.

The page depends on the file alone. It needs no code of the user's, and text from the file is
escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kedge.errors import KedgeError
from kedge.models import model_file
from kedge.models.model_file import LineageEntry
from kedge.report.format import NONE, byte_size, counted, number
from kedge.report.model_summary import describe_model
from kedge.report.outcome import history_table, outcome_sentence, outcome_table
from kedge.report.outcome_figures import few_shot_figure, naming_figure, outcome_figure
from kedge.report.page import is_report, render
from kedge.report.style import encode
from kedge.report.table import Cell, Column, Row, Section, Table
from kedge.utils.atomic_io import write_text_atomically

NOT_MEASURED = (
    "What the rounds of this model did was not measured; their accuracy in validation is below."
)


def write_model_report(file: Path) -> Path:
    """Write the page of a model file beside it; returns its path."""
    page = file.with_name(f"{file.name}.html")
    if page.exists() and not is_report(page):
        raise KedgeError(f"{page}: already exists, and is no report; move it away.")
    contents = model_file.read(file)
    text = render_model(describe_model(file, contents), contents.lineage)
    write_text_atomically(page, text, is_report)
    return page


def render_model(about: dict[str, Any], lineage: Sequence[LineageEntry]) -> str:
    """The page, from the description of a model (`describe_model`)."""
    measured = [entry for entry in lineage if entry.outcome is not None]
    last = measured[-1] if measured else None
    drawn = [naming_figure(lineage), few_shot_figure(lineage), last and outcome_figure(last)]
    figures = [(figure, encode(figure.figure, "svg")) for figure in drawn if figure]
    classes = about["classes"]
    rounds = sorted({each["round"] for each in classes})
    return render(
        "model.html.jinja",
        figures,
        title=Path(about["file"]).name,
        sentences=[_about(about)],
        headlines=[_headline(last) if last else NOT_MEASURED],
        rounds=rounds_table(lineage),
        outcome=last and outcome_table(last),
        earlier=[(_headline(entry), outcome_table(entry)) for entry in reversed(measured[:-1])],
        history=history_table(lineage, max_origins=None) if measured[1:] else None,
        classes_by_round=[(t, [each for each in classes if each["round"] == t]) for t in rounds],
        has_images=any(each["images"] is not None for each in classes),
        network=_network(about),
        settings=[(entry, {"best epoch": entry.best_epoch, **entry.config}) for entry in lineage],
        file=_file(about),
    )


def _headline(entry: LineageEntry) -> str:
    return f"Round {entry.round}. {outcome_sentence(entry)}"


def _about(about: dict[str, Any]) -> str:
    n_rounds = counted(len(about["lineage"]), "rounds")
    return (
        f"A model that knows {counted(len(about['classes']), 'classes')} after {n_rounds}. "
        f"Network: {about['network']}."
    )


def rounds_table(lineage: Sequence[LineageEntry]) -> Table:
    """Data, method and validation of each round."""
    rows = []
    for entry in lineage:
        n_classes = len(entry.classes) + len(entry.untrained)
        validation = NONE if entry.val_accuracy is None else number(entry.val_accuracy)
        texts = (entry.method, f"{n_classes:,}", f"{entry.images:,}", validation)
        rows.append(Row(f"{entry.round}: {entry.source}", tuple(map(Cell, texts))))
    names = ("method", "classes", "images", "validation, %")
    caption = (
        "Classes: delivered in the round, trained on or known by their anchors alone. Images: "
        "those that trained. Validation: accuracy over episodes of images or classes that were set "
        "apart, in the epoch whose weights were kept."
    )
    columns, sections = tuple(map(Column, names)), (Section(tuple(rows)),)
    return Table("rounds", "Rounds", columns, sections, caption, stub="round: images from")


def _network(about: dict[str, Any]) -> dict[str, Any]:
    image, head, anchors = about["input"], about["head"], about["anchors"]
    side, origin = image["image_size"], about["pretrained"]
    facts = {
        "backbone": about["network"],
        "weights": f"{about['weights']:,}",
        "features": about["features"],
        "head": f"{head['head']}, temperature {head['temperature']:g}",
        "images": f"{side}×{side} px, {'colour' if image['colour'] else 'grey'}, {image['fit']}, "
        f"{image['interpolation']}{', inverted' if image['inverted'] else ''}",
        "anchors": f"{anchors['number']} of {anchors['length']} numbers, "
        f"{byte_size(anchors['bytes'])}{'; class means' if about['places'] else ''}",
    }
    if origin is not None:
        facts["first weights from"] = {name: value for name, value in origin.items() if value}
    if about["frozen"]:
        facts["frozen"] = about["frozen"]
    return facts


def _file(about: dict[str, Any]) -> dict[str, Any]:
    return {
        "size": byte_size(about["bytes"]),
        "format": f"kedge model, version {about['version']}",
        "SHA-256": about["sha256"],
    }
