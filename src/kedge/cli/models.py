"""Commands that make a model from one's own images, improve it and use it."""

from __future__ import annotations

import json
import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from tyro.conf import Positional, arg

from kedge.cli.arguments import Data, ModelFile, NewModelFile, Seed, Validation, say
from kedge.config import (
    OWN_IMAGES,
    BackboneConfig,
    EpisodeShape,
    HeadConfig,
    Schedule,
    counted,
)
from kedge.errors import KedgeError

if TYPE_CHECKING:
    from torch import Tensor

    from kedge.model import Model


@dataclass(frozen=True)
class Train:
    """Train a first model (round 0) on your own images.

    Some classes are set apart to measure progress; the best model by that measure is kept.
    A stopped command continues when it is given again.
    """

    data: Positional[Data]
    out: NewModelFile
    val: Validation = None
    image_size: Annotated[
        int | None,
        arg(
            metavar="PIXELS",
            help="Side to which images are brought.",
            help_behavior_hint="(default: that of small images, 84 for large ones)",
        ),
    ] = None
    episode: EpisodeShape = field(default_factory=EpisodeShape)
    schedule: Schedule = OWN_IMAGES
    backbone: BackboneConfig = field(default_factory=BackboneConfig)
    head: HeadConfig = field(default_factory=HeadConfig)
    keep: Annotated[
        str | None,
        arg(
            metavar="METHOD",
            help="Also keep what this method will need for updates, in MODEL.memory beside the "
            "model: 'EIML exemplars=30' keeps images, EWC how much each weight matters. IDA "
            "needs nothing but the model.",
            help_behavior_hint="(default: nothing)",
        ),
    ] = None
    seed: Seed = 0

    def run(self, console: Console) -> None:
        from kedge import api, progress
        from kedge.methods import parse_method

        checkpoint = _claim(self.out)
        if self.keep is not None:
            parse_method(self.keep)  # a mistake shall not be told after hours of training
        with progress.display(), _alone(self.out):
            model = api.train(
                self.data,
                val=self.val,
                backbone=self.backbone.backbone,
                width=self.backbone.width,
                head=self.head.head,
                temperature=self.head.temperature,
                image_size=self.image_size,
                episode=self.episode,
                schedule=self.schedule,
                seed=self.seed,
                checkpoint=checkpoint,
            )
            if self.keep is not None:
                _keep(model, self.data, self.keep, None, self.seed, self.out)
            _finish(console, model, self.out, checkpoint)


@dataclass(frozen=True)
class Update:
    """Improve a model from new classes (one more round), without the images of the old ones.

    The old images are not needed and not read: each old class is remembered by its anchor,
    one point in feature space that the model file holds. The model that is given stays as
    it is. A stopped command continues when it is given again.
    """

    model: Positional[ModelFile]
    data: Positional[Data]
    out: NewModelFile
    method: Annotated[
        str,
        arg(
            help="What holds the model to what it knew: IDA (its verdicts relative to the "
            "anchors), DFA (every feature), EIML (images that were kept), EWC (its weights) or FT "
            "(nothing). With options in quotes: 'IDA lambda=5 anchors=all'. EIML and EWC need "
            "MODEL.memory, which 'kedge train --keep' and 'kedge update' write.",
        ),
    ] = "IDA"
    keep: Annotated[
        str | None,
        arg(
            metavar="METHOD",
            help="Keep what this method will need for later updates, in MODEL.memory beside the "
            "new model, and what lies beside the old one with it.",
            help_behavior_hint="(default: what --method needs)",
        ),
    ] = None
    val: Validation = None
    episode: EpisodeShape = field(default_factory=EpisodeShape)
    schedule: Schedule = OWN_IMAGES
    seed: Seed = 0

    def run(self, console: Console) -> None:
        from kedge import api, progress
        from kedge.model import Model

        model = Model.load(self.model)
        checkpoint = _claim(self.out)
        kept_for = self.keep or self.method
        memory, before = (_kept(self.model, model, each) for each in (self.method, kept_for))
        with progress.display(), _alone(self.out):
            better = api.update(
                model,
                self.data,
                method=self.method,
                val=self.val,
                episode=self.episode,
                schedule=self.schedule,
                seed=self.seed,
                checkpoint=checkpoint,
                memory=memory,
            )
            _keep(better, self.data, kept_for, before, self.seed, self.out)
            _finish(console, better, self.out, checkpoint)


@dataclass(frozen=True)
class Evaluate:
    """Measure how well a model tells classes apart from a few examples of each.

    Thousands of small problems (episodes) are drawn from DATA: some classes, a few labelled
    examples of each, and further images to classify. Printed is the mean accuracy with its
    95% interval.
    """

    model: Positional[ModelFile]
    data: Positional[Data]
    episode: EpisodeShape = field(default_factory=EpisodeShape)
    n_episodes: int = 2000
    """How many episodes; the interval shrinks with their square root."""
    seed: int = 0
    """Which episodes are drawn; the same for every model, so that two can be compared."""

    def run(self, console: Console) -> None:
        from kedge import api, progress
        from kedge.model import Model

        model = Model.load(self.model)
        with progress.display():
            table = api.to_test_on(model.open(self.data))
            score = api.evaluate(
                model, table, episode=self.episode, n_episodes=self.n_episodes, seed=self.seed
            )
        ways, shots = counted(self.episode.n_way), counted(self.episode.n_shot)
        say(
            console,
            f"{score}% of the queries right: {ways}-way, {shots}-shot, {score.n} episodes over "
            f"{len(table.classes)} classes",
        )
        seen = len(set(table.classes) & set(model.classes))
        if seen:
            print(
                f"kedge: {seen} of these classes were trained on; if their images were too, the "
                "number flatters.",
                file=sys.stderr,
            )


@dataclass(frozen=True)
class Predict:
    """Classify images as one of a few classes, each shown to the model by some examples."""

    model: Positional[ModelFile]
    images: Annotated[
        Positional[tuple[Path, ...]],
        arg(
            metavar="IMAGE ...",
            help="Images to classify, or folders of them.",
            help_behavior_hint="(at least one)",
        ),
    ]
    support: Annotated[
        Path,
        arg(
            metavar="FOLDER",
            help="Labelled examples: one sub-folder per class, any number of images in each.",
        ),
    ]
    format: Literal["table", "json"] = "table"
    """A table for people, or one JSON object per line for programs."""

    def run(self, console: Console) -> None:
        from kedge import progress
        from kedge.images.files.trees import FolderTree
        from kedge.images.pictures import looks_like_image
        from kedge.images.sources import read_files
        from kedge.model import Model

        model = Model.load(self.model)
        files: list[Path] = []
        for path in self.images:
            inside = FolderTree(path).names if path.is_dir() else ()
            files += [path / name for name in inside if looks_like_image(name)]
            files += [] if path.is_dir() else [path]
        for file in files:
            if not file.is_file():
                raise KedgeError(f"{file}: no such image.")
        if not files:
            where = self.images[0] if self.images else "IMAGE ..."
            raise KedgeError(f"{where}: no image to classify was found here.")
        with progress.display():
            classifier = model.classifier(self.support)
            pixels, unreadable = read_files(files, model.look)
            best = classifier.probabilities(pixels).max(1)
        readable = [file for file in files if file not in set(unreadable)]
        names = [classifier.classes[i] for i in best.indices.tolist()]
        _show_predictions(console, readable, names, best.values.tolist(), self.format)
        if unreadable:
            raise KedgeError(
                f"{unreadable[0]}: cannot be read as an image"
                + (f", nor can {len(unreadable) - 1} more." if len(unreadable) > 1 else ".")
            )


def _claim(out: Path) -> Path:
    """Where the state of the training is kept until the model is there."""
    checkpoint = out.with_name(f"{out.name}.training")
    for path in (out, _memory_of(out)):
        # A memory beside the state of a stopped command is that command's own.
        if path.exists() and (path == out or not checkpoint.exists()):
            raise KedgeError(
                f"{path}: already exists and is not overwritten; choose another --out."
            )
    return checkpoint


def _kept(file: Path, model: Model, method: str) -> dict[str, Tensor]:
    """What was kept for this method when the model was made."""
    from kedge.durable import load_tensors
    from kedge.methods import parse_method

    path = _memory_of(file)
    if not path.exists():
        return {}
    about, kept = load_tensors(path, "memory of a method")
    for_, wanted = str(about.get("method")).split()[0], parse_method(method).label.split()[0]
    # One of a model that was there before under this name is of no use.
    return kept if for_ == wanted and about.get("model") == model.fingerprint else {}


def _keep(
    model: Model, data: str, method: str, before: dict[str, Tensor] | None, seed: int, out: Path
) -> None:
    from kedge import api
    from kedge.durable import save_tensors
    from kedge.methods import parse_method

    kept = api.remember(model, data, method=method, before=before, seed=seed)
    if kept:
        about = {"method": parse_method(method).label, "model": model.fingerprint}
        save_tensors(_memory_of(out), kept, about)


def _memory_of(model: Path) -> Path:
    return model.with_name(f"{model.name}.memory")


def _alone(out: Path) -> AbstractContextManager[None]:
    from kedge.durable import only_one_process

    return only_one_process(out.parent, f".{out.name}.lock")


def _finish(console: Console, model: Model, out: Path, checkpoint: Path) -> None:
    model.save(out)
    checkpoint.unlink(missing_ok=True)
    entry = model.lineage[-1]
    say(
        console,
        f"{out}: round {entry.round} ({entry.method}), {len(model.classes)} classes known; "
        f"validation accuracy {entry.val_accuracy:.1f}% in epoch {entry.best_epoch}",
    )


def _show_predictions(
    console: Console, files: list[Path], names: list[str], sure: list[float], format: str
) -> None:
    rows = list(zip(files, names, sure, strict=True))
    if format == "json":
        for file, name, p in rows:
            line = {"image": str(file), "class": name, "probability": round(p, 6)}
            print(json.dumps(line, ensure_ascii=False))
        return
    table = Table("image", "class", "probability")
    for file, name, p in rows:
        table.add_row(escape(str(file)), escape(name), f"{100 * p:.1f}%")
    console.print(table)
