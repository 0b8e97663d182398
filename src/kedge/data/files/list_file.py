"""Lists of images and their classes, as text or JSON Lines, and where the listed images are.

Columns may have any of the usual names, see files/csv_layout.py. A new column of text gets a tuple
of names there, a field in `ListRow`, and is filled in by `read_rows`. One that changes pixels,
such as a crop box, also needs a new kind of `RawImage` (data/decode.py) from its `ImageSource`
(data/index.py), and `readers/image_list.py` takes two lines of one file for one image today.
"""

from __future__ import annotations

import io
import json
import os
import posixpath
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from kedge.data.files.archives import DRIVE
from kedge.data.files.csv_layout import (
    CLASS_COLUMNS,
    IMAGE_COLUMNS,
    PART_COLUMNS,
    USED_COLUMNS,
    column_name,
    csv_records,
    has_columns,
)
from kedge.data.files.file_tree import FileTree, FolderTree, is_hidden
from kedge.errors import KedgeError
from kedge.utils.regular_file import open_regular
from kedge.utils.text import list_some

JSON_SUFFIXES = (".jsonl", ".ndjson")
SUFFIXES = (".csv", ".tsv", ".psv", *JSON_SUFFIXES)
TEXT_SUFFIXES = (".txt", ".lst", ".list")  # files of these names may be anything
HEAD_BYTES = 1 << 16  # read to tell a list of images from other tables
# Ravi's lists name the n-th image of a class; ImageNet's names hold a number of any length.
RAVI_NAME = re.compile(r"(n\d{8})\d{3}(\d{5})\.jpe?g", re.IGNORECASE)
IMAGENET_NAME = re.compile(r"n\d{8}_(\d+)\.jpe?g", re.IGNORECASE)
MOST_WAITING = 10_000  # objects of JSON without both columns
LONGEST_OBJECT = 1 << 20  # characters of a line of JSON, which may take 30 times as much memory
# For each image of a list so many places are tried. Usual data sets have one to five.
MOST_FOLDERS, MOST_PARENTS = 64, 16
MOST_CACHED = 1 << 15  # classes of which it is known where their images may be
# Work is counted in folders that are looked up; a line without an image of its own counts as 6, a
# new class as 16. A million such lines take seconds, so only many files allow more.
WORK_OF_LINE, WORK_OF_CLASS, MOST_WORK, WORK_PER_FILE = 6, 16, 6_000_000, 40
NO_FILES = frozenset[str]()
NO_FOLDER_NAME = re.compile(r"[/\\\0]")
# Parents of class folders that are tried for a list given alone, whose folder is not listed.
CLASS_FOLDER_PARENTS = ("", "train/", "images/", "ILSVRC/Data/CLS-LOC/train/")


class ListRow(NamedTuple):
    """One image of a list; cells that are missing are empty."""

    line: int
    image: str
    class_name: str
    part: str


def read_rows(text: str, path: Path) -> Iterator[ListRow]:
    """All rows; a `KedgeError` if the file is damaged or lacks an image or class column."""
    is_json = path.name.lower().endswith(JSON_SUFFIXES)
    records = _json_records(text, path) if is_json else csv_records(text, path)
    columns: dict[str, None] = {}
    waiting = list[ListRow]()  # an object may lack keys that a later one has
    for line, record in records:
        waiting.append(_row(line, record))
        columns |= dict.fromkeys(n for n in record if n in USED_COLUMNS or len(columns) <= 8)
        if has_columns(columns):
            yield from waiting
            break
        if len(waiting) > MOST_WAITING:
            break
    if waiting and not has_columns(columns):
        names = list_some([*columns], 8)
        expected = "a column of images (such as path) and one of classes (such as label)"
        todo = "" if is_json else " Name them in the first line, separated by commas."
        raise KedgeError(f"{path}: expected {expected} but found {names}.{todo}")
    waiting.clear()
    for line, record in records:
        yield _row(line, record)


def peek_rows(tree: FileTree, name: str) -> list[ListRow]:
    """The rows in the first bytes of a file; empty if it is no list of images and classes."""
    rows: list[ListRow] = []
    try:
        if isinstance(tree, FolderTree):
            with open_regular(tree.local_path(name)) as file:
                head = file.read(HEAD_BYTES + 1)
        else:
            head = tree.read_bytes(name)[: HEAD_BYTES + 1]
        if len(head) > HEAD_BYTES:
            head = head[: head.rfind(b"\n") + 1]
        rows.extend(read_rows(head.decode("utf-8-sig"), tree.path / name))
    except (KedgeError, OSError, UnicodeDecodeError):
        pass  # rows before the error count: the head may end within a quoted cell
    return rows


def _row(line: int, record: Mapping[str, object]) -> ListRow:
    image, class_name, part = _used_columns(tuple(record))
    return ListRow(
        line, _cell(record.get(image)), _cell(record.get(class_name)), _cell(record.get(part))
    )


@lru_cache(maxsize=256)  # a list has few sets of columns
def _used_columns(found: tuple[str, ...]) -> tuple[str, ...]:
    """The columns of the image, the class and the part; "" for one that is missing."""
    kinds = (IMAGE_COLUMNS, CLASS_COLUMNS, PART_COLUMNS)
    return tuple(next((name for name in names if name in found), "") for names in kinds)


def _cell(value: object) -> str:
    if isinstance(value, str):
        return value.strip()
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else ""


def _json_records(text: str, path: Path) -> Iterator[tuple[int, dict[str, object]]]:
    for number, line in enumerate(io.StringIO(text, newline="\n"), start=1):
        if line.isspace():
            continue
        try:
            record = json.loads(line) if len(line) <= LONGEST_OBJECT else None
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict):
            limit = f" of at most {LONGEST_OBJECT:,} characters" * (len(line) > LONGEST_OBJECT)
            raise KedgeError(f"{path}: line {number} is no JSON object{limit}.")
        yield number, {column_name(key): value for key, value in record.items()}


class ImageLocator:
    """Looks up listed images in a file tree."""

    def __init__(self, tree: FileTree) -> None:
        # Its folder may hold anything then: only folders that the list refers to are read.
        self.list_given_alone = len(tree.names) == 1 and tree.path.is_dir()
        self.by_rank = False  # whether an image was found by its rank in an ImageNet folder
        self._root = str(tree.path)
        # Lists may hold full paths, with links in them or without.
        roots = (os.path.abspath(tree.path), os.path.realpath(tree.path))
        self._roots = tuple(f"{root.rstrip('/')}/" for root in roots)
        self._files: dict[str, set[str]] = {}  # by folder
        self._subfolders: dict[str, set[str]] = {}  # of those that were read for a list alone
        self._folders: dict[str, list[str]] = {}  # by their last component
        self._sorted_folders: list[str] = []
        self._ranked: dict[str, list[str]] = {}  # files of ImageNet folders, by number
        self._known_starts: dict[tuple[str, str, str], list[str]] = {}
        self._n_files, self._work = 0, 0
        if not self.list_given_alone:
            self._n_files = len(tree.names)
            for name in tree.names:
                folder, slash, file = name.rpartition("/")
                self._files.setdefault(folder + slash, set()).add(file)
            self._sorted_folders = sorted(self._files)
            for folder in sorted(self._files, key=lambda f: ("train/" not in f, f.count("/"), f)):
                self._folders.setdefault(folder[:-1].rpartition("/")[2], []).append(folder)

    def is_outside(self, image: str) -> bool:
        """Whether a listed name leads out of the tree."""
        name = image.replace("\\", "/")
        if name.startswith("/"):
            return self._relative(name) is None
        return bool(DRIVE.match(name)) or (".." in name and ".." in name.split("/"))

    def find(self, row: ListRow, list_name: str, part: str) -> str | None:
        """The path in the tree of a listed image.

        Relative names are looked up in the list's folder and those above it, directly and in the
        folders `images`, of the class and of the part; then in any folder of the class's name; then
        by rank in a class folder of ImageNet.
        """
        name = row.image.replace("\\", "/")
        if name.startswith("/"):
            relative = self._relative(name)
            return relative if relative is not None and self._exists(relative) else None
        if name.startswith(".") or "/." in name or "//" in name or name.endswith("/"):
            name = "/".join(p for p in name.split("/") if p not in ("", "."))
        folder, slash, file = name.rpartition("/")
        starts = self._known_starts.get((row.class_name, list_name, part))
        if starts is None:
            starts = self._starts(row.class_name, list_name, part)
        for start in starts:
            self._work += 1
            if file in self._files_in(place := start + folder + slash):
                return place + file
        if ranked := RAVI_NAME.fullmatch(file):
            for place in self._folders_named(ranked[1])[:MOST_FOLDERS]:
                self._work += 1
                files_by_number, rank = self._by_number(place), int(ranked[2])
                if 0 < rank <= len(files_by_number):
                    self.by_rank = True
                    return place + files_by_number[rank - 1]
        return None

    def count_line(self) -> bool:
        """Count a line that names no image or one again; whether there may be more of them."""
        self._work += WORK_OF_LINE
        return self._work <= MOST_WORK + WORK_PER_FILE * self._n_files

    def _starts(self, class_name: str, list_name: str, part: str) -> list[str]:
        """The folders that exist of those from which the name of an image may start, in the order
        of `find`."""
        is_folder_name = not NO_FOLDER_NAME.search(class_name) and not is_hidden(class_name)
        of_class = f"{class_name}/" if is_folder_name else ""
        subfolders = ["", "images/", of_class, f"images/{of_class}"]
        subfolders += [f"{part}/", f"{part}/{of_class}"] if part else []
        starts = [a + b for a in _parents(list_name) for b in dict.fromkeys(subfolders)]
        starts += self._folders_named(of_class[:-1])[:MOST_FOLDERS]
        self._work += max(WORK_OF_CLASS, len(starts))
        if len(self._known_starts) >= MOST_CACHED:
            self._known_starts.clear()
        existing = [start for start in starts if self._is_folder(start)]
        self._known_starts[class_name, list_name, part] = existing
        return existing

    def _is_folder(self, folder: str) -> bool:
        if not self.list_given_alone:
            at = bisect_left(self._sorted_folders, folder)
            return any(name.startswith(folder) for name in self._sorted_folders[at : at + 1])
        parent, _, name = folder[:-1].rpartition("/")
        if not name:
            return True
        self._files_in(parent := parent + "/" * bool(parent))
        return name in self._subfolders.get(parent, ())

    def _relative(self, path: str) -> str | None:
        """A full path relative to the tree, compared as text: links are not resolved."""
        plain = posixpath.normpath(path)
        return next((plain.removeprefix(r) for r in self._roots if plain.startswith(r)), None)

    def _exists(self, name: str) -> bool:
        folder, slash, file = name.rpartition("/")
        return file in self._files_in(folder + slash)

    def _files_in(self, folder: str) -> Set[str]:
        files = self._files.get(folder)
        if files is None and self.list_given_alone:
            self._read_down_to(folder)
            files = self._files.get(folder)
        return NO_FILES if files is None else files

    def _read_down_to(self, folder: str) -> None:
        """Read a folder and those above it. A list may name any number that do not exist, which
        take neither an access to the disk nor memory then."""
        if self._subfolders and folder.partition("/")[0] not in self._subfolders[""]:
            return
        above, at = "", ""
        for name in ["", *folder.split("/")[:-1]]:
            if name:
                if name not in self._subfolders[above]:
                    return
                at = f"{above}{name}/"
            if at not in self._subfolders:
                files, subfolders = self._files[at], self._subfolders[at] = set[str](), set[str]()
                with suppress(OSError), os.scandir(os.path.join(self._root, at)) as entries:
                    for entry in entries:
                        (files if entry.is_file() else subfolders).add(entry.name)
                self._n_files += len(files)
            above = at

    def _folders_named(self, name: str) -> list[str]:
        if not name:
            return []
        if self.list_given_alone:
            return [f"{parent}{name}/" for parent in CLASS_FOLDER_PARENTS]
        return self._folders.get(name, [])

    def _by_number(self, folder: str) -> Sequence[str]:
        if not (files := self._files_in(folder)):
            return ()
        if folder not in self._ranked:
            matches = {f: m for f in files if (m := IMAGENET_NAME.fullmatch(f))}
            self._ranked[folder] = sorted(matches, key=lambda file: int(matches[file][1]))
        return self._ranked[folder]


def _parents(name: str) -> Iterator[str]:
    """The folder of a file and those above it, each with a final '/', up to the root ''."""
    folders = name.split("/")[:-1]
    for n in range(len(folders), max(0, len(folders) - MOST_PARENTS), -1):
        yield "/".join(folders[:n]) + "/"
    yield ""
