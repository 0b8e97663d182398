"""A benchmark on any classes of one's own."""

from __future__ import annotations

from kedge.benchmarks.base import (
    Protocol,
    Split,
    deal_classes,
    shuffled,
)
from kedge.benchmarks.class_lists import Lists, parted
from kedge.benchmarks.disk import (
    held_out,
    opened,
    what_is_held_out,
)
from kedge.data.table import ImageTable
from kedge.errors import KedgeError

LEAST = 5  # classes in each role: those of one episode


def _own(data: str | None) -> ImageTable:
    """Size and channels follow from the images."""
    assert data is not None, "Protocol.benchmark asks for it"
    return opened(data, None, None, None)


def _any_classes(seed: int, table: ImageTable) -> Split:
    """The split that the data come with, or a tenth each to validate and unseen; of the others
    one half is old and one half new."""
    if (lists := _own_lists(table)) is not None:
        names, val, unseen = (lists[role] for role in ("train", "val", "test"))
        old, new = deal_classes(shuffled(names, "split", "folder", seed), _halves(len(names)))
        return Split(seed, (old, new), val, {"unseen": unseen}, held_out(table, names))
    n = len(table.classes)
    if n < 4 * LEAST:
        raise KedgeError(
            f"{table.source}: there are {n} classes, but the protocol needs {4 * LEAST}: {LEAST} "
            f"old, {LEAST} new, {LEAST} to validate and {LEAST} unseen."
        )
    tenth = max(LEAST, round(n / 10))
    names = tuple(shuffled(sorted(table.classes), "split", "folder", seed))
    old, new, val, unseen = deal_classes(names, (*_halves(n - 2 * tenth), tenth, tenth))
    return Split(seed, (old, new), val, {"unseen": unseen}, held_out(table, table.classes))


def _own_lists(table: ImageTable) -> Lists | None:
    """The classes of "train", "val" and "test", where the data are cut by class into enough."""
    lists = parted(table)
    if lists is None or len(lists["train"]) < 2 * LEAST:
        return None
    return lists if min(len(lists["val"]), len(lists["test"])) >= LEAST else None


def _halves(n: int) -> tuple[int, int]:
    return n - n // 2, n // 2


FOLDER = (
    Protocol(
        "folder",
        "Classes of one's own; where they come in parts for training, validation and testing, "
        "with no class in two of them, the first is split at random into old and new ones and the "
        "last is unseen; otherwise they are split at random: two fifths old, two fifths new, a "
        f"tenth to validate, a tenth unseen, {LEAST} of each at least; {what_is_held_out()} (not "
        "in the paper).",
        _own,
        _any_classes,
        "a folder with one sub-folder of images per class, a packed image file, or a data set in "
        "another form that 'kedge data inspect' knows",
    ),
)
