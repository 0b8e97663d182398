"""Lists of images and their classes: CSV with a header, or JSON Lines, as people write them."""

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
from kedge.utils.text import shown

ENDINGS = (".csv", ".tsv", ".jsonl", ".ndjson")
SEPARATORS = (",", ";", "\t")
HEAD = 1 << 16  # bytes that are looked at to tell a list from other tables
# Of several columns the first counts: names say more than numbers, which "label" often holds.
IMAGE = (
    *("filename", "file_name", "file", "path", "file_path", "filepath", "filepaths"),
    *("image", "image_name", "image_path", "image_file", "img", "img_path"),
)
CLASS = ("class_name", "class", "category", "label_name", "label", "labels", "name")
PART = ("split", "part", "subset", "partition", "set", "data_set")


class Row(NamedTuple):
    """What is empty was not given."""

    line: int
    image: str
    name: str  # of the class
    part: str


def is_list(name: str) -> bool:
    return name.lower().endswith(ENDINGS)


def rows(text: str, path: Path) -> Iterator[Row]:
    """All rows; a `KedgeError` where this is no list, or a broken one."""
    as_json = path.name.lower().endswith(ENDINGS[2:])
    columns: dict[str, object] = {}
    usable, waiting = False, list[Row]()  # a JSON object may lack what a later one has
    for line, record in _objects(text, path) if as_json else _records(text, path):
        waiting.append(Row(line, _cell(record, IMAGE), _cell(record, CLASS), _cell(record, PART)))
        if not usable:
            columns |= record
            usable = _usable(columns)
        if usable:
            yield from waiting
            waiting.clear()
    if waiting:
        raise KedgeError(
            f"{path}: expected a column of images (filename, path, image …) and one of classes "
            f"(label, class, category …); its columns are: {', '.join(map(shown, [*columns][:8]))}."
        )


def first_rows(tree: FileTree, name: str) -> list[Row]:
    """Some of the rows, cheaply; none where it is no list of images and classes."""
    found: list[Row] = []
    try:
        if isinstance(tree, FolderTree):
            with open(tree.local(name), "rb") as file:
                head = file.read(HEAD + 1)
        else:
            head = tree.read(name)[: HEAD + 1]
        if len(head) > HEAD:
            head = head[: head.rfind(b"\n") + 1]
        found.extend(rows(head.decode("utf-8-sig"), tree.path / name))
    except (KedgeError, OSError, UnicodeDecodeError):
        pass  # what was found before counts: the head may end within a row
    return found


def _usable(columns: Mapping[str, object] | Sequence[str]) -> bool:
    return any(name in columns for name in IMAGE) and any(name in columns for name in CLASS)


def _cell(record: Mapping[str, object], columns: Sequence[str]) -> str:
    value = next((record[name] for name in columns if name in record), "")
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value.strip() if isinstance(value, str) else ""


def _column(name: str) -> str:
    return re.sub(r"[\s-]+", "_", name.strip().lower())


def _records(text: str, path: Path) -> Iterator[tuple[int, dict[str, object]]]:
    header_line = re.split("[\r\n]", text.lstrip(), maxsplit=1)[0]
    separator = next((s for s in SEPARATORS if _usable(_header(header_line, s))), ",")
    table = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    columns: list[str] = []
    try:
        for row in table:
            if columns and row:
                given = dict(zip(columns, row, strict=False))  # a row may lack the last cells
                yield table.line_num, {**dict.fromkeys(columns, ""), **given}
            elif row:
                columns = [_column(name) for name in row]
                if not _usable(columns):
                    yield table.line_num, dict.fromkeys(columns)
                    return
    except csv.Error as error:
        raise KedgeError(
            f"{path}: line {table.line_num} is no line of a CSV file ({error})."
        ) from None


def _header(line: str, separator: str) -> list[str]:
    try:
        return [_column(name) for row in csv.reader([line], delimiter=separator) for name in row]
    except csv.Error:
        return []


def _objects(text: str, path: Path) -> Iterator[tuple[int, dict[str, object]]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            entry = None
        if not isinstance(entry, dict):
            raise KedgeError(
                f"{path}: line {number} is no JSON object; expected one in each line, such as "
                '{"path": "a.png", "class": "cat"}.'
            )
        yield number, {_column(key): value for key, value in entry.items()}
