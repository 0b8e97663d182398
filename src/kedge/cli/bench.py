"""The command that compares methods on a benchmark."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Literal

from rich.console import Console
from tyro.conf import Positional, arg

from kedge.cli.arguments import (
    TensorBoard,
    count_text,
    load_pytorch,
    option,
    parse_count,
    parsed_as,
    say,
)
from kedge.config import (
    SHORT,
    BackboneConfig,
    Count,
    EpisodeShape,
    Epochs,
    HeadConfig,
    LearningRate,
    Schedule,
)
from kedge.utils import progress
from kedge.utils.config_io import option_name

SMALL = BackboneConfig(width=32)


@dataclass(frozen=True)
class Bench:
    """Compare methods that improve a model from new classes; write a table, figures and a report.

    A base model learns the old classes. Then every method updates it from the images of new
    classes only. The results are tested on thousands of small classification problems (episodes)
    of old, new and unseen classes, with images that were never trained on. Without options this
    takes minutes on two CPU cores and needs no data: it uses drawings that come with kedge.

    The methods:
    - NU: no update, the old model as it is.
    - FT: fine-tuning on the new classes, without any alignment; it forgets.
    - DFA: direct feature alignment; the features of each image stay close to the old ones.
    - EWC: elastic weight consolidation; weights that mattered for old classes change less.
    - EIML: exemplar-based incremental meta-learning; rehearses tasks of kept images of every
      old class.
    - IDA: indirect discriminant alignment; the softmax of each image over the old classes'
      anchors, one vector per class, stays close to the old one.
    - IDA+: IDA for many updates: all anchors in each step, λ = √(n_old/n_new), no DropBlock, and
      weights merged with the old ones ('IDA lambda=sqrt anchors=all dropout=off merge=auto').
    - PAR: the paragon, trained from scratch on all old and new images together, which no other
      method may see ('PAR start=last': continues from its last round's model).

    A stopped run continues when the same command is given again. Methods and seeds that are added
    later join those in the folder; nothing is done twice.
    """

    name: Annotated[
        Positional[str],
        arg(
            metavar="[NAME]",
            help="A recipe (see 'kedge recipes'), a recipe file of your own (.toml), or a "
            "protocol, which says which classes play which role: drawings (from natural to "
            "man-made things), drawings-reverse, drawings-random, drawings-4-rounds (four "
            "updates), … The options below override the recipe.",
        ),
    ] = "drawings"
    methods: Annotated[
        tuple[str, ...],
        arg(
            metavar="METHOD ...",
            help="What to compare. A method with options is written in quotes: "
            "'IDA lambda=5', 'IDA anchors=all', 'IDA divergence=js temperature=4', "
            "'EIML exemplars=60 choice=nearest', 'DFA reduction=sum'. Every method that trains "
            "takes ema=0.99 (averaged weights), batch_norm=frozen, dropout=off and merge=0.5 "
            "(weights half-way between the old and the new model), for the rounds after the first.",
        ),
    ] = ("NU", "FT", "DFA", "IDA", "IDA+", "PAR")
    seeds: Annotated[tuple[int, ...], arg(metavar="SEED ...")] = (0,)
    """Each seed draws its own classes and initial weights; several show how much that matters."""
    data: Annotated[
        str | None,
        arg(
            metavar="DATA",
            help="Images on disk, for a protocol that does not bring its own: a folder with one "
            "sub-folder of images per class, or a packed image file.",
            help_behavior_hint="(the drawings need none)",
        ),
    ] = None
    out: Annotated[Path | None, option("FOLDER", "runs/NAME")] = None
    """Where models, results and report go."""
    episode: EpisodeShape = field(default_factory=EpisodeShape)
    update_ways: Annotated[Count | None, option("N [MOST]", "as in the first round")] = None
    """Classes in each episode of the rounds after the first."""
    update_shots: Annotated[Count | None, option("N [MOST]", "as in the first round")] = None
    """Examples per class in each episode of the rounds after the first."""
    update_epochs: Annotated[
        int | None, parsed_as("update_epochs", Epochs | None), option("N", "as in the first round")
    ] = None
    """Epochs in each of the rounds after the first."""
    update_lr: Annotated[
        float | None,
        parsed_as("update_lr", LearningRate | None),
        option("FLOAT", "as in the first"),
    ] = None
    """Learning rate at the start of each of the rounds after the first."""
    test_on: Literal["unseen", "validation"] = "unseen"
    """unseen classes, or half of the validation classes, to choose settings by; the other half
    validates."""
    test_ways: Annotated[tuple[str, ...], option("WAYS ...", "as in training")] = ()
    """Classes in the test episodes; several are all tested, 3-8 is a range."""
    test_shots: Annotated[tuple[str, ...], option("SHOTS ...", "as in training")] = ()
    """Examples per class in the test episodes; several are all tested, 3-8 is a range."""
    schedule: Schedule = SHORT
    backbone: BackboneConfig = SMALL
    head: HeadConfig = field(default_factory=HeadConfig)
    eval_episodes: int = 2000
    """Test episodes per pool; intervals shrink with the square root of their number."""
    on: Annotated[
        str,
        arg(
            metavar="WHERE",
            help="Where methods and seeds are trained: local (one after the other), local:4 (four "
            "at a time, on several GPUs or with NVIDIA MPS), 'slurm:PARTITION gpus=1 cpus=8 "
            "hours=24' or 'ray:ADDRESS gpus=1' (on machines that share the folder of --out).",
        ),
    ] = "local"
    tensorboard: TensorBoard = None

    @classmethod
    def default(cls, args: list[str]) -> Bench:
        """The settings of the named recipe: the defaults of help and options."""
        if not args or args[0].startswith("-"):
            return cls()  # the name may follow; the help needs no PyTorch
        from kedge.experiments.recipes import load_recipe

        name = args[0]
        recipe = load_recipe(name)
        if not recipe.settings.keys() - {"protocol"}:
            return cls(name)
        base = recipe.base()
        values = {key: getattr(base, key) for key in cls._experiment_fields()}
        for key in ("test_ways", "test_shots"):
            values[key] = tuple(map(count_text, values[key]))
        return cls(name, **values)

    @classmethod
    def _experiment_fields(cls) -> set[str]:
        """Fields that `Experiment` has under the same names."""
        return {f.name for f in fields(cls)} - {"name", "out", "on", "tensorboard"}

    def run(self, console: Console) -> None:
        load_pytorch()
        from kedge.cli.run_recipe import run_recipe
        from kedge.experiments.recipes import load_recipe
        from kedge.report.record_report import terminal_tables
        from kedge.training.loggers import log_to_tensorboard

        recipe = load_recipe(self.name)
        values = {key: getattr(self, key) for key in self._experiment_fields()}
        for key in ("test_ways", "test_shots"):
            values[key] = tuple(parse_count(option_name(key), text) for text in values[key])
        base = replace(recipe.base(), **values)
        folder = self.out or Path("runs") / recipe.name
        with progress.display(), log_to_tensorboard(self.tensorboard):
            collection, page = run_recipe(recipe, base, folder, self.on)
        console.print(terminal_tables(collection))
        say(console, f"Report: {page}")
