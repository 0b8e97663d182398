"""The commands. Only this file knows the command line; each command is a few lines of the API.

Heavy imports stand inside the commands, so that help and `kedge paper` answer at once.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from tyro.conf import OmitArgPrefixes, Positional, arg

from kedge.config import BackboneConfig, EpisodeShape, HeadConfig, Schedule
from kedge.errors import KedgeError

if TYPE_CHECKING:
    from kedge.model import Model

DRAWINGS = Schedule(epochs=10, episodes=100, val_episodes=200)
OWN_IMAGES = Schedule(epochs=20, episodes=100, val_episodes=200)
SMALL = BackboneConfig(width=32)
DATA_HELP = (
    "A folder with one sub-folder of images per class, a packed image file, or 'drawings' for "
    "the embedded ones."
)
Data = Annotated[str, arg(help=DATA_HELP, metavar="DATA")]


@dataclass(frozen=True)
class Bench:
    """Compare ways of improving a model from new classes, and write the table, figures and report.

    A model learns its old classes; then every method improves it from new classes, whose
    images are all it gets. Each result is tested on thousands of small classification
    problems (episodes) made of old, new and never seen classes, from images that were
    never trained on. Without options this takes some minutes on two CPU cores and needs no
    data: it uses the drawings that come with kedge.

    The methods: NU (no update: the old model as it is), FT (fine-tuning: nothing holds it,
    so it forgets), DFA (each feature is held where it was), IDA (each image is held to the
    same verdict relative to one remembered point, an anchor, per old class), PAR (the
    upper bound: trained from scratch on all old and new images together).

    A run that was stopped continues when the same command is given again. Methods and
    seeds can be added to a finished run; what is already there is not done twice.
    """

    protocol: Positional[str] = "drawings"
    """Which classes play which role: drawings (from natural to man-made things),
    drawings-reverse, drawings-random, or drawings-4-rounds (new classes come four times)."""
    methods: tuple[str, ...] = ("NU", "FT", "DFA", "IDA", "PAR")
    """The methods to compare, each in quotes if it has options: 'IDA lambda=5',
    'IDA anchors=all', 'DFA dimensions=mean'."""
    seeds: tuple[int, ...] = (0,)
    """Each seed draws other classes and other starting weights; several show how much that
    matters."""
    out: Path | None = None
    """Folder for the models, results and report; runs/PROTOCOL by default."""
    episode: EpisodeShape = field(default_factory=EpisodeShape)
    schedule: Schedule = DRAWINGS
    backbone: BackboneConfig = SMALL
    head: HeadConfig = field(default_factory=HeadConfig)
    eval_episodes: int = 2000
    """Test episodes per pool; the interval shrinks with their square root."""

    def run(self, console: Console) -> None:
        from kedge import progress
        from kedge.experiment import Experiment, run_experiment
        from kedge.report import terminal_table, write_report

        experiment = Experiment(
            self.protocol,
            self.methods,
            self.seeds,
            self.episode,
            self.schedule,
            self.backbone,
            self.head,
            self.eval_episodes,
        )
        folder = self.out or Path("runs") / self.protocol
        with progress.display():
            record = run_experiment(experiment, folder)
            page = write_report(record, folder)
        console.print(terminal_table(record))
        console.print(f"Figures: {folder / 'figures'}\nReport: {page}", soft_wrap=True)


@dataclass(frozen=True)
class Train:
    """Train a first model (round 0) on your own images.

    Some classes are set apart to measure progress; the best model by that measure is kept.
    A stopped command continues when it is given again.
    """

    data: Positional[Data]
    out: Path
    """Model file to write, for example base.kedge. An existing file is never overwritten."""
    val: str | None = None
    """Images of other classes to measure progress on; by default a fifth of DATA's classes is
    set apart."""
    image_size: int | None = None
    """Side in pixels to which images are brought; by default the size of small images, 84 for
    large ones."""
    episode: EpisodeShape = field(default_factory=EpisodeShape)
    schedule: Schedule = OWN_IMAGES
    backbone: BackboneConfig = field(default_factory=BackboneConfig)
    head: HeadConfig = field(default_factory=HeadConfig)
    seed: int = 0
    """Every random choice follows from this number."""

    def run(self, console: Console) -> None:
        from kedge import api, progress

        checkpoint = _claim(self.out)
        with progress.display():
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
        _finish(console, model, self.out, checkpoint)


@dataclass(frozen=True)
class Update:
    """Improve a model from new classes (one more round), without the images of the old ones.

    The old images are not needed and not read: each old class is remembered by its anchor,
    one point in feature space that the model file holds. A stopped command continues when
    it is given again.
    """

    model: Positional[Path]
    """The model to improve; its file is left as it is."""
    data: Positional[Data]
    out: Path
    """Model file to write, for example next.kedge. An existing file is never overwritten."""
    method: str = "IDA"
    """What holds the model to what it knew: IDA (relative to the anchors), DFA (every feature),
    or FT (nothing). With options in quotes: 'IDA lambda=5 anchors=all'."""
    val: str | None = None
    """Images of other classes to measure progress on; by default a fifth of DATA's classes is
    set apart."""
    episode: EpisodeShape = field(default_factory=EpisodeShape)
    schedule: Schedule = OWN_IMAGES
    seed: int = 0
    """Every random choice follows from this number."""

    def run(self, console: Console) -> None:
        from kedge import api, progress
        from kedge.model import Model

        model = Model.load(self.model)
        checkpoint = _claim(self.out)
        with progress.display():
            better = api.update(
                model,
                self.data,
                method=self.method,
                val=self.val,
                episode=self.episode,
                schedule=self.schedule,
                seed=self.seed,
                checkpoint=checkpoint,
            )
        _finish(console, better, self.out, checkpoint)


@dataclass(frozen=True)
class Evaluate:
    """Measure how well a model tells classes apart from a few examples of each.

    Thousands of small problems (episodes) are drawn from DATA: some classes, a few labelled
    examples of each, and further images to classify. Printed is the mean accuracy with its
    95% interval.
    """

    model: Positional[Path]
    """Model file, as written by train or update."""
    data: Positional[Data]
    episode: EpisodeShape = field(default_factory=EpisodeShape)
    n_episodes: int = 2000
    """How many episodes; the interval shrinks with their square root."""
    seed: int = 0
    """Which episodes are drawn; the same for every model, so that two can be compared."""

    def run(self, console: Console) -> None:
        from kedge import api, progress
        from kedge.images.readers import open_images
        from kedge.model import Model

        model = Model.load(self.model)
        with progress.display():
            table = open_images(self.data, model.config.image_size, model.config.n_channels)
            score = api.evaluate(
                model, table, episode=self.episode, n_episodes=self.n_episodes, seed=self.seed
            )
        shape = self.episode
        console.print(
            f"{score}% of the queries right: {shape.n_way}-way, {shape.n_shot}-shot, {score.n} "
            f"episodes over {len(table.classes)} classes",
            highlight=False,
        )
        seen = len(set(table.classes) & set(model.classes))
        if seen:
            console.print(
                f"{seen} of these classes were trained on; if their images were too, the number "
                "flatters.",
                style="yellow",
            )


@dataclass(frozen=True)
class Predict:
    """Classify images as one of a few classes, each shown to the model by some examples."""

    model: Positional[Path]
    """Model file, as written by train or update."""
    images: Positional[tuple[Path, ...]]
    """Images to classify, or folders of them."""
    support: Path
    """Folder of labelled examples: one sub-folder per class, any number of images in each."""
    format: Literal["table", "json"] = "table"
    """A table for people, or one JSON object per line for programs."""

    def run(self, console: Console) -> None:
        from kedge import progress
        from kedge.images.readers import open_images
        from kedge.images.readers.folder import images_in, read_files
        from kedge.model import Model

        model = Model.load(self.model)
        size, channels = model.config.image_size, model.config.n_channels
        files = [f for path in self.images for f in (images_in(path) if path.is_dir() else [path])]
        for file in files:
            if not file.is_file():
                raise KedgeError(f"{file}: no such image.")
        if not files:
            raise KedgeError(f"{self.images[0]}: no image was found here.")
        with progress.display():
            classifier = model.classifier(open_images(self.support, size, channels))
            pixels, unreadable = read_files(files, size, channels)
            best = classifier.probabilities(pixels).max(1)
        readable = [file for file in files if file not in set(unreadable)]
        names = [classifier.classes[i] for i in best.indices.tolist()]
        _show_predictions(console, readable, names, best.values.tolist(), self.format)
        if unreadable:
            raise KedgeError(
                f"{unreadable[0]}: cannot be read as an image"
                + (f", nor can {len(unreadable) - 1} more." if len(unreadable) > 1 else ".")
            )


@dataclass(frozen=True)
class Report:
    """Write the report of finished runs again: terminal table, Markdown, LaTeX and HTML."""

    runs: Positional[tuple[Path, ...]]
    """Folders that 'kedge bench' has written, or record.json files."""

    def run(self, console: Console) -> None:
        from kedge.records import Record
        from kedge.report import terminal_table, write_report

        for path in self.runs:
            file = path / "record.json" if path.is_dir() else path
            record = Record.load(file)
            console.print(terminal_table(record))
            console.print(f"Report: {write_report(record, file.parent)}", soft_wrap=True)


@dataclass(frozen=True)
class Paper:
    """Print the tables of the paper that kedge implements, with their known faults marked.

    Without a name, the tables are listed.
    """

    table: Positional[str | None] = None
    """Name or number of a table."""

    def run(self, console: Console) -> None:
        from kedge import paper

        if self.table is None:
            console.print(paper.overview())
        else:
            console.print(paper.render(paper.table(self.table)))


def _claim(out: Path) -> Path:
    """Where the state of the training is kept until the model is there."""
    if out.exists():
        raise KedgeError(f"{out}: already exists and is not overwritten; choose another --out.")
    return out.with_name(f"{out.name}.training")


def _finish(console: Console, model: Model, out: Path, checkpoint: Path) -> None:
    model.save(out)
    checkpoint.unlink(missing_ok=True)
    entry = model.lineage[-1]
    console.print(
        f"{out}: round {entry.round} ({entry.method}), {len(model.classes)} classes known; "
        f"validation accuracy {entry.val_accuracy:.1f}% in epoch {entry.best_epoch}",
        highlight=False,
        soft_wrap=True,
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


COMMANDS: dict[str, Callable[..., Any]] = {
    "bench": Bench,
    "train": Train,
    "update": Update,
    "evaluate": Evaluate,
    "predict": Predict,
    "report": Report,
    "paper": Paper,
}


def main() -> None:
    """Entry point: errors for the user are one sentence, a traceback means a bug."""
    command = tyro.extras.subcommand_cli_from_dict(
        COMMANDS,
        prog="kedge",
        description="Few-shot image classifiers that keep getting better.",
        config=(OmitArgPrefixes,),
    )
    try:
        command.run(Console())
    except KedgeError as error:
        sys.exit(f"kedge: {error}")
    except KeyboardInterrupt:
        print("kedge: stopped; the same command continues from here.", file=sys.stderr)
        sys.exit(130)
