"""Lists of images and their classes: CSV with a header, or JSON Lines.

Columns may have any of the usual names, see `IMAGE_COLUMNS` and below. A new column gets a tuple of
names here, a field in `ListRow`, and is filled in by `read_rows`.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from kedge.data.files.file_tree import FileTree, FolderTree
from kedge.errors import KedgeError
from kedge.utils.text import display_name

JSON_SUFFIXES = (".jsonl", ".ndjson")
SUFFIXES = (".csv", ".tsv", *JSON_SUFFIXES)
SEPARATORS = (",", ";", "\t")
HEAD_BYTES = 1 << 16  # read to tell a list of images from other tables
# The first of these columns that a list has is used. Names come before "label", often a number.
IMAGE_COLUMNS = (
    *("filename", "file_name", "file", "path", "file_path", "filepath", "filepaths"),
    *("image", "image_name", "image_path", "image_file", "img", "img_path"),
)
CLASS_COLUMNS = ("class_name", "class", "category", "label_name", "label", "labels", "name")
PART_COLUMNS = ("split", "part", "subset", "partition", "set", "data_set")


class ListRow(NamedTuple):
    """One image of a list; cells that are missing are empty."""

    line: int
    image: str
    class_name: str
    part: str


def is_list(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)


def read_rows(text: str, path: Path) -> Iterator[ListRow]:
    """All rows; a `KedgeError` if the file is damaged or lacks an image or class column."""
    is_json = path.name.lower().endswith(JSON_SUFFIXES)
    columns: dict[str, object] = {}
    has_columns, waiting = False, list[ListRow]()  # an object may lack keys that a later one has
    for line, record in _json_records(text, path) if is_json else _csv_records(text, path):
        cells = (_cell(record, names) for names in (IMAGE_COLUMNS, CLASS_COLUMNS, PART_COLUMNS))
        waiting.append(ListRow(line, *cells))
        if not has_columns:
            columns |= record
            has_columns = _has_columns(columns)
        if has_columns:
            yield from waiting
            waiting.clear()
    if waiting:
        names = ", ".join(map(display_name, [*columns][:8]))
        raise KedgeError(
            f"{path}: expected a column of images (filename, path, image …) and one of classes "
            f"(label, class, category …); its columns are: {names}."
        )


def peek_rows(tree: FileTree, name: str) -> list[ListRow]:
    """The rows in the first bytes of a file; empty if it is no list of images and classes."""
    rows: list[ListRow] = []
    try:
        if isinstance(tree, FolderTree):
            with open(tree.local_path(name), "rb") as file:
                head = file.read(HEAD_BYTES + 1)
        else:
            head = tree.read_bytes(name)[: HEAD_BYTES + 1]
        if len(head) > HEAD_BYTES:
            head = head[: head.rfind(b"\n") + 1]
        rows.extend(read_rows(head.decode("utf-8-sig"), tree.path / name))
    except (KedgeError, OSError, UnicodeDecodeError):
        pass  # rows before the error count: the head may end within a quoted cell
    return rows


def _has_columns(columns: Mapping[str, object] | Sequence[str]) -> bool:
    return all(any(n in columns for n in names) for names in (IMAGE_COLUMNS, CLASS_COLUMNS))


def _cell(record: Mapping[str, object], names: Sequence[str]) -> str:
    value = next((record[name] for name in names if name in record), "")
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value.strip() if isinstance(value, str) else ""


def _column(name: str) -> str:
    return re.sub(r"[\s-]+", "_", name.strip(' "\t').strip().lower())


def _csv_records(text: str, path: Path) -> Iterator[tuple[int, dict[str, object]]]:
    """Line numbers and cells by column; the bare header if it lacks a column that is needed."""
    header = re.split("[\r\n]", text.lstrip(), maxsplit=1)[0]
    fits = (s for s in SEPARATORS if _has_columns([_column(name) for name in header.split(s)]))
    separator = next(fits, ",")
    table = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    columns: list[str] = []
    try:
        for row in table:
            if columns and row:
                cells = dict(zip(columns, row, strict=False))  # a row may lack the last cells
                yield table.line_num, {**dict.fromkeys(columns, ""), **cells}
            elif row:
                columns = [_column(name) for name in row]
                if not _has_columns(columns):
                    yield table.line_num, dict.fromkeys(columns)
                    return
    except csv.Error as error:
        raise KedgeError(f"{path}: line {table.line_num} is not valid CSV ({error}).") from None


def _json_records(text: str, path: Path) -> Iterator[tuple[int, dict[str, object]]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict):
            example = '{"path": "a.png", "class": "cat"}'
            raise KedgeError(f"{path}: line {number} is no JSON object such as {example}.")
        yield number, {_column(key): value for key, value in record.items()}
