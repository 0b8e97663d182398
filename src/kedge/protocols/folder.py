"""A benchmark on any classes of one's own."""

from __future__ import annotations

from kedge.errors import KedgeError
from kedge.images.table import ImageTable
from kedge.pools import Split
from kedge.protocols.contract import Protocol, dealt, shuffled
from kedge.protocols.disk import HELD_OUT, held_out, opened

LEAST = 5  # classes in each role: those of one episode


def _own(data: str | None) -> ImageTable:
    """Size and channels follow from the images."""
    assert data is not None, "Protocol.benchmark asks for it"
    return opened(data, None, None)


def _any_classes(seed: int, table: ImageTable) -> Split:
    """A tenth each to validate and unseen; of the others one half is old and one half new."""
    n = len(table.classes)
    if n < 4 * LEAST:
        raise KedgeError(
            f"{table.source}: there are {n} classes, but the protocol needs {4 * LEAST}: {LEAST} "
            f"old, {LEAST} new, {LEAST} to validate and {LEAST} unseen."
        )
    tenth = max(LEAST, round(n / 10))
    new = (n - 2 * tenth) // 2
    names = shuffled(sorted(table.classes), "split", "folder", seed)
    old, *later, val, unseen = dealt(names, (n - 2 * tenth - new, new, tenth, tenth))
    spare = held_out(table, table.classes)
    return Split(seed, (old, *later), val, {"unseen": unseen}, spare)


FOLDER = (
    Protocol(
        "folder",
        "Classes of one's own, split at random: two fifths old, two fifths new, a tenth to "
        f"validate, a tenth unseen, {LEAST} of each at least; {HELD_OUT} (not in the paper).",
        _own,
        _any_classes,
        "a folder with one sub-folder of images per class, or a packed image file",
    ),
)
