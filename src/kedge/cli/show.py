"""The command that describes a model."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from tyro.conf import FlagCreatePairsOff, Positional

from kedge.cli.arguments import ModelFile, as_json, say
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
    all: FlagCreatePairsOff[bool] = False
    """List every class, not a few of them."""
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
    name, size = backbone["backbone"], format_bytes(about["bytes"])
    width = "" if name == "custom" else f" of width {backbone['width']}"
    written = about["written"][:16].replace("T", " ")
    lines = {
        "file": f"{about['file']}, {size}, written {written}",
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
        say(console, f"{'':8} {_settings(entry['config'])}")
    trained = {name for entry in about["lineage"] for name in entry["classes"]}
    _show_classes(console, about["classes"], trained, everything)


def _round(entry: dict[str, Any]) -> str:
    return (
        f"{entry['method']}: {pluralize(len(entry['classes']), 'class', 'classes')}, "
        f"{entry['images']:,} {'image' if entry['images'] == 1 else 'images'} of "
        f"{printable(entry['source'], one_line=True)}; validation accuracy "
        f"{entry['val_accuracy']:.1f}% in epoch {entry['best_epoch']}"
    )


def _settings(config: dict[str, Any]) -> str:
    """The settings of a round, as far as the file has them: it may be of another version."""
    values = {**config.get("episode", {}), **config.get("schedule", {}), **config}
    texts = {  # of one, and of several
        "n_way": ("{}-way", "{}-way"),
        "n_shot": ("{}-shot", "{}-shot"),
        "n_query": ("{} query", "{} queries"),
        "epochs": ("{} epoch", "{} epochs"),
        "episodes": ("{} episode each", "{} episodes each"),
        "lr": ("learning rate {}", "learning rate {}"),
        "seed": ("seed {}", "seed {}"),
    }
    parts = []
    for name, (one, several) in texts.items():
        if (value := values.get(name)) is not None:
            count = "–".join(map(str, value)) if isinstance(value, list | tuple) else value
            parts.append((one if value == 1 else several).format(count))
    return ", ".join(parts)


def _show_classes(
    console: Console, classes: list[str], trained: set[str], everything: bool
) -> None:
    names = [printable(name, one_line=True) for name in classes]
    if everything:
        for name in names:
            say(console, name)
        return
    more = f", … (--all lists the other {len(names) - N_LISTED})" if names[N_LISTED:] else ""
    rest = sum(name not in trained for name in classes)
    note = f" ({rest} by their anchors alone, too few images to train on)" if rest else ""
    count, listed = pluralize(len(names), "class", "classes"), ", ".join(names[:N_LISTED])
    say(console, f"{count} known{note}: {listed}{more}")
