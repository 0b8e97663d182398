"""Lists of images and classes as text: which character separates cells, and what columns mean.

A first line with known column names says it. Otherwise a list of two columns (or three, with the
parts of a split) is understood from its cells: one column holds names of image files.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from kedge.data.decode import UNSUPPORTED_TYPES, looks_like_image
from kedge.data.index import PART_NAMES
from kedge.errors import KedgeError

SEPARATORS = (",", ";", "\t", "|", ":", " ")
# The same, the least likely within a path or a name first.
BY_CELLS = ("\t", ";", "|", ",", ":", " ")
SAMPLE = 50  # lines from which the columns are inferred
MOSTLY = 0.9  # of the lines must fit: one may be damaged
# The first of these columns that a list has is used. Names come before "label", often a number.
IMAGE_COLUMNS = (
    *("filename", "file_name", "file", "path", "file_path", "filepath", "filepaths"),
    *("image", "image_name", "image_path", "image_file", "img", "img_path"),
)
CLASS_COLUMNS = ("class_name", "class", "category", "label_name", "label", "labels", "name")
PART_COLUMNS = ("split", "part", "subset", "partition", "set", "data_set")
USED_COLUMNS = frozenset((*IMAGE_COLUMNS, *CLASS_COLUMNS, *PART_COLUMNS))
MOST_WORDS = 64  # of a path with blanks
LONGEST_LINE = 1 << 18  # characters: a line of millions of cells is in no list of images


class _LongLine(csv.Error):
    """A line has more characters than are read."""


class Layout(NamedTuple):
    """How the lines of a list are cut into columns."""

    separator: str
    columns: tuple[str, ...] = ()  # empty if the first line names them
    has_header: bool = True


def csv_records(text: str, path: Path) -> Iterator[tuple[int, dict[str, object]]]:
    """Line numbers and cells by column, but for columns that are never used; all names of the
    header if it lacks a column that is needed."""
    separator, columns, has_header = _layout(text)
    table = _reader(text, separator)
    rows = filter(None, table)
    try:
        if has_header:
            header: list[str] = next(rows, [])
            columns = columns or tuple(map(column_name, header))
            if header and not has_columns(columns):
                yield table.line_num, dict.fromkeys(columns)
                return
        # A row may lack the last cells. It must not cost as much as there are columns.
        used = {name: k for k, name in enumerate(columns) if name in USED_COLUMNS}
        for row in rows:
            cells = _join_words(row) if separator == " " and len(row) > len(columns) else row
            yield (
                table.line_num,
                {name: cells[k] if k < len(cells) else "" for name, k in used.items()},
            )
    except csv.Error as error:
        number = table.line_num + isinstance(error, _LongLine)
        raise KedgeError(f"{path}: line {number} is not valid CSV ({error}).") from None


def has_columns(columns: Collection[str]) -> bool:
    """Whether there is a column of images and one of classes."""
    return all(any(n in columns for n in names) for names in (IMAGE_COLUMNS, CLASS_COLUMNS))


def column_name(name: str) -> str:
    plain = name.strip(' "\t').strip().lower()
    return plain if plain.isidentifier() else re.sub(r"[\s-]+", "_", plain)


def _layout(text: str) -> Layout:
    header = re.split("[\r\n]", text.lstrip(), maxsplit=1)[0]
    if len(header) > LONGEST_LINE:
        return Layout(",")  # reading it says so
    for separator in SEPARATORS:
        if has_columns([column_name(name) for name in header.split(separator)]):
            return Layout(separator)
    for separator in BY_CELLS:
        try:
            rows = [*islice(filter(None, _reader(text, separator)), SAMPLE)]
        except csv.Error:
            continue
        for cells in (rows, [_join_words(row) for row in rows]) if separator == " " else (rows,):
            if columns := _columns_by_cells(cells):
                has_header = not _is_image(cells[0][columns.index(IMAGE_COLUMNS[0])])
                return Layout(separator, columns, has_header)
    return Layout(max(SEPARATORS[:-1], key=header.count))  # for a message that names the columns


def _columns_by_cells(rows: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Names for the columns of rows, of which the first may be a header; empty if unclear."""
    n = len(rows[0]) if rows else 0
    body = [row for row in rows[1:] or rows if len(row) == n]
    if n not in (2, 3) or len(body) < MOSTLY * len(rows[1:] or rows):
        return ()
    cells = [[row[k] for row in body] for k in range(n)]
    images = [k for k in range(n) if sum(map(_is_image, cells[k])) >= MOSTLY * len(body)]
    parts = [k for k in range(n) if all(cell.strip().lower() in PART_NAMES for cell in cells[k])]
    if len(images) != 1 or (n == 3 and (len(parts) != 1 or parts == images)):
        return ()
    names = [CLASS_COLUMNS[0]] * n
    names[images[0]] = IMAGE_COLUMNS[0]
    if n == 3:
        names[parts[0]] = PART_COLUMNS[0]
    return tuple(names)


def _reader(text: str, separator: str) -> Any:
    return csv.reader(_lines(text), delimiter=separator, strict=True, skipinitialspace=True)


def _lines(text: str) -> Iterator[str]:
    for line in io.StringIO(text, newline=""):
        if len(line) > LONGEST_LINE:
            raise _LongLine(f"more than {LONGEST_LINE:,} characters")
        yield line


def _join_words(cells: Sequence[str]) -> list[str]:
    """Cells between blanks as a path and a class: the path ends with the first name of an image."""
    words = [*filter(None, cells)]
    end = next((i for i, word in enumerate(words[:MOST_WORDS], 1) if _is_image(word)), 0)
    if not end or len(words) < 3:
        return words
    return [" ".join(words[:end]), " ".join(words[end:])]


def _is_image(cell: str) -> bool:
    name = cell.strip()
    if "." not in name:
        return name.lower() in UNSUPPORTED_TYPES
    return looks_like_image(name) or name.rpartition(".")[2].lower() in UNSUPPORTED_TYPES
