"""The command that measures a model's accuracy."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text
from tyro.conf import FlagCreatePairsOff, Positional, arg

from kedge.cli.arguments import (
    Data,
    EpisodeArguments,
    Json,
    ModelFile,
    OwnBackbone,
    ReadingArguments,
    as_json,
    load_model,
    load_pytorch,
    naming_errors,
    option,
    parsed_as,
    say,
)
from kedge.config import Seed, TestEpisodes
from kedge.errors import KedgeError
from kedge.utils import progress
from kedge.utils.config_io import option_name
from kedge.utils.progress import printable
from kedge.utils.text import pluralize

if TYPE_CHECKING:
    from kedge.evaluation.by_class import Evaluation
    from kedge.evaluation.results import NamingResult, Score

N_EPISODES, SEED = 2000, 0
N_LISTED = 5  # classes, and pairs of classes
PICTURES = (".png", ".svg")


@dataclass(frozen=True)
class Evaluate:
    """Measure how well a model tells classes apart from a few examples of each.

    Thousands of small problems (episodes) are drawn from DATA: some classes, a few labelled
    examples of each, and further images to classify. Prints the mean accuracy with its 95%
    interval, the classes with the lowest accuracy, and those that are confused most often. With
    --known, images are instead named without examples, among all classes that the model has
    learned, as 'kedge predict' does; also by the round in which a class was learned.
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
    reading: ReadingArguments = field(default_factory=ReadingArguments)
    episode: EpisodeArguments = field(default_factory=EpisodeArguments)
    n_episodes: Annotated[
        int | None, parsed_as("n_episodes", TestEpisodes | None), option("N", f"{N_EPISODES}")
    ] = None
    """Number of episodes; the interval shrinks with its square root."""
    seed: Annotated[int | None, parsed_as("seed", Seed | None), option("N", f"{SEED}")] = None
    """Which episodes are drawn; they are the same for every model."""
    all: FlagCreatePairsOff[bool] = False
    """List every class, not only those with the lowest accuracy."""
    confusion: Annotated[Path | None, option("FILE", "none")] = None
    """Write which classes are taken for which, as a picture (.png, .svg) or a table (.csv); an
    existing file is never overwritten."""
    json: Json = False
    backbone: OwnBackbone = None

    def run(self, console: Console) -> None:
        given = {**asdict(self.episode), "n_episodes": self.n_episodes, "seed": self.seed}
        given = {name: value for name, value in given.items() if value is not None}
        if self.known and given:
            raise KedgeError(
                f"{', '.join(map(option_name, given))}: with --known every image is named once and "
                "no episode is drawn; leave one or the other out."
            )
        if self.confusion is not None:
            _check_confusion_file(self.confusion)
        load_pytorch(self.model, images=[self.data])
        from kedge import api
        from kedge.episodes.train_val_split import select_test_part

        model = load_model(self.model, self.backbone)
        with progress.display(), naming_errors(self.model):
            table = select_test_part(model.open(self.reading.delivery(self.data)))
            given = {"n_episodes": N_EPISODES, "seed": SEED, **given}
            result = api.evaluate_by_class(model, table, known=self.known, **given)
        if self.confusion is not None:  # before a reader of the output may have closed it
            _write_confusion(result, self.confusion)
        if self.json:
            print(as_json(_describe(result, len(model.classes)), indent=1))
        else:
            for line in _summary(result, len(model.classes)):
                say(console, line)
            _show_classes(console, result, self.all)
        if n_known := len(set(table.classes) & set(model.classes)):
            which = "1 of these classes is" if n_known == 1 else f"{n_known} of these classes are"
            warning = f"{which} known to the model; if it learned them from the same images, the "
            warning += "accuracy is too high."
            print(f"kedge: {warning}", file=sys.stderr)


def _summary(result: Evaluation, n_known: int) -> list[str]:
    """The accuracy in words, by rounds too if images were named."""
    from kedge.config import format_count

    score, shape, naming = result.score, result.shape, result.naming
    if shape is not None:
        ways, shots = format_count(shape.n_way), format_count(shape.n_shot)
        return [
            f"{score}% of queries correct: {ways}-way, {shots}-shot, {score.n} episodes over "
            f"{result.classes} classes"
        ]
    assert naming is not None
    lines = [
        f"{score}% of {pluralize(score.n, 'image')} named correctly: "
        f"{pluralize(result.classes, 'class', 'classes')}, among the {n_known} that the model has "
        "learned, without examples"
    ]
    stored, several = naming.by_anchors, len(naming.by_round) > 1
    if several:
        lines += [
            f"  learned in round {t}: {part}% of {pluralize(part.n, 'image')}"
            for t, part in naming.by_round.items()
        ]
    if stored is not None:
        parts = [f"round {t}: {part.mean:.2f}%" for t, part in stored.by_round.items()]
        lines.append(
            f"{stored.overall}% with the anchors as they were stored, without drift compensation"
            + f" ({', '.join(parts)})" * several
        )
    return lines


def _show_classes(console: Console, result: Evaluation, everything: bool) -> None:
    """The classes with the lowest accuracy, or all, and the pairs that are confused most often."""
    noun = "images" if result.shape is None else "queries"
    wrong = [each for each in result.per_class if each.correct < each.of]
    listed = result.per_class if everything else wrong[:N_LISTED]
    rest = len(result.per_class) - len(listed)
    title = f"lowest accuracy (--all lists {rest} more)" if rest else "accuracy by class"
    rows = [(each.name, f"{each.accuracy:.1f}%", f"of {each.of:,} {noun}") for each in listed]
    _show_rows(console, title, rows)
    both = "" if result.shape is None else " of episodes with both"
    rows = [
        (
            f"{each.true} → {each.predicted}",
            f"{100 * each.count / each.of:.1f}%",
            f"{each.count:,} of {each.of:,} {noun}{both}",
        )
        for each in result.confusions[:N_LISTED]
    ]
    _show_rows(console, "most often confused", rows)


def _show_rows(console: Console, title: str, rows: Sequence[tuple[str, str, str]]) -> None:
    if not rows:
        return
    say(console, f"{title}:")
    grid = Table.grid(Column(overflow="fold"), Column(justify="right"), Column(), padding=(0, 2))
    for name, share, of in rows:
        grid.add_row(Text(printable(f"  {name}", one_line=True)), share, of)
    console.print(grid)


def _describe(result: Evaluation, n_known: int) -> dict[str, Any]:
    """The result for programs."""
    about: dict[str, Any]
    if result.shape is not None:
        score = result.score
        about = {"accuracy": score.mean, "interval": score.ci, "episodes": score.n}
        about |= asdict(result.shape) | {"classes": result.classes}
    else:
        assert result.naming is not None
        about = {
            **_describe_naming(result.naming),
            "classes": result.classes,
            "known_classes": n_known,
        }
        if result.naming.by_anchors is not None:
            about["stored_anchors"] = _describe_naming(result.naming.by_anchors)
    about["per_class"] = [
        {"class": each.name, "accuracy": each.accuracy, "correct": each.correct, "of": each.of}
        for each in result.per_class
    ]
    about["confusions"] = [asdict(each) for each in result.confusions]
    return about


def _describe_naming(result: NamingResult) -> dict[str, Any]:
    def part(score: Score) -> dict[str, float]:
        return {"accuracy": score.mean, "interval": score.ci, "images": score.n}

    rounds = [{"round": t, **part(score)} for t, score in result.by_round.items()]
    return {**part(result.overall), "rounds": rounds}


def _check_confusion_file(file: Path) -> None:
    """Raise before the evaluation, not after it."""
    if file.suffix.lower() not in (*PICTURES, ".csv"):
        raise KedgeError(f"--confusion {file}: the name must end with .png, .svg or .csv.")
    if file.exists():
        raise KedgeError(f"--confusion {file}: already exists; choose another name.")


def _write_confusion(result: Evaluation, file: Path) -> None:
    from kedge.report.confusion import confusion_csv, confusion_matrix, confusion_picture, drawable
    from kedge.utils.atomic_io import write_bytes_atomically

    matrix, kind = confusion_matrix(result), file.suffix.lower()
    if kind == ".csv":
        content = confusion_csv(matrix).encode(errors="surrogateescape")
    else:
        content = confusion_picture(matrix, "svg" if kind == ".svg" else "png")
    write_bytes_atomically(file, content, replace=False)
    note = f"{file}: confusion matrix of {pluralize(len(matrix.classes), 'class', 'classes')}"
    if kind == ".png" and any(drawable(name) != name for name in matrix.names):
        note += "; some names have characters that its font lacks, which a .svg can show"
    print(note, file=sys.stderr)
