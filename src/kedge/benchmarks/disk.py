"""Images on disk for benchmarks: opened once per process, with some of each class held out."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from kedge.benchmarks.base import TRAIN_PART
from kedge.data.index import HELD_OUT
from kedge.data.open import is_packed_file, open_images
from kedge.data.packed_file import LazyImages
from kedge.data.readers import read_index
from kedge.data.readers.folder_levels import UnclearFolders
from kedge.data.table import ImageTable
from kedge.errors import KedgeError, require

MOST_TABLES = 8  # kept open
MOST_BYTES = 1 << 30  # of tables in memory; the latest is kept whatever its size

_tables: OrderedDict[tuple, ImageTable] = OrderedDict()  # each seed opens the same data again


def open_cached(
    data: str | None,
    image_size: int | None,
    n_channels: int | None,
    classes: frozenset[str] | None = None,
    *,
    any_names: bool = False,
) -> ImageTable:
    """The images of these classes, or of all; with `any_names`, of as many under other names.
    A packed file keeps its own size."""
    assert data is not None, "Protocol.benchmark checks it"
    image_size = None if is_packed_file(Path(data)) else image_size
    key = (os.path.abspath(data), _stamp(data), image_size, n_channels, classes)
    if key not in _tables:
        try:
            table = open_images(data, image_size, n_channels, only_classes=classes, cache=True)
        except KedgeError:
            names = _class_names(data)
            if classes is None or not names or classes & names:
                raise
            require(
                any_names and len(names) == len(classes),
                f"{data}: holds none of the {len(classes)} classes of the protocol "
                f"({min(classes)}, …) but {len(names)} others ({min(names)}, …).",
            )
            table = open_images(data, image_size, n_channels, cache=True)
        _tables[key] = table
    _tables.move_to_end(key)
    _evict()
    return _tables[key]


def _stamp(data: str) -> str:
    """Changes when the data on disk change."""
    if Path(data).is_dir():
        try:
            return read_index(data).stamp
        except UnclearFolders as error:
            todo = "Give that option to 'kedge data pack', and the packed file here"
            raise KedgeError(f"{error} {todo}.") from None
    with suppress(OSError):
        info = os.stat(data)
        return f"{info.st_size} {info.st_mtime_ns} {info.st_ino}"
    return ""


def _evict() -> None:
    used = 0
    for age, (key, table) in enumerate(reversed([*_tables.items()])):
        n_bytes = 0 if isinstance(table.images, LazyImages) else table.images.numel()
        used += n_bytes
        if age >= MOST_TABLES or (age and n_bytes and used > MOST_BYTES):
            del _tables[key]


def _class_names(data: str) -> frozenset[str]:
    """The names of the classes, or nothing if they cannot be read."""
    with suppress(KedgeError):
        path = Path(data)
        return frozenset((ImageTable.load if is_packed_file(path) else read_index)(path).classes)
    return frozenset()


def choose_held_out(table: ImageTable, classes: Sequence[str], usual: int = 300) -> int | str:
    """Which images of each class are held out: a part of the data, or how many.

    The part "held out" if all classes have one. Otherwise the usual number if every class has three
    times as many images; else a sixth of the smallest class, but at least the 20 that an episode
    needs (5 shots and 15 queries), unless this is more than half of it.
    """
    rows = [table.rows_of(name) for name in classes]
    held_out, train = table.in_part(HELD_OUT), table.in_part(TRAIN_PART)
    if all(bool(held_out[r].any() and train[r].any()) for r in rows):
        return HELD_OUT
    least = min(map(len, rows))
    return usual if least >= 3 * usual else max(least // 6, min(20, least // 2))


def held_out_rule(usual: int = 300) -> str:
    """The rule of `choose_held_out` in words, for descriptions of protocols."""
    return (
        f"of each trained class {usual} images are held out where all have {3 * usual}, otherwise "
        "a sixth of the smallest, or 20 if that is less"
    )
