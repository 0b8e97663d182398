"""Which level of nested folders holds the classes: the readings, and when to ask the user."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from kedge.data.delivery import ClassFolders
from kedge.data.index import PART_NAMES
from kedge.errors import KedgeError
from kedge.utils.text import display_name, list_some, pluralize

WNID = re.compile(r"n\d{8}")
SHOWN = 5  # class names of each reading in a question
# Folders that are no classes: where images lie, and when they were taken.
FILLERS = frozenset(
    ("images", "image", "imgs", "img", "photos", "pictures", "jpg", "jpeg", "png", "data", "raw")
)
MONTHS = "january february march april may june july august september october november december"
MONTH_NAMES = frozenset(name for month in MONTHS.split() for name in (month, month[:3]))
DATE = re.compile(r"(19|20)\d\d((0[1-9]|1[0-2])([0-3]\d)?)?")  # 2026, 202601 or 20260131


class UnclearFolders(KedgeError):
    """Raised if the user has to say which of nested folders are the classes."""


class Place(NamedTuple):
    """What the path of a folder of images says, in the reading by inner folders."""

    outer: str  # the first folder
    inner: str  # the last that may be a class; the outer one itself if there is no other
    full: str  # both and those between, without parts of a split
    part: str  # of a split, or ""


def place_of(path: Sequence[str]) -> Place:
    """The place of images from the names of their folders, without wrappers around all."""
    names = [i for i, name in enumerate(path) if not is_filler(name)]
    last = names[-1] if names else 0
    parts = [
        PART_NAMES[name.lower()] for i, name in enumerate(path) if i != last and _is_part(name)
    ]
    full = [name for i, name in enumerate(path[: last + 1]) if i == last or not _is_part(name)]
    return Place(path[0], path[last], "/".join(full), parts[0] if parts else "")


def is_filler(name: str) -> bool:
    """Whether a folder's name says where, when or for what images are, but not what they show."""
    return name.lower() in FILLERS or _is_part(name) or _is_date(name)


def _is_part(name: str) -> bool:
    return name.lower() in PART_NAMES


def _is_date(name: str) -> bool:
    """Whether a name is a year, month or day, such as 2026, 2026-01, 20260131 or May 2026."""
    words = [word for word in re.split(r"[\W_]+", name.lower()) if word]
    dates = [word for word in words if word in MONTH_NAMES or DATE.fullmatch(word)]
    days = [word for word in words if re.fullmatch(r"\d{1,2}", word)]
    return bool(dates) and len(dates) + len(days) == len(words)


def check_levels(
    path: Path, places: Iterable[Place], chosen: ClassFolders | None
) -> tuple[str, ...]:
    """Remarks on folders within folders. Raises UnclearFolders if either level may be the classes
    and none was chosen.

    Inner folders that only differ by a number (character01, character02) are usually no classes:
    they are remarked upon.
    """
    within: dict[str, set[str]] = {}
    outer_of: dict[str, set[str]] = {}
    full = set()
    for place in places:
        inner = within.setdefault(place.outer, set())
        if place.inner != place.outer:
            inner.add(place.inner)
        outer_of.setdefault(place.inner, set()).add(place.outer)
        full.add(place.full)
    repeated = sorted(name for name in outer_of if len(outer_of[name]) > 1)
    if chosen == "leaf" and repeated:
        first = repeated[0]
        return (
            f"{pluralize(len(repeated), 'class name is', 'class names are')} in several outer "
            f"folders, such as {display_name(first)} in {_listed(outer_of[first])}: one class each "
            "(--classes path would keep them apart)",
        )
    if chosen is not None:
        return ()
    if any(_may_be_group(outer, inner) for outer, inner in within.items()):
        readings = [f"--classes top: {_count(within)}", f"--classes leaf: {_count(outer_of)}"]
        if repeated:
            name, folders = display_name(repeated[0]), _listed(outer_of[repeated[0]])
            readings[1] += f", where {name} in {folders} is one class"
            readings.append(f"--classes path: {_count(full)}")
        raise UnclearFolders(
            f"{path}: folders lie within folders, and either may be the classes. Say which: "
            f"{'; '.join(readings)}."
        )
    several = {outer: inner for outer, inner in within.items() if len(inner) > 1}
    if not several:
        return ()
    first, inner = next(iter(several.items()))
    return (
        f"images of {pluralize(len(several), 'class lie', 'classes lie')} in several sub-folders, "
        f"such as {display_name(f'{first}/{min(inner)}')}: {display_name(first)} was taken for the "
        f"class (--classes leaf would read {len(outer_of)} classes)",
    )


def _may_be_group(outer: str, inner: Collection[str]) -> bool:
    """Whether a folder may be a group of classes and not a class: it holds several folders of
    different names, or its own name is a date."""
    stems = {name if WNID.fullmatch(name) else re.sub(r"\d+", "", name) for name in inner}
    return len(stems) > 1 or (bool(inner) and _is_date(outer))


def _count(names: Iterable[str]) -> str:
    return f"{pluralize(len(set(names)), 'class', 'classes')} ({_listed(names)})"


def _listed(names: Iterable[str]) -> str:
    return list_some(sorted(set(names)), SHOWN, longest=60)
