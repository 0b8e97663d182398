"""The command that measures a model's accuracy."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rich.console import Console
from tyro.conf import FlagCreatePairsOff, Positional, arg

from kedge.cli.arguments import (
    Data,
    EpisodeArguments,
    ModelFile,
    OwnBackbone,
    as_json,
    load_model,
    option,
    say,
)
from kedge.errors import KedgeError
from kedge.utils import progress
from kedge.utils.config_io import option_name
from kedge.utils.text import pluralize

if TYPE_CHECKING:
    from kedge.evaluation.results import NamingResult, Score

N_EPISODES, SEED = 2000, 0


@dataclass(frozen=True)
class Evaluate:
    """Measure how well a model tells classes apart from a few examples of each.

    Thousands of small problems (episodes) are drawn from DATA: some classes, a few labelled
    examples of each, and further images to classify. Prints the mean accuracy with its 95%
    interval. With --known, images are instead named without examples, among all classes that the
    model has learned, as 'kedge predict' does; also by the round in which a class was learned.
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
    format: Literal["table", "json"] = "table"
    """For people, or one JSON object for programs."""
    backbone: OwnBackbone = None

    def run(self, console: Console) -> None:
        from kedge import api
        from kedge.config import format_count
        from kedge.episodes.train_val_split import select_test_part, select_test_pool
        from kedge.evaluation.naming import naming_results
        from kedge.training.step import default_device

        shape_options = asdict(self.episode)
        options = {**shape_options, "n_episodes": self.n_episodes, "seed": self.seed}
        given = [option_name(name) for name, value in options.items() if value is not None]
        if self.known and given:
            raise KedgeError(
                f"{', '.join(given)}: with --known every image is named once and no episode is "
                "drawn; leave one or the other out."
            )
        model = load_model(self.model, self.backbone)
        with progress.display():
            table = select_test_part(model.open(self.data))
            if self.known:
                result = naming_results(model.to(default_device()), table)
            else:
                score = api.evaluate(
                    model,
                    table,
                    n_episodes=N_EPISODES if self.n_episodes is None else self.n_episodes,
                    seed=SEED if self.seed is None else self.seed,
                    **shape_options,
                )
        n_known = len(set(table.classes) & set(model.classes))
        if self.known:
            about, lines = _naming(result, n_known, len(model.classes))
        else:
            pool, shape, _ = select_test_pool(table, self.episode)
            ways, shots = format_count(shape.n_way), format_count(shape.n_shot)
            lines = [
                f"{score}% of queries correct: {ways}-way, {shots}-shot, {score.n} episodes over "
                f"{len(pool.classes)} classes"
            ]
            about = {
                "accuracy": score.mean,
                "interval": score.ci,
                "episodes": score.n,
                **asdict(shape),
                "classes": len(pool.classes),
            }
        if self.format == "json":
            print(as_json(about, indent=1))
        else:
            for line in lines:
                say(console, line)
        if n_known:
            which = "1 of these classes was" if n_known == 1 else f"{n_known} of these classes were"
            warning = f"{which} trained on; if the same images were, the accuracy is too high."
            print(f"kedge: {warning}", file=sys.stderr)


def _naming(result: NamingResult, n_known: int, n_classes: int) -> tuple[dict[str, Any], list[str]]:
    """The result of --known for programs and for people."""
    score, stored, several = result.overall, result.by_anchors, len(result.by_round) > 1
    about = {**_naming_json(result), "classes": n_known, "known_classes": n_classes}
    lines = [
        f"{score}% of {pluralize(score.n, 'image')} named correctly: "
        f"{pluralize(n_known, 'class', 'classes')}, among the {n_classes} that the model has "
        "learned, without examples"
    ]
    if several:
        lines += [
            f"  learned in round {t}: {part}% of {pluralize(part.n, 'image')}"
            for t, part in result.by_round.items()
        ]
    if stored is not None:
        about["stored_anchors"] = _naming_json(stored)
        parts = [f"round {t}: {part.mean:.2f}%" for t, part in stored.by_round.items()]
        lines.append(
            f"{stored.overall}% with the anchors as they were stored, without drift compensation"
            + f" ({', '.join(parts)})" * several
        )
    return about, lines


def _naming_json(result: NamingResult) -> dict[str, Any]:
    def part(score: Score) -> dict[str, float]:
        return {"accuracy": score.mean, "interval": score.ci, "images": score.n}

    rounds = [{"round": t, **part(score)} for t, score in result.by_round.items()]
    return {**part(result.overall), "rounds": rounds}
