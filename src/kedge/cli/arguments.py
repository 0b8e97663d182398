"""What several commands share: arguments, and a way to say something."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from tyro.conf import arg

from kedge.config import Count
from kedge.errors import KedgeError
from kedge.utils.progress import printable

if TYPE_CHECKING:
    from kedge.models.classifier import Classifier

Data = Annotated[
    str,
    arg(
        metavar="DATA",
        help="A folder with one sub-folder of images per class, a data set in another form that "
        "'kedge data inspect' knows, a packed image file, or 'drawings' for the embedded ones.",
    ),
]
Validation = Annotated[
    str | None,
    arg(
        metavar="DATA",
        help="Images of other classes to measure progress on.",
        help_behavior_hint="(default: some of DATA's classes or images are set apart)",
    ),
]
ImageSize = Annotated[
    int | None,
    arg(
        metavar="PIXELS",
        help="Side to which images are brought.",
        help_behavior_hint="(default: that of small images, 84 for large ones)",
    ),
]
ModelFile = Annotated[
    Path, arg(metavar="MODEL", help="Model file, as written by 'kedge train' or 'kedge update'.")
]
NewModelFile = Annotated[
    Path,
    arg(
        metavar="MODEL",
        help="Model file to write, such as base.kedge; an existing one is never overwritten.",
    ),
]
Support = Annotated[
    Path | None,
    arg(
        metavar="FOLDER",
        help="Labelled examples of the classes to tell apart: one sub-folder per class, any number "
        "of images in each.",
    ),
]
Seed = Annotated[int, arg(help="Every random choice follows from this number.")]
Shape = Annotated[
    int | tuple[int, int] | None,
    arg(metavar="N [MOST]", help_behavior_hint="(default: as in the first round)"),
]


def check_choice(classifier: Classifier, file: Path) -> None:
    """Of one class alone, every image would be of it."""
    if len(classifier.classes) < 2:
        raise KedgeError(
            f"{file}: there is one class only, '{classifier.classes[0]}', and nothing to choose "
            "between; give examples of another with --support, or --known."
        )


def as_count(option: str, text: str) -> Count:
    """'5' → 5, '3-8' → (3, 8)."""
    parts = text.split("-")
    if len(parts) > 2 or not all(part.isdecimal() for part in parts):
        raise KedgeError(f"{option}: '{text}' must be a number, or a range such as 3-8.")
    return int(text) if len(parts) == 1 else (int(parts[0]), int(parts[1]))


def as_text(count: Count) -> str:
    return str(count) if isinstance(count, int) else f"{count[0]}-{count[1]}"


def as_json(value: Any, indent: int | None = None) -> str:
    """As plain as standard output can have it: else all but ASCII is escaped. A name on disk may
    be no text."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(value, indent=indent)
    return text


def say(console: Console, text: str) -> None:
    """As it is: a path may hold what rich would take for markup."""
    console.print(printable(text), markup=False, highlight=False, soft_wrap=True)
