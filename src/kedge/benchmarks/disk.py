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
from kedge.data.table import ImageTable
from kedge.errors import KedgeError, require

MOST_TABLES = 8  # kept open
MOST_BYTES = 1 << 30  # of tables in memory; the latest is kept whatever its size

Key = tuple[str, str, int | None, int | None, frozenset[str] | None]
_tables: OrderedDict[Key, ImageTable] = OrderedDict()  # each seed opens the same data again


def open_cached(
    data: str | None,
    image_size: int | None,
    n_channels: int | None,
    classes: frozenset[str] | None = None,
    *,
    any_names: bool = False,
) -> ImageTable:
    """The images of these classes, or of all.

    With `any_names`, data with as many classes under other names are accepted too, since some
    forms of a data set have numbers only.
    """
    assert data is not None, "Protocol.benchmark checks it"
    key = (os.path.abspath(data), _stamp(data), image_size, n_channels, classes)
    if key not in _tables:
        _tables[key] = _open(data, image_size, n_channels, classes, any_names)
    _tables.move_to_end(key)
    _evict()
    return _tables[key]


def _stamp(data: str) -> str:
    """Changes when the data on disk change."""
    if Path(data).is_dir():
        return read_index(data).stamp
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


def _open(
    data: str,
    image_size: int | None,
    n_channels: int | None,
    classes: frozenset[str] | None,
    any_names: bool,
) -> ImageTable:
    try:
        return open_images(data, image_size, n_channels, classes=classes, cache=True)
    except KedgeError:
        names: frozenset[str] = frozenset()
        with suppress(KedgeError):
            path = Path(data)
            load = ImageTable.load if is_packed_file(path) else read_index
            names = frozenset(load(path).classes)
        if classes is None or not names or classes & names:
            raise
    require(
        any_names and len(names) == len(classes),
        f"{data}: holds none of the {len(classes)} classes of the protocol ({min(classes)}, …) but "
        f"{len(names)} others ({min(names)}, …).",
    )
    return open_images(data, image_size, n_channels, cache=True)


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
