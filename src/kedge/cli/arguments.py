"""Arguments and output that several commands share."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import typing
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

from rich.console import Console
from tyro.conf import FlagCreatePairsOff, UseAppendAction, arg
from tyro.constructors import PrimitiveConstructorSpec

from kedge.config import Count, EpisodeOptions, Privacy, RoundOptions, TrainOptions
from kedge.errors import KedgeError, NotFiniteError
from kedge.utils import progress
from kedge.utils.config_io import option_name, validated
from kedge.utils.process import interrupts_held
from kedge.utils.progress import printable

if TYPE_CHECKING:
    from kedge.data.delivery import Delivery
    from kedge.models.classifier import Classifier
    from kedge.models.model import Model


def option(metavar: str, default: str, help: str | None = None) -> Any:
    """An option whose help says in words what an empty default (None or nothing) means."""

    def hint(value: str) -> str:
        return f"(default: {default if value in ('', 'None') else value})"

    return arg(metavar=metavar, help=help, help_behavior_hint=hint)


def parsed_as(name: str, kind: Any) -> PrimitiveConstructorSpec[Any]:
    """How an option that may be left out becomes a number, a range or a choice; mistakes are told
    as they are in Python."""

    def parse(words: list[str]) -> Any:
        values = [_number(word) for word in words]
        return validated(option_name(name), kind, values if len(values) > 1 else values[0])

    is_range = any(get_origin(each) is tuple for each in get_args(kind))
    return PrimitiveConstructorSpec(
        nargs=(1, 2) if is_range else 1,
        metavar=name,
        instance_from_str=parse,
        is_instance=lambda value: value is None,
        str_from_instance=lambda value: [str(value)],
    )


def _number(word: str) -> int | float | str:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(word)
    return word


Data = Annotated[
    str,
    arg(
        metavar="DATA",
        help="A folder with one sub-folder of images per class, a dataset in another format that "
        "'kedge data inspect' knows, a packed image file, or 'drawings' for the embedded ones.",
    ),
]
Validation = Annotated[
    str | None,
    option(
        "DATA",
        "some of DATA's classes or images are set apart",
        "Images of other classes to validate on.",
    ),
]
ImageSize = Annotated[
    int | None,
    parsed_as("image_size", int | None),
    option(
        "PIXELS",
        "that of small images, 84 for large ones",
        "Side to which images are resized, with antialiasing.",
    ),
]
ModelFile = Annotated[
    Path,
    arg(
        metavar="MODEL",
        help="Model file, as written by 'kedge train' or 'kedge update', or a folder that 'kedge "
        "export --hub' wrote.",
    ),
]
OwnBackbone = Annotated[
    str | None,
    option(
        "MODULE:FUNCTION",
        "kedge knows the network",
        "For a model whose network is your own: the Python function that makes it.",
    ),
]
NewModelFile = Annotated[
    Path,
    arg(
        metavar="MODEL",
        help="Model file to write, such as base.kedge; an existing one is never overwritten.",
    ),
]
Json = Annotated[
    FlagCreatePairsOff[bool], arg(help="Print one JSON object, for programs, instead of text.")
]
Picture = Annotated[
    FlagCreatePairsOff[bool],
    arg(
        help="Do not draw what the rounds did, in MODEL.png beside the model.",
        help_behavior_hint="(default: it is drawn if accuracies were measured)",
    ),
]
TensorBoard = Annotated[
    Path | None,
    option("FOLDER", "none", "Write the training curve as event files for TensorBoard."),
]
Support = Annotated[
    Path | None,
    arg(
        metavar="FOLDER",
        help="Labelled examples of the classes to tell apart: one sub-folder per class, any number "
        "of images in each.",
    ),
]
Strict = Annotated[
    FlagCreatePairsOff[bool],
    arg(
        help="Refuse DATA if it has any problem that can spoil a model, such as copies in several "
        "classes or unreadable images; 'kedge data inspect' lists them."
    ),
]
ClassFolderOption = Annotated[
    Literal["top", "leaf", "path"] | None,
    option(
        "{top,leaf,path}",
        "asked, if both may be",
        "Which of nested folders are the classes: top (the outer ones), leaf (the inner ones; "
        "those with the same name are one class) or path (the inner ones, named OUTER/INNER).",
    ),
]


@dataclasses.dataclass(frozen=True)
class ReadingArguments:
    """Answers to questions about DATA, which are asked where they are needed."""

    classes: ClassFolderOption = None
    same_class: Annotated[
        UseAppendAction[tuple[str, ...]],
        option(
            "A=B",
            "asked, if names are alike",
            "For class names that differ only in case, blanks, hyphens or underscores: 'all' takes "
            "them for the same classes, 'none' for different ones, and A=B gives the class A the "
            "name B. May be repeated.",
        ),
    ] = ()

    def delivery(self, images: Any, strict: bool = False) -> Delivery:
        """The images, to be read as the arguments say."""
        from kedge.data.delivery import Delivery

        return Delivery.of(images, self.classes, self.same_class, strict)


@dataclasses.dataclass(frozen=True)
class PrivacyArguments:
    """What the model file may not reveal."""

    private: Annotated[
        FlagCreatePairsOff[bool],
        arg(
            help="Leave out of MODEL where the images came from, and refuse classes of few images, "
            "whose stored mean resembles them. What MODEL reveals all the same: docs/privacy.md. "
            "An update of a private model is always private."
        ),
    ] = False
    min_images: Annotated[
        int | None,
        option(
            "N",
            str(Privacy().min_images),
            "With --private: different images that the mean of each class must come from.",
        ),
    ] = None
    noise: Annotated[
        float | None,
        option(
            "LENGTH",
            "none",
            "With --private: Gaussian noise on class means, of this length relative to that of the "
            "features; docs/privacy.md says what it costs.",
        ),
    ] = None

    def privacy(self, model: Model | None = None) -> Privacy | None:
        """The settings, with those of a private model where none are given."""
        names = ("min_images", "noise")
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        before = None if model is None else model.privacy
        if not self.private and before is None:
            for name in given:
                raise KedgeError(f"{option_name(name)}: it is for private models; add --private.")
            return None
        return dataclasses.replace(before or Privacy(), **given)


def _with_hints(options: type) -> Any:
    """Options whose help says that a value which is not given is inferred from the data."""
    hints = typing.get_type_hints(options, include_extras=True)

    def annotated(name: str) -> Any:
        kinds = get_args(hints[name])
        choices = [c for each in kinds if get_origin(each) is Literal for c in get_args(each)]
        is_range = any(get_origin(each) is tuple for each in kinds)
        metavar = "NAME" if str in kinds else "N [MOST]" if is_range else "N"
        metavar = f"{{{','.join(choices)}}}" if choices else metavar
        how = () if str in kinds else (parsed_as(name, hints[name]),)
        return Annotated[hints[name], *how, option(metavar, "inferred from the data")]

    inferred = [f.name for f in dataclasses.fields(options) if f.default is None]
    special = {"weights": Annotated[str | None, option("FILE", "those of the network, if any")]}
    return dataclasses.make_dataclass(
        options.__name__,
        [(name, special.get(name) or annotated(name), None) for name in inferred],
        bases=(options,),
        namespace={"__doc__": options.__doc__, "__module__": options.__module__},
        frozen=True,
    )


if TYPE_CHECKING:
    EpisodeArguments = EpisodeOptions
    RoundArguments = RoundOptions
    TrainArguments = TrainOptions
else:
    EpisodeArguments = _with_hints(EpisodeOptions)
    RoundArguments = _with_hints(RoundOptions)
    TrainArguments = _with_hints(TrainOptions)


def load_pytorch(
    *models: Path, images: Sequence[str | Path] = (), line: bool = False, decode: bool = False
) -> None:
    """Import PyTorch, which takes seconds, if the files that a command reads exist.

    Meanwhile a terminal shows what will be read; with `line`, a log has a line that says so; and
    with `decode`, the process gets ready that will decode images.
    """
    from kedge.data.delivery import check_exists

    for model in models:
        if not os.path.exists(model):
            raise KedgeError(f"{model}: there is no kedge model here.")
    for source in images:
        check_exists(source)
    if decode:
        from kedge.data.decode_pool import start_worker

        start_worker()
    if "torch" in sys.modules:
        return
    reading = " and ".join(map(str, (*models, *images)))
    loading = progress.loading(f"reading {reading}" if reading else "loading PyTorch", line)
    with loading, interrupts_held():
        import numpy  # noqa: F401
        import torch  # noqa: F401


def load_model(file: Path, backbone: str | None) -> Model:
    """The model in a file, with the user's own network where the file says that it has one."""
    from kedge.models import model_file
    from kedge.models.model import Model
    from kedge.models.pretrained import import_backbone

    if backbone is None:
        return Model.load(file)
    # The code is run because of the command line alone; the file only says that it needs some.
    if not model_file.read(file).own_backbone:
        raise KedgeError(
            f"--backbone {backbone}: kedge knows the network of {file}; leave --backbone out."
        )
    return Model.load(file, import_backbone(backbone))


@contextmanager
def naming_errors(file: Path) -> Iterator[None]:
    """Let errors that a model causes while it is used name its file."""
    try:
        yield
    except NotFiniteError as error:
        raise KedgeError(f"{file}: {error}") from None


def validation_text(accuracy: float | None, epoch: int) -> str:
    """How well the weights of a round did in validation."""
    when = f"in epoch {epoch}" if epoch else "without training"
    if accuracy is None:  # only anchors were made
        return "the network is unchanged"
    return f"validation accuracy {accuracy:.1f}% {when}"


def check_choice(classifier: Classifier, file: Path) -> None:
    """Raise if there is a single class, as which every image would be named."""
    if len(classifier.classes) < 2:
        raise KedgeError(
            f"{file}: it has one class only, '{classifier.classes[0]}', so there is nothing to "
            "choose between; give examples of another with --support, or --include-known."
        )


def parse_count(option: str, text: str) -> Count:
    """'5' → 5, '3-8' → (3, 8)."""
    parts = text.split("-")
    if len(parts) > 2 or not all(part.isdecimal() for part in parts):
        raise KedgeError(f"{option}: '{text}' must be a number, or a range such as 3-8.")
    return int(text) if len(parts) == 1 else (int(parts[0]), int(parts[1]))


def count_text(count: Count) -> str:
    """The inverse of `parse_count`."""
    return str(count) if isinstance(count, int) else f"{count[0]}-{count[1]}"


def as_json(value: Any, indent: int | None = None) -> str:
    """JSON in which only characters are escaped that are not printable, or that standard output
    cannot encode; file names may be invalid text."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    text = "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(value, indent=indent)
    return text


def say(console: Console, text: str) -> None:
    """Print text as it is: a path may contain what rich would take for markup."""
    console.print(printable(text), markup=False, highlight=False, soft_wrap=True)
