"""The command that measures a model's accuracy."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, field
from typing import Annotated

from rich.console import Console
from tyro.conf import FlagCreatePairsOff, Positional, arg

from kedge.cli.arguments import Data, EpisodeArguments, ModelFile, option, say
from kedge.errors import KedgeError
from kedge.utils import progress
from kedge.utils.config_io import option_name
from kedge.utils.text import pluralize

N_EPISODES, SEED = 2000, 0


@dataclass(frozen=True)
class Evaluate:
    """Measure how well a model tells classes apart from a few examples of each.

    Thousands of small problems (episodes) are drawn from DATA: some classes, a few labelled
    examples of each, and further images to classify. Prints the mean accuracy with its 95%
    interval. With --known, images are instead named without examples, among all classes that the
    model has learned, as 'kedge predict' does.
    """

    model: Positional[ModelFile]
    data: Positional[Data]
    known: Annotated[
        FlagCreatePairsOff[bool],
        arg(
            help="Measure the share of images that get the right name among all classes that the "
            "model has learned, without examples. Classes that it has not learned are left out."
        ),
    ] = False
    episode: EpisodeArguments = field(default_factory=EpisodeArguments)
    n_episodes: Annotated[int | None, option("INT", f"{N_EPISODES}")] = None
    """Number of episodes; the interval shrinks with its square root."""
    seed: Annotated[int | None, option("INT", f"{SEED}")] = None
    """Which episodes are drawn; they are the same for every model."""

    def run(self, console: Console) -> None:
        from kedge import api
        from kedge.config import format_count
        from kedge.episodes.train_val_split import select_test_part, select_test_pool
        from kedge.models.model import Model

        shape_options = asdict(self.episode)
        options = {**shape_options, "n_episodes": self.n_episodes, "seed": self.seed}
        given = [option_name(name) for name, value in options.items() if value is not None]
        if self.known and given:
            raise KedgeError(
                f"{', '.join(given)}: with --known every image is named once and no episode is "
                "drawn; leave one or the other out."
            )
        model = Model.load(self.model)
        with progress.display():
            table = select_test_part(model.open(self.data))
            score = api.evaluate(
                model,
                table,
                known=self.known,
                n_episodes=N_EPISODES if self.n_episodes is None else self.n_episodes,
                seed=SEED if self.seed is None else self.seed,
                **shape_options,
            )
        n_known = len(set(table.classes) & set(model.classes))
        if self.known:
            classes = pluralize(n_known, "class", "classes")
            result = (
                f"{score}% of {pluralize(score.n, 'image')} named correctly: {classes}, among the "
                f"{len(model.classes)} that the model has learned, without examples"
            )
        else:
            pool, shape, _ = select_test_pool(table, self.episode)
            ways, shots = format_count(shape.n_way), format_count(shape.n_shot)
            result = (
                f"{score}% of queries correct: {ways}-way, {shots}-shot, {score.n} episodes over "
                f"{len(pool.classes)} classes"
            )
        say(console, result)
        if n_known:
            which = "1 of these classes was" if n_known == 1 else f"{n_known} of these classes were"
            warning = f"{which} trained on; if the same images were, the accuracy is too high."
            print(f"kedge: {warning}", file=sys.stderr)
