"""Arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tyro.conf import arg

Data = Annotated[
    str,
    arg(
        metavar="DATA",
        help="A folder with one sub-folder of images per class, a packed image file, or "
        "'drawings' for the embedded ones.",
    ),
]
Validation = Annotated[
    str | None,
    arg(
        metavar="DATA",
        help="Images of other classes to measure progress on.",
        help_behavior_hint="(default: some of DATA's classes are set apart)",
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
Seed = Annotated[int, arg(help="Every random choice follows from this number.")]
Shape = Annotated[
    int | tuple[int, int] | None,
    arg(metavar="N [MOST]", help_behavior_hint="(default: as in the first round)"),
]
