"""The command that measures a model."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, field
from typing import Annotated

from rich.console import Console
from tyro.conf import FlagCreatePairsOff, Positional, arg

from kedge.cli.arguments import (
    Data,
    ModelFile,
    say,
)
from kedge.cli.wishes import Episode
from kedge.errors import KedgeError
from kedge.utils.text import counted

N_EPISODES, SEED = 2000, 0


@dataclass(frozen=True)
class Evaluate:
    """Measure how well a model tells classes apart from a few examples of each.

    Thousands of small problems (episodes) are drawn from DATA: some classes, a few labelled
    examples of each, and further images to classify. Printed is the mean accuracy with its
    95% interval. With --known, the images are named instead as 'kedge predict' does it without
    examples: among all classes that the model has learned.
    """

    model: Positional[ModelFile]
    data: Positional[Data]
    known: Annotated[
        FlagCreatePairsOff[bool],
        arg(
            help="Measure how many images of classes that the model has learned it names right, "
            "without any example, among all that it has learned. Other classes are left aside.",
        ),
    ] = False
    episode: Episode = field(default_factory=Episode)
    n_episodes: Annotated[
        int | None,
        arg(
            metavar="INT",
            help="How many episodes; the interval shrinks with their square root.",
            help_behavior_hint=f"(default: {N_EPISODES})",
        ),
    ] = None
    seed: Annotated[
        int | None,
        arg(
            metavar="INT",
            help="Which episodes are drawn; the same for every model, so that two can be compared.",
            help_behavior_hint=f"(default: {SEED})",
        ),
    ] = None

    def run(self, console: Console) -> None:
        from kedge import api
        from kedge.config import written
        from kedge.episodes.train_val_split import test_part, test_pool
        from kedge.models.model import Model
        from kedge.utils import progress

        if self.known:
            self._refuse_episodes()
        model = Model.load(self.model)
        with progress.display():
            table = test_part(model.open(self.data))
            score = api.evaluate(
                model,
                table,
                known=self.known,
                episode=self.episode,
                n_episodes=N_EPISODES if self.n_episodes is None else self.n_episodes,
                seed=SEED if self.seed is None else self.seed,
            )
        seen = len(set(table.classes) & set(model.classes))
        if self.known:
            how = (
                f"{score}% of {counted(score.n, 'image')} named right: "
                f"{counted(seen, 'class', 'classes')}, among the {len(model.classes)} that the "
                "model has learned, without examples"
            )
        else:
            pool, shape, _ = test_pool(table, self.episode)
            ways, shots = written(shape.n_way), written(shape.n_shot)
            how = (
                f"{score}% of the queries right: {ways}-way, {shots}-shot, {score.n} episodes over "
                f"{len(pool.classes)} classes"
            )
        say(console, how)
        if seen:
            which = "1 of these classes was" if seen == 1 else f"{seen} of these classes were"
            print(
                f"kedge: {which} trained on; if {'its' if seen == 1 else 'their'} images were too, "
                "the number flatters.",
                file=sys.stderr,
            )

    def _refuse_episodes(self) -> None:
        """Whoever gives these with --known expects another number than there will be."""
        about = {**asdict(self.episode), "n_episodes": self.n_episodes, "seed": self.seed}
        given = [f"--{key.replace('_', '-')}" for key, value in about.items() if value is not None]
        if given:
            raise KedgeError(
                f"{', '.join(given)}: with --known every image is named once and no episode is "
                "drawn; leave one or the other out."
            )
