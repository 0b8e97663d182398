"""Commands that compare methods and show results."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table
from tyro.conf import Positional, arg

from kedge.cli.arguments import (
    Shape,
    as_count,
    as_text,
    say,
)
from kedge.config import (
    SHORT,
    BackboneConfig,
    EpisodeShape,
    HeadConfig,
    Schedule,
)
from kedge.errors import KedgeError

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
      of the others may see ('PAR start=last': from its last round's model on).

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
        tuple[str, ...],
        arg(
            metavar="WAYS ...",
            help="Classes in the test episodes; several are all tested, 3-8 is a range, none is "
            "as in training.",
        ),
    ] = ()
    test_shots: Annotated[
        tuple[str, ...],
        arg(
            metavar="SHOTS ...",
            help="Examples per class in the test episodes; several are all tested, 3-8 is a "
            "range, none is as in training.",
        ),
    ] = ()
    schedule: Schedule = SHORT
    backbone: BackboneConfig = SMALL
    head: HeadConfig = field(default_factory=HeadConfig)
    eval_episodes: int = 2000
    """Test episodes per pool; the interval shrinks with their square root."""
    jobs: int = 1
    """How many methods and seeds to train at the same time, each in a process of its own: pays with
    several GPUs, or with one on which NVIDIA's Multi-Process Service runs."""

    @classmethod
    def default(cls, args: list[str]) -> Bench:
        """What the named recipe says, so that help and options start from there."""
        from kedge.experiments.recipes import load_recipe

        name = args[0] if args and not args[0].startswith("-") else "drawings"
        recipe = load_recipe(name)
        if not recipe.settings.keys() - {"protocol"}:
            return cls(name)
        base = recipe.base()
        values = {key: getattr(base, key) for key in cls._shared()}
        for key in ("test_ways", "test_shots"):
            values[key] = tuple(map(as_text, values[key]))
        return cls(name, **values)

    @classmethod
    def _shared(cls) -> set[str]:
        """The settings that an experiment has under the same names."""
        return {f.name for f in fields(cls)} - {"name", "out", "jobs"}

    def run(self, console: Console) -> None:
        from kedge.cli.run_recipe import run_recipe
        from kedge.experiments.recipes import load_recipe
        from kedge.report import collection_terminal
        from kedge.utils import progress

        recipe = load_recipe(self.name)
        values = {key: getattr(self, key) for key in self._shared()}
        for key in ("test_ways", "test_shots"):
            values[key] = tuple(
                as_count(f"--{key.replace('_', '-')}", text) for text in values[key]
            )
        base = replace(recipe.base(), **values)
        folder = self.out or Path("runs") / recipe.name
        with progress.display():
            collection, page = run_recipe(recipe, base, folder, self.jobs)
        console.print(collection_terminal(collection))
        say(console, f"Figures: {folder / 'figures'}\nReport: {page}")


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
        from kedge.cli.run_recipe import finished, report_again
        from kedge.utils import progress

        if not self.runs:
            raise KedgeError("RUN: name at least one folder that 'kedge bench' has written.")
        for found, folder in [finished(path) for path in self.runs]:  # all, before one is written
            with progress.display():
                shown, page = report_again(found, folder)
            console.print(shown)
            say(console, f"Report: {page}")


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
        from kedge.benchmarks import PROTOCOLS
        from kedge.experiments import recipes

        names = recipes.recipe_names()
        if self.recipe in PROTOCOLS and self.recipe not in names:
            raise KedgeError(
                f"{self.recipe}: this is a protocol, and no recipe that could be printed: 'kedge "
                f"bench {self.recipe}' runs it, and in a recipe of your own it stands as "
                f'protocol = "{self.recipe}".'
            )
        if self.recipe is not None:
            print(recipes.text(self.recipe), end="")
            return
        table = Table(Column("recipe", no_wrap=True), "what it shows")
        for name in names:
            table.add_row(name, escape(recipes.load_recipe(name).title))
        table.add_section()
        for protocol in PROTOCOLS.values():
            if protocol.name not in names:  # otherwise its name runs the recipe on it
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
        from kedge.experiments import paper

        if self.table is None:
            console.print(paper.overview())
        else:
            console.print(paper.render(paper.table(self.table)))
