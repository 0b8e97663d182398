"""What the benchmarks on images on disk have in common."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

from kedge.benchmarks.base import TRAINED
from kedge.data.index import HELD_OUT
from kedge.data.lazy_images import LazyImages
from kedge.data.open import is_store, open_images
from kedge.data.readers import read_index
from kedge.data.table import ImageTable
from kedge.errors import KedgeError

KEPT_OPEN = 8  # tables
KEPT_BYTES = 1 << 30  # of those that are in memory, the latest excepted

Key = tuple[str, str, int | None, int | None, frozenset[str] | None]
_tables: OrderedDict[Key, ImageTable] = OrderedDict()  # every seed asks again; reading takes long


def opened(
    data: str,
    image_size: int | None,
    n_channels: int | None,
    classes: frozenset[str] | None,
    *,
    by_number: bool = False,
) -> ImageTable:
    """The images of these classes, or of all that are there.

    With `by_number` also those of as many classes under other names: some forms have numbers only.
    """
    key = (os.path.abspath(data), _stamp(data), image_size, n_channels, classes)
    if key not in _tables:
        _tables[key] = _read(data, image_size, n_channels, classes, by_number)
    _tables.move_to_end(key)
    _close_old_ones()
    return _tables[key]


def _stamp(data: str) -> str:
    """Changes when the data on disk do."""
    path = Path(data)
    if path.is_dir():
        return read_index(path).stamp
    if not path.is_file():
        return ""
    info = path.stat()
    return f"{info.st_size} {info.st_mtime_ns} {info.st_ino}"


def _close_old_ones() -> None:
    used = 0
    for age, (key, table) in enumerate(reversed([*_tables.items()])):
        in_memory = 0 if isinstance(table.images, LazyImages) else table.images.numel()
        used += in_memory
        if age >= KEPT_OPEN or (age and in_memory and used > KEPT_BYTES):
            del _tables[key]


def _read(
    data: str,
    image_size: int | None,
    n_channels: int | None,
    classes: frozenset[str] | None,
    by_number: bool,
) -> ImageTable:
    try:
        return open_images(data, image_size, n_channels, classes=classes, keep=True)
    except KedgeError:
        there = frozenset() if classes is None else _names(data)
        if classes is None or not there or classes & there:
            raise
    if not by_number or len(there) != len(classes):
        raise KedgeError(
            f"{data}: none of the {len(classes)} classes of the protocol ({min(classes)}, …) is "
            f"here, but {len(there)} others ({min(there)}, …)."
        )
    return open_images(data, image_size, n_channels, keep=True)


def _names(data: str) -> frozenset[str]:
    """The classes that are there; none where that cannot be told."""
    try:
        path = Path(data)
        return frozenset((ImageTable.load if is_store(path) else catalogue)(path).classes)
    except KedgeError:
        return frozenset()


def held_out(table: ImageTable, classes: Sequence[str], usual: int = 300) -> int | str:
    """The part of the data that is held out of all these classes, if they come with one.

    Otherwise the usual number where there are three times as many images; else a sixth of the
    smallest class, but no fewer than an episode needs (5 shots and 15 queries) unless that were
    more than half of it.
    """
    rows = [table.rows_of(name) for name in classes]
    apart, trained = table.in_part(HELD_OUT), table.in_part(TRAINED)
    if all(bool(apart[r].any() and trained[r].any()) for r in rows):
        return HELD_OUT
    least = min(map(len, rows))
    return usual if least >= 3 * usual else max(least // 6, min(20, least // 2))


def what_is_held_out(usual: int = 300) -> str:
    return (
        f"of each trained class {usual} images are held out where all have {3 * usual}, otherwise "
        "a sixth of the smallest, or 20 if that is less"
    )
