"""The command that describes a model."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rich.console import Console
from tyro.conf import FlagCreatePairsOff, Positional, arg

from kedge.cli.arguments import (
    ModelFile,
    as_json,
    say,
)
from kedge.utils.progress import printable
from kedge.utils.text import format_bytes, pluralize

if TYPE_CHECKING:
    from pathlib import Path

    from kedge.models.model import Model

N_LISTED = 10  # classes


@dataclass(frozen=True)
class Show:
    """Describe a model: its rounds, the classes it knows, its network and its settings."""

    model: Positional[ModelFile]
    all: Annotated[FlagCreatePairsOff[bool], arg(help="List every class, not a few of them.")] = (
        False
    )
    format: Literal["table", "json"] = "table"
    """For people, or one JSON object for programs, which lists every class."""

    def run(self, console: Console) -> None:
        from kedge.models.model import Model

        about = describe(self.model, Model.load(self.model))
        if self.format == "json":
            print(as_json(about, indent=1))
        else:
            _show(console, about, self.all)


def describe(file: Path, model: Model) -> dict[str, Any]:
    config, anchors = model.config, model.anchors
    status = file.stat()
    return {
        "file": str(file),
        "bytes": status.st_size,
        "written": datetime.fromtimestamp(status.st_mtime).astimezone().isoformat("T", "seconds"),
        "input": {
            "image_size": config.image_size,
            "colour": config.n_channels == 3,
            "fit": config.resize,
            "inverted": config.inverted,
        },
        "backbone": asdict(config.backbone),
        "weights": sum(weight.numel() for weight in model.weights().values()),
        "features": config.n_features,
        "head": asdict(config.head),
        "anchors": {
            "number": len(anchors),
            "length": anchors.shape[1],
            "bytes": anchors.numel() * anchors.element_size(),
        },
        "places": model.class_means is not None,
        "lineage": [asdict(entry) for entry in model.lineage],
        "classes": list(model.classes),
    }


def _show(console: Console, about: dict[str, Any], everything: bool) -> None:
    image, backbone, head, anchors = (about[k] for k in ("input", "backbone", "head", "anchors"))
    side, colour = image["image_size"], "colour" if image["colour"] else "grey"
    square = "cropped to the centre square" if image["fit"] == "crop" else "stretched to a square"
    inverted = ", inverted" if image["inverted"] else ""
    name = backbone["backbone"]
    width = "" if name == "custom" else f" of width {backbone['width']}"
    lines = {
        "file": f"{about['file']}, {format_bytes(about['bytes'])}, "
        f"written {_day(about['written'])}",
        "images": f"{side}×{side} px, {colour}; others are {square}{inverted}",
        "network": f"{name}{width}, {about['weights']:,} weights, {about['features']} features",
        "head": f"{head['head']}, temperature {head['temperature']:g}",
        "anchors": f"{anchors['number']}, one per class, of {anchors['length']} numbers "
        f"({format_bytes(anchors['bytes'])}){', and class means' if about['places'] else ''}",
    }
    for title, text in lines.items():
        say(console, f"{title:8} {text}")
    for entry in about["lineage"]:
        say(console, f"round {entry['round']:<2} {_round(entry)}")
        say(console, f"{'':8} {_settings(entry)}")
    trained = {name for entry in about["lineage"] for name in entry["classes"]}
    _classes(console, about["classes"], trained, everything)


def _round(entry: dict[str, Any]) -> str:
    source = printable(entry["source"], one_line=True)
    return (
        f"{entry['method']}: {pluralize(len(entry['classes']), 'class', 'classes')}, "
        f"{entry['images']:,} {'image' if entry['images'] == 1 else 'images'} of "
        f"{source}; validation accuracy {entry['val_accuracy']:.1f}% in epoch {entry['best_epoch']}"
    )


def _settings(entry: dict[str, Any]) -> str:
    """The settings of a round, as far as the file has them: it may be of another version."""
    config = entry["config"]
    episode, schedule = config.get("episode", {}), config.get("schedule", {})
    parts = (
        (episode.get("n_way"), "{}-way", "{}-way"),
        (episode.get("n_shot"), "{}-shot", "{}-shot"),
        (episode.get("n_query"), "{} query", "{} queries"),
        (schedule.get("epochs"), "{} epoch", "{} epochs"),
        (schedule.get("episodes"), "{} episode each", "{} episodes each"),
        (schedule.get("lr"), "learning rate {}", "learning rate {}"),
        (config.get("seed"), "seed {}", "seed {}"),
    )
    return ", ".join(
        (one if value == 1 else several).format(_count(value))
        for value, one, several in parts
        if value is not None
    )


def _count(value: Any) -> str:
    return "–".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _classes(console: Console, classes: list[str], trained: set[str], everything: bool) -> None:
    if everything:
        for name in classes:
            say(console, printable(name, one_line=True))
        return
    listed = ", ".join(printable(name, one_line=True) for name in classes[:N_LISTED])
    more = (
        f", … (--all lists the other {len(classes) - N_LISTED})" if len(classes) > N_LISTED else ""
    )
    rest = sum(name not in trained for name in classes)
    note = f" ({rest} by their anchors alone, too few images to train on)" if rest else ""
    say(console, f"{pluralize(len(classes), 'class', 'classes')} known{note}: {listed}{more}")


def _day(written: str) -> str:
    return written[:16].replace("T", " ")
