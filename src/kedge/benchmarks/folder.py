"""A benchmark on any images of a user."""

from __future__ import annotations

from kedge.benchmarks.base import Protocol, Split, deal_classes, shuffled
from kedge.benchmarks.class_lists import own_class_lists
from kedge.benchmarks.disk import choose_held_out, held_out_rule, open_cached
from kedge.data.table import ImageTable
from kedge.errors import KedgeError

LEAST_CLASSES = 5  # in each role: those of one episode


def _load(data: str | None) -> ImageTable:
    """Images of the size and channels that are inferred from them."""
    return open_cached(data, None, None)


def _draw(seed: int, table: ImageTable) -> Split:
    """By the data's own class split if it has one; otherwise a tenth each validate and are unseen.

    The other classes are split in halves, old and new.
    """
    lists, n = own_class_lists(table), len(table.classes)
    if lists is not None and len(lists["train"]) >= 2 * LEAST_CLASSES:
        train, val, unseen = (lists[role] for role in ("train", "val", "test"))
        if min(len(val), len(unseen)) >= LEAST_CLASSES:
            old, new = deal_classes(shuffled(train, "split", "folder", seed), _halves(len(train)))
            return Split(seed, (old, new), val, {"unseen": unseen}, choose_held_out(table, train))
    if n < 4 * LEAST_CLASSES:
        raise KedgeError(
            f"{table.source}: there are {n} classes, but the protocol needs {4 * LEAST_CLASSES}: "
            f"{LEAST_CLASSES} each for old, new, validation and unseen."
        )
    tenth = max(LEAST_CLASSES, round(n / 10))
    names = tuple(shuffled(sorted(table.classes), "split", "folder", seed))
    old, new, val, unseen = deal_classes(names, (*_halves(n - 2 * tenth), tenth, tenth))
    return Split(seed, (old, new), val, {"unseen": unseen}, choose_held_out(table, table.classes))


def _halves(n: int) -> tuple[int, int]:
    return n - n // 2, n // 2


FOLDER = Protocol(
    "folder",
    "Classes of one's own; where they come in parts for training, validation and testing, with no "
    "class in two of them, the first is split at random into old and new ones and the last is "
    "unseen; otherwise they are split at random: two fifths old, two fifths new, a tenth to "
    f"validate, a tenth unseen, {LEAST_CLASSES} of each at least; {held_out_rule()} (not in the "
    "paper).",
    _load,
    _draw,
    "a folder with one sub-folder of images per class, a packed image file, or a data set in "
    "another form that 'kedge data inspect' knows",
)
