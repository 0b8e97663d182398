"""The command that describes a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text
from tyro.conf import FlagCreatePairsOff, Positional

from kedge.cli.arguments import Json, ModelFile, as_json, load_pytorch, option, say, validation_text
from kedge.utils import signature
from kedge.utils.progress import printable
from kedge.utils.text import format_bytes, pluralize

if TYPE_CHECKING:
    from kedge.models.model_file import LineageEntry

N_LISTED = 10  # classes
TRAINED = {"none": "nothing trained", "head": "the head trained", "last": "the last layers trained"}


@dataclass(frozen=True)
class Show:
    """Describe a model: its rounds and what they did, its classes, its network and its settings.

    'kedge report MODEL' writes the same as a page, with figures.
    """

    model: Positional[ModelFile]
    all: FlagCreatePairsOff[bool] = False
    """List every class, with the round that it was learned in and the number of images that its
    mean was computed from."""
    verify: Annotated[Path | None, option("KEY.pub", "no signature is needed")] = None
    """Check first that MODEL.sig is a signature of exactly this file by the key; nothing is shown
    of a model without one. 'kedge sign' makes signatures and keys."""
    json: Json = False

    def run(self, console: Console) -> None:
        if self.verify is not None:
            signature.verify(self.model, self.verify)
        load_pytorch(self.model)
        from kedge.models import model_file
        from kedge.report.model_summary import describe_model

        contents = model_file.read(self.model)
        about = describe_model(self.model, contents)
        about["verified"] = None if self.verify is None else str(self.verify)
        if self.json:
            print(as_json(about, indent=1))
        else:
            if self.verify is not None:
                say(console, f"{'signed':8} by the key {self.verify}; the file is unchanged since")
            _show(console, about)
            _show_history(console, contents.lineage)
            _show_classes(console, about, self.all)


def _show(console: Console, about: dict[str, Any]) -> None:
    image, head, anchors = (about[k] for k in ("input", "head", "anchors"))
    side, colour = image["image_size"], "colour" if image["colour"] else "grey"
    square = "cropped to the centre square" if image["fit"] == "crop" else "stretched to a square"
    inverted = ", inverted" if image["inverted"] else ""
    size, network = format_bytes(about["bytes"]), _text(about["network"])
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
    if (privacy := about["private"]) is not None:
        lines["private"] = _private(privacy)
    for title, text in lines.items():
        if text:
            say(console, f"{title:8} {text}")
    for entry in about["lineage"]:
        say(console, f"round {entry['round']:<2} {_round(entry)}")
        say(console, f"{'':8} {_settings(entry['config'])}")


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


def _private(privacy: dict[str, Any]) -> str:
    noise = f"noise {privacy['noise']:g}" if privacy["noise"] else "no noise"
    return (
        f"written with --private: no paths, {privacy['min_images']} images of each class or more, "
        f"{noise} (docs/privacy.md)"
    )


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


def _show_history(console: Console, lineage: Sequence[LineageEntry]) -> None:
    """What each round did, if it was measured."""
    from kedge.report.outcome import history_table, outcome_sentence
    from kedge.report.render import to_rich

    if (table := history_table(lineage)) is not None:
        say(console, "")
        console.print(to_rich(table))
        if lineage[-1].outcome is not None:
            say(console, f"Round {lineage[-1].round}. {outcome_sentence(lineage[-1])}\n")


def _show_classes(console: Console, about: dict[str, Any], everything: bool) -> None:
    classes = about["classes"]
    if everything:
        grid = Table.grid(Column(overflow="fold"), Column(), Column(), padding=(0, 2))
        for each in classes:
            images = "" if each["images"] is None else pluralize(each["images"], "image")
            grid.add_row(Text(_text(each["name"])), f"round {each['round']}", images)
        console.print(grid)
        return
    rounds = (entry for entry in about["lineage"] if _trains(entry["config"]))
    trained = {name for entry in rounds for name in entry["classes"]}
    names = [_text(each["name"]) for each in classes]
    more = f", … (--all lists the other {len(names) - N_LISTED})" if names[N_LISTED:] else ""
    rest = sum(each["name"] not in trained for each in classes)
    note = f" ({rest} by their anchors alone, not trained on)" if rest else ""
    count, listed = pluralize(len(names), "class", "classes"), ", ".join(names[:N_LISTED])
    say(console, f"{count} known{note}: {listed}{more}")
