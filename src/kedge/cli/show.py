"""The command that describes a model."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from tyro.conf import FlagCreatePairsOff, Positional

from kedge.cli.arguments import ModelFile, as_json, say, validation_text
from kedge.utils.progress import printable
from kedge.utils.text import format_bytes, pluralize

if TYPE_CHECKING:
    from pathlib import Path

    from kedge.models.model_file import ModelContents

N_LISTED = 10  # classes
SCRATCH = ("conv4", "resnet12", "resnet12-wide")  # networks that have a width
TRAINED = {"none": "nothing trained", "head": "the head trained", "last": "the last layers trained"}


@dataclass(frozen=True)
class Show:
    """Describe a model: its rounds, the classes it knows, its network and its settings."""

    model: Positional[ModelFile]
    all: FlagCreatePairsOff[bool] = False
    """List every class, not a few of them."""
    format: Literal["table", "json"] = "table"
    """For people, or one JSON object for programs, which lists every class."""

    def run(self, console: Console) -> None:
        from kedge.models import model_file
        from kedge.models.model import Model

        contents = model_file.read(self.model)
        if contents.own_backbone:  # its code is not needed to describe the rest
            n_weights = contents.n_weights
        else:
            n_weights = sum(weight.numel() for weight in Model.load(self.model).weights().values())
        about = describe(self.model, contents, n_weights)
        if self.format == "json":
            print(as_json(about, indent=1))
        else:
            _show(console, about, self.all)


def describe(file: Path, model: ModelContents, n_weights: int) -> dict[str, Any]:
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
            "interpolation": config.interpolation,
        },
        "backbone": asdict(config.backbone),
        "pretrained": None if config.pretrained is None else asdict(config.pretrained),
        "frozen": list(config.frozen),
        "weights": n_weights,
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
    size, network = format_bytes(about["bytes"]), _network(backbone, about["pretrained"])
    written = about["written"][:16].replace("T", " ")
    lines = {
        "file": f"{about['file']}, {size}, written {written}",
        "images": f"{side}×{side} px, {colour}; others are {square}{inverted}",
        "network": f"{network}, {about['weights']:,} weights, {about['features']} features",
        "started": _origin(about["pretrained"], about["frozen"]),
        "head": f"{head['head']}, temperature {head['temperature']:g}",
        "anchors": f"{anchors['number']}, one per class, of {anchors['length']} numbers "
        f"({format_bytes(anchors['bytes'])}){', and class means' if about['places'] else ''}",
    }
    for title, text in lines.items():
        if text:
            say(console, f"{title:8} {text}")
    for entry in about["lineage"]:
        say(console, f"round {entry['round']:<2} {_round(entry)}")
        say(console, f"{'':8} {_settings(entry['config'])}")
    rounds = (entry for entry in about["lineage"] if _trains(entry["config"]))
    trained = {name for entry in rounds for name in entry["classes"]}
    _show_classes(console, about["classes"], trained, everything)


def _network(backbone: dict[str, Any], origin: dict[str, str] | None) -> str:
    name = backbone["backbone"]
    if name == "custom":
        return "your own" if origin is None else f"your own: {_text(origin['architecture'])}"
    return f"{name} of width {backbone['width']}" if name in SCRATCH else name


def _origin(origin: dict[str, str] | None, frozen: list[str]) -> str:
    """Where the first weights came from, and what of the network never trains."""
    if origin is None or not origin["sha256"]:  # it started from random weights
        return ""
    architecture, version = _text(origin["architecture"]), _text(origin["version"])
    version = f" (version {version})" if version else ""
    parts = [f"from weights of {architecture}{version}"]
    if origin["file"]:
        parts.append(f"file {_text(origin['file'])}")
    parts.append(f"SHA-256 {_text(origin['sha256'])}")
    if frozen:
        parts.append(f"{pluralize(len(frozen), 'part')} of it frozen")
    return ", ".join(parts)


def _text(text: str) -> str:
    return printable(text, one_line=True)


def _round(entry: dict[str, Any]) -> str:
    return (
        f"{entry['method']}: {pluralize(len(entry['classes']), 'class', 'classes')}, "
        f"{entry['images']:,} {'image' if entry['images'] == 1 else 'images'} of "
        f"{_text(entry['source'])}; " + validation_text(entry["val_accuracy"], entry["best_epoch"])
    )


def _trains(config: dict[str, Any]) -> bool:
    """Whether a round with this configuration trained anything, or only made anchors."""
    schedule = config.get("schedule", {})
    return bool(schedule.get("epochs", 1)) and schedule.get("train") != "none"


def _settings(config: dict[str, Any]) -> str:
    """The settings of a round, as far as the file has them: it may be of another version."""
    values = {**config.get("episode", {}), **config.get("schedule", {}), **config}
    if not _trains(config):
        return TRAINED["none"]
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
    if (train := values.get("train")) in TRAINED:
        parts.append(TRAINED[train])
    return ", ".join(parts)


def _show_classes(
    console: Console, classes: list[str], trained: set[str], everything: bool
) -> None:
    names = [_text(name) for name in classes]
    if everything:
        for name in names:
            say(console, name)
        return
    more = f", … (--all lists the other {len(names) - N_LISTED})" if names[N_LISTED:] else ""
    rest = sum(name not in trained for name in classes)
    note = f" ({rest} by their anchors alone, not trained on)" if rest else ""
    count, listed = pluralize(len(names), "class", "classes"), ", ".join(names[:N_LISTED])
    say(console, f"{count} known{note}: {listed}{more}")
