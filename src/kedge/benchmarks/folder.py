"""A benchmark on any images of a user."""

from __future__ import annotations

from kedge.benchmarks.base import Protocol, Split, deal_classes, shuffled
from kedge.benchmarks.class_lists import own_class_lists
from kedge.benchmarks.disk import choose_held_out, held_out_rule, open_cached
from kedge.data.table import ImageTable
from kedge.errors import require

LEAST_CLASSES = 5  # in each role: those of one episode


def _draw(seed: int, table: ImageTable) -> Split:
    """By the data's own class split if it is large enough; otherwise at random."""
    lists, n = own_class_lists(table) or {}, len(table.classes)
    train, val, unseen = (lists.get(role, ()) for role in ("train", "val", "test"))
    if len(train) < 2 * LEAST_CLASSES or min(len(val), len(unseen)) < LEAST_CLASSES:
        require(
            n >= 4 * LEAST_CLASSES,
            f"{table.source}: there are {n} classes, but the protocol needs {4 * LEAST_CLASSES}: "
            f"{LEAST_CLASSES} each for old, new, validation and unseen.",
        )
        tenth = max(LEAST_CLASSES, round(n / 10))
        names = shuffled(sorted(table.classes), "split", "folder", seed)
        train, val, unseen = deal_classes(names, (n - 2 * tenth, tenth, tenth))
        trained = table.classes
    else:
        trained, train = train, tuple(shuffled(train, "split", "folder", seed))
    old, new = deal_classes(train, (len(train) - len(train) // 2, len(train) // 2))
    return Split(seed, (old, new), val, {"unseen": unseen}, choose_held_out(table, trained))


FOLDER = Protocol(
    "folder",
    "Classes of one's own; where they come in parts for training, validation and testing, with no "
    "class in two of them, the first is split at random into old and new ones and the last is "
    "unseen; otherwise they are split at random: two fifths old, two fifths new, a tenth to "
    f"validate, a tenth unseen, {LEAST_CLASSES} of each at least; {held_out_rule()} (not in the "
    "paper).",
    lambda data: open_cached(data, None, None),  # size and channels are inferred
    _draw,
    "a folder with one sub-folder of images per class, a packed image file, or a data set in "
    "another form that 'kedge data inspect' knows",
)
