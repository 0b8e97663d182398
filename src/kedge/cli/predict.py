"""The command that predicts the classes of images."""

from __future__ import annotations

import glob
import io
import math
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table
from tyro.conf import FlagCreatePairsOff, Positional, arg

from kedge.cli.arguments import (
    ModelFile,
    OwnBackbone,
    ReadingArguments,
    Support,
    as_json,
    check_choice,
    load_model,
    load_pytorch,
    naming_errors,
    option,
)
from kedge.errors import KedgeError
from kedge.utils import progress
from kedge.utils.text import csv_line, printable

if TYPE_CHECKING:
    from kedge.models.classifier import Classifier, Prediction

NONE_OF_THESE = "none of these"


@dataclass(frozen=True)
class Predict:
    """Name images: as classes that the model has learned, or as new ones from a few examples.

    Alone, a model names the classes of all its rounds, with no image of them at hand.
    With --support it names the classes of that folder instead, from the examples there,
    whether or not it has learned them; with --support and --include-known, both.
    """

    model: Positional[ModelFile]
    images: Annotated[
        Positional[tuple[str, ...]],
        arg(
            metavar="IMAGE ...",
            help="Images to name, folders of them, or patterns in quotes ('photos/*.jpg'); - reads "
            "paths from standard input, one a line or separated by NUL.",
            help_behavior_hint="(at least one)",
        ),
    ]
    support: Annotated[
        Support, arg(help_behavior_hint="(default: none, the classes that the model has learned)")
    ] = None
    include_known: Annotated[
        FlagCreatePairsOff[bool],
        arg(
            help="With --support: also choose among the classes that the model has learned. The "
            "examples of a class that it knows are pooled with its stored mean."
        ),
    ] = False
    top: int = 1
    """How many classes to give for each image, the likeliest first."""
    reject: Annotated[
        str | None,
        option(
            "SHARE",
            "every image is named",
            "Name no class for images that look like none of them. Of images of known classes "
            "about this share is refused too: 5% is a usual choice.",
        ),
    ] = None
    format: Literal["table", "json", "csv"] = "table"
    """A table for people; for programs one JSON object per line, or CSV with one row per class.
    Typicality is the share of known images that are at least as unusual. With --reject, the class
    of a refused image is null in JSON and empty in CSV."""
    backbone: OwnBackbone = None
    reading: ReadingArguments = field(default_factory=ReadingArguments)

    def run(self, console: Console) -> None:
        if self.top < 1:
            raise KedgeError(f"--top is {self.top}: it must be at least 1.")
        if self.support is None and self.reading != ReadingArguments():
            raise KedgeError(
                "--classes and --same-class say how --support is read; give --support, or leave "
                "them out."
            )
        reject = None if self.reject is None else _parse_share(self.reject)
        examples = [] if self.support is None else [self.support]
        load_pytorch(self.model, images=examples, decode=True)
        model = load_model(self.model, self.backbone)
        with progress.display(), naming_errors(self.model):
            files = _files(self.images)
            support = None if self.support is None else self.reading.delivery(self.support)
            classifier = model.classifier(support, known=self.include_known or None)
            check_choice(classifier, self.support or self.model)
            if reject is not None:
                with _naming_option():
                    classifier.check_reject(reject)
            unreadable: dict[str, str] = {}
            predictions = _predictions(classifier, files, self.top, unreadable)
            _SHOW[self.format](console, _answers(predictions, reject))
        _report_unreadable(unreadable, len(files))


def _files(given: Sequence[str]) -> list[str]:
    """The paths of all given images. A missing one is reported with those that cannot be read."""
    from kedge.data.decode import looks_like_image
    from kedge.data.files.file_tree import FolderTree, unsupported_image_types

    files: list[str] = []
    for argument in given:
        found = [argument]
        if argument == "-":
            content = sys.stdin.buffer.read()
            lines = content.split(b"\0") if b"\0" in content else content.splitlines()
            found = [os.fsdecode(line) for line in lines if line.strip()]
        elif not os.path.lexists(argument) and glob.has_magic(argument):
            found = sorted(glob.glob(argument, recursive=True))
            if not found:
                raise KedgeError(f"{argument}: no file matches this pattern.")
        for path in found:
            if os.path.isdir(path):
                tree = FolderTree(Path(path))
                for remark in (*tree.remarks, *unsupported_image_types(tree.names)):
                    progress.note(f"{path}: {remark}")
                files += [str(Path(path) / name) for name in tree.names if looks_like_image(name)]
            else:
                files.append(path)
    if not files:
        where = {"-": "standard input"}.get(given[0], given[0]) if given else "IMAGE ..."
        raise KedgeError(f"{where}: no image was found here.")
    return files


def _parse_share(text: str) -> float:
    """'5%' or '0.05' as 0.05."""
    number, percent, rest = text.partition("%")
    try:
        share = float(number) / (100 if percent else 1)
    except ValueError:
        share = math.nan
    if rest or not 0 < share < 1:
        raise KedgeError(f"--reject is '{text}': it must be a share between 0 and 1, such as 5%.")
    return share


@contextmanager
def _naming_option() -> Iterator[None]:
    """Let errors about `reject` name the option."""
    try:
        yield
    except KedgeError as error:
        raise KedgeError(f"--{error}") from None


@dataclass(frozen=True)
class Answer:
    """What is said of an image."""

    file: str
    ranking: list[tuple[str, float]]  # class names and probabilities, the likeliest first
    typicality: float | None
    refused: bool


def _answers(
    predictions: Iterator[tuple[str, Prediction]], reject: float | None
) -> Iterator[Answer]:
    for file, (ranking, typicality) in predictions:
        refused = reject is not None and (typicality or 0) <= reject
        yield Answer(file, ranking, typicality, refused)


def _predictions(
    classifier: Classifier, files: list[str], top: int, unreadable: dict[str, str]
) -> Iterator[tuple[str, Prediction]]:
    """What the classifier says of each image; fills `unreadable` with file → reason."""
    from kedge.data.files.file_tree import FolderTree
    from kedge.data.index import FileImages
    from kedge.data.parallel_decode import decode_images

    images = FileImages(FolderTree(Path(), tuple(files)), files)
    with progress.task("naming images", len(files)) as tick:
        for batch in decode_images(images, classifier.model.image_spec, range(len(files))):
            answers = classifier.answers(batch.pixels, top) if len(batch.numbers) else []
            for number, answer in zip(batch.numbers.tolist(), answers, strict=True):
                yield files[number], answer
            unreadable |= {files[i]: reason for i, reason in batch.unreadable.items()}
            tick(len(batch))


def _report_unreadable(unreadable: dict[str, str], n: int) -> None:
    """Print a sentence for each file, and end the command with an error if there are any."""
    for file, reason in unreadable.items():
        why = f"cannot be read as an image ({reason})" if os.path.lexists(file) else "no such file"
        if len(unreadable) == 1:
            raise KedgeError(f"{file}: {why}.")
        print(f"kedge: {printable(file, one_line=True)}: {why}.", file=sys.stderr)
    if unreadable:
        raise KedgeError(f"{len(unreadable)} of {n} images could not be read.")


def _as_table(console: Console, answers: Iterator[Answer]) -> None:
    table = Table(Column("image", overflow="fold"), "class", "probability")
    for answer in answers:
        ranking = [(NONE_OF_THESE, None)] if answer.refused else answer.ranking
        for rank, (name, p) in enumerate(ranking):
            texts = ("" if rank else answer.file, name)
            shown = (escape(printable(text, one_line=True)) for text in texts)
            style = "italic" if answer.refused else None
            table.add_row(*shown, "–" if p is None else f"{100 * p:.1f}%", style=style)
    if table.row_count:
        console.print(table)


def _as_json(_: Console, answers: Iterator[Answer]) -> None:
    for answer in answers:
        best = [{"class": name, "probability": round(p, 6)} for name, p in answer.ranking]
        none = {"class": None, "probability": None}
        line: dict[str, Any] = {"image": answer.file, **(none if answer.refused else best[0])}
        line["typicality"] = None if answer.typicality is None else round(answer.typicality, 4)
        if len(best) > 1 or answer.refused:
            line["top"] = best
        print(as_json(line))


def _as_csv(_: Console, answers: Iterator[Answer]) -> None:
    out = sys.stdout
    if isinstance(out, io.TextIOWrapper) and out.encoding.lower() == "utf-8":
        out.reconfigure(errors="surrogateescape")  # a file name may be invalid text
    print(csv_line("image", "rank", "class", "probability", "typicality"), end="")
    for answer in answers:
        typicality = "" if answer.typicality is None else f"{answer.typicality:.4f}"
        ranking = [("", None)] if answer.refused else answer.ranking
        for rank, (name, p) in enumerate(ranking, 1):
            probability = "" if p is None else f"{p:.6f}"
            print(csv_line(answer.file, rank, name, probability, typicality), end="")


_SHOW = {"table": _as_table, "json": _as_json, "csv": _as_csv}
