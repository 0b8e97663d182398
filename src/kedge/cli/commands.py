"""What each command takes and does: a few lines of the API.

Heavy imports stand inside the commands, so that help and `kedge paper` answer at once.
"""

from __future__ import annotations

import json
import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table
from tyro.conf import Positional, arg

from kedge.cli.arguments import Data, ModelFile, NewModelFile, Seed, Shape, Validation
from kedge.config import (
    OWN_IMAGES,
    SHORT,
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

SMALL = BackboneConfig(width=32)


@dataclass(frozen=True)
class Bench:
    """Compare ways of improving a model from new classes, and write the table, figures and report.

    A model learns its old classes. Then every method improves it from new classes, whose
    images are all it gets: the old images are gone. The results are tested on thousands of
    small classification problems (episodes) made of old, of new and of never seen classes,
    with images that were never trained on. Without options this takes some minutes on two
    CPU cores and needs no data: it uses drawings that come with kedge.

    The methods:
    - NU: no update, the old model as it is.
    - FT: fine-tuning on the new classes; nothing holds it, so it forgets.
    - DFA: fine-tuning, but each image must keep its feature (direct feature alignment).
    - EWC: fine-tuning, but weights that mattered for the old classes are held back (elastic
      weight consolidation).
    - EIML: fine-tuning that also rehearses tasks made of some kept images of every old class
      (exemplar-based incremental meta-learning).
    - IDA: fine-tuning, but each image must keep its verdict relative to one remembered
      point per old class, the anchors (indirect discriminant alignment).
    - PAR: the paragon, trained from scratch on all old and new images together, which none
      of the others may see.

    A run that was stopped continues when the same command is given again. Methods and
    seeds that are asked for later join those in the folder; nothing is done twice.
    """

    name: Annotated[
        Positional[str],
        arg(
            metavar="[NAME]",
            help="A recipe (see 'kedge recipes'), a recipe file of your own (.toml), or a "
            "protocol, which says which classes play which role: drawings (from natural to "
            "man-made things), drawings-reverse, drawings-random, drawings-4-rounds (new classes "
            "come four times), … The options below change what the recipe says.",
        ),
    ] = "drawings"
    methods: Annotated[
        tuple[str, ...],
        arg(
            metavar="METHOD ...",
            help="What to compare. A method with options is written in quotes: "
            "'IDA lambda=5', 'IDA anchors=all', 'IDA divergence=js temperature=4', "
            "'EIML exemplars=60 choice=nearest', 'DFA dimensions=mean'.",
        ),
    ] = ("NU", "FT", "DFA", "IDA", "PAR")
    seeds: Annotated[
        tuple[int, ...],
        arg(
            metavar="SEED ...",
            help="Each seed draws other classes and other starting weights; several show how "
            "much that matters.",
        ),
    ] = (0,)
    data: Annotated[
        str | None,
        arg(
            metavar="DATA",
            help="Images on disk, for a protocol that does not bring its own: a folder with one "
            "sub-folder of images per class, or a packed image file.",
            help_behavior_hint="(the drawings need none)",
        ),
    ] = None
    out: Annotated[
        Path | None,
        arg(
            metavar="FOLDER",
            help="Where models, results and report go.",
            help_behavior_hint="(default: runs/NAME)",
        ),
    ] = None
    episode: EpisodeShape = field(default_factory=EpisodeShape)
    update_ways: Shape = None
    """Classes in each episode of the rounds after the first."""
    update_shots: Shape = None
    """Examples per class in each episode of the rounds after the first."""
    test_ways: Annotated[
        tuple[int, ...],
        arg(
            metavar="WAYS ...",
            help="Classes in the test episodes; several are all tested.",
            help_behavior_hint="(default: as in training)",
        ),
    ] = ()
    test_shots: Annotated[
        tuple[int, ...],
        arg(
            metavar="SHOTS ...",
            help="Examples per class in the test episodes; several are all tested.",
            help_behavior_hint="(default: as in training)",
        ),
    ] = ()
    schedule: Schedule = SHORT
    backbone: BackboneConfig = SMALL
    head: HeadConfig = field(default_factory=HeadConfig)
    eval_episodes: int = 2000
    """Test episodes per pool; the interval shrinks with their square root."""

    @classmethod
    def default(cls, args: list[str]) -> Bench:
        """What the named recipe says, so that help and options start from there."""
        from kedge.recipes import load_recipe

        name = args[0] if args and not args[0].startswith("-") else "drawings"
        recipe = load_recipe(name)
        if not recipe.settings.keys() - {"protocol"}:
            return cls(name)
        base = recipe.base()
        same = {f.name for f in fields(cls)} - {"name", "out"}
        return cls(name, **{key: getattr(base, key) for key in same})

    def run(self, console: Console) -> None:
        from kedge import progress
        from kedge.bench import run_recipe
        from kedge.recipes import load_recipe
        from kedge.report import collection_terminal

        recipe = load_recipe(self.name)
        same = {f.name for f in fields(self)} - {"name", "out"}
        base = replace(recipe.base(), **{key: getattr(self, key) for key in same})
        folder = self.out or Path("runs") / recipe.name
        with progress.display():
            collection, page = run_recipe(recipe, base, folder)
        console.print(collection_terminal(collection))
        _say(console, f"Figures: {folder / 'figures'}\nReport: {page}")


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
    val: Validation = None
    episode: EpisodeShape = field(default_factory=EpisodeShape)
    schedule: Schedule = OWN_IMAGES
    seed: Seed = 0

    def run(self, console: Console) -> None:
        from kedge import api, progress
        from kedge.model import Model

        model = Model.load(self.model)
        checkpoint = _claim(self.out)
        memory = _kept(self.model, model, self.method)
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
            _keep(better, self.data, self.method, memory, self.seed, self.out)
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
            table = model.open(self.data)
            score = api.evaluate(
                model, table, episode=self.episode, n_episodes=self.n_episodes, seed=self.seed
            )
        ways, shots = counted(self.episode.n_way), counted(self.episode.n_shot)
        _say(
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
        from kedge.images.readers.folder import images_in, read_files
        from kedge.model import Model

        model = Model.load(self.model)
        size, channels = model.config.image_size, model.config.n_channels
        files = [f for path in self.images for f in (images_in(path) if path.is_dir() else [path])]
        for file in files:
            if not file.is_file():
                raise KedgeError(f"{file}: no such image.")
        if not files:
            where = self.images[0] if self.images else "IMAGE ..."
            raise KedgeError(f"{where}: no image to classify was found here.")
        with progress.display():
            classifier = model.classifier(self.support)
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

    runs: Annotated[
        Positional[tuple[Path, ...]],
        arg(
            metavar="RUN ...",
            help="Folders that 'kedge bench' wrote, or record.json files.",
            help_behavior_hint="(at least one)",
        ),
    ]

    def run(self, console: Console) -> None:
        from kedge import progress
        from kedge.bench import report_again

        if not self.runs:
            raise KedgeError("RUN: name at least one folder that 'kedge bench' has written.")
        for path in self.runs:
            with progress.display():
                shown, page = report_again(path)
            console.print(shown)
            _say(console, f"Report: {page}")


@dataclass(frozen=True)
class Recipes:
    """List the ready experiments, or print one, to be copied and changed.

    'kedge bench NAME' runs a recipe; a changed copy is run by its path. Below the recipes stand
    the protocols, which say which classes play which role, and can be run by their names too.
    """

    recipe: Annotated[
        Positional[str | None],
        arg(
            metavar="[NAME]",
            help="Name of a recipe, such as drawings-mini-pn.",
            help_behavior_hint="(default: list them)",
        ),
    ] = None

    def run(self, console: Console) -> None:
        from kedge import recipes
        from kedge.protocols import PROTOCOLS

        if self.recipe is not None:
            print(recipes.text(self.recipe), end="")
            return
        table = Table(Column("recipe", no_wrap=True), "what it shows")
        for name in recipes.recipe_names():
            table.add_row(name, escape(recipes.load_recipe(name).title))
        table.add_section()
        for protocol in PROTOCOLS.values():
            table.add_row(protocol.name, escape(protocol.sentence))
        console.print(table)


@dataclass(frozen=True)
class Paper:
    """Print the tables of the paper that kedge implements, with their known faults marked.

    Without a name, the tables are listed.
    """

    table: Annotated[
        Positional[str | None],
        arg(
            metavar="[TABLE]",
            help="Name or number of a table, such as mini-pn or 1.",
            help_behavior_hint="(default: list them)",
        ),
    ] = None

    def run(self, console: Console) -> None:
        from kedge import paper

        if self.table is None:
            console.print(paper.overview())
        else:
            console.print(paper.render(paper.table(self.table)))


COMMANDS = {
    "bench": Bench,
    "train": Train,
    "update": Update,
    "evaluate": Evaluate,
    "predict": Predict,
    "report": Report,
    "recipes": Recipes,
    "paper": Paper,
}


def _claim(out: Path) -> Path:
    """Where the state of the training is kept until the model is there."""
    if out.exists():
        raise KedgeError(f"{out}: already exists and is not overwritten; choose another --out.")
    return out.with_name(f"{out.name}.training")


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


def _say(console: Console, text: str) -> None:
    """As it is: a path may hold what rich would take for markup."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _finish(console: Console, model: Model, out: Path, checkpoint: Path) -> None:
    model.save(out)
    checkpoint.unlink(missing_ok=True)
    entry = model.lineage[-1]
    _say(
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
