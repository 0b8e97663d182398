"""A CSV or JSON Lines file of images and their classes, and the images in folders around it.

`{train,val,test}.csv` are the parts of a split, as Ravi published that of miniImageNet; otherwise
it is one list of any name. Where images are looked for, `_Folders.find` says.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from kedge.data.decode import looks_like_image
from kedge.data.files.archives import DRIVE, is_hidden
from kedge.data.files.file_tree import FileTree
from kedge.data.files.list_file import (
    Row,
    first_rows,
    is_list,
    rows,
)
from kedge.data.index import (
    PART_NAMES,
    FileImages,
    ImageIndex,
    catalogued,
    numbered,
)
from kedge.data.readers.base import Reader
from kedge.errors import KedgeError
from kedge.utils.text import left_out, shown

MOST_LISTS = 32  # to look into; where there are more, they are something else
RAVI = re.compile(r"(n\d{8})\d{3}(\d{5})\.jpe?g", re.IGNORECASE)
ILSVRC = re.compile(r"n\d{8}_(\d+)\.jpe?g", re.IGNORECASE)
# Where class folders are, if a list is given alone and the folder around it is not listed.
USUAL = ("", "train/", "images/", "ILSVRC/Data/CLS-LOC/train/")


class ImageListReader(Reader):
    form = "images and a list of their classes"

    def recognises(self, tree: FileTree) -> bool:
        lists, _ = _lists(tree)
        # With one folder of images, or none, there are no classes but in the list.
        return bool(lists) and (len(_image_folders(tree)) < 2 or bool(_pointing(tree, lists)))

    def read(self, tree: FileTree) -> ImageIndex:
        lists, remarks = _lists(tree)
        split = all(_stem(name) in PART_NAMES for name in lists)
        if not split and len(lists) > 1:
            lists = _pointing(tree, lists) or lists
        if not lists or (not split and len(lists) > 1):
            several = f"which of {', '.join(map(shown, lists[:4]))} counts is not clear; "
            raise KedgeError(
                f"{tree.path}: {several if lists else ''}expected one list of images and classes; "
                "give its path."
            )
        folders = _Folders(tree)
        entries = _Entries()
        for name in lists:
            for row in rows(tree.text(name), tree.path / name):
                entries.add(row, folders, name, tree.path)
        if not entries.found and not entries.missing:
            raise KedgeError(
                f"{tree.path / lists[0]}: no line of it names an image and a class; expected both "
                "in each, as words or whole numbers."
            )
        if not entries.found:
            raise KedgeError(
                f"{tree.path / lists[0]}: none of the images that it lists is there, the first is "
                f"{shown(entries.missing[0])}; "
                "expected them beside the list or in 'images' beside it."
            )
        found = entries.found
        names = sorted(found) if folders.alone else [name for name in tree.names if name in found]
        unlisted = [] if folders.alone else _unlisted(tree, found)
        split = split or any(part.lower() in PART_NAMES for _, part in found.values())
        strays = [n for n in names if split and found[n][1].lower() not in PART_NAMES]
        if strays:  # to guess their part would put test images into training
            names = [name for name in names if found[name][1].lower() in PART_NAMES]
        parts = [found[name][1].lower() for name in names]
        return catalogued(
            tree,
            self.form + (", by rank in the folders of ImageNet" if folders.by_rank else ""),
            _sortable([found[name][0] for name in names]),
            FileImages(tree, names),
            parts=[PART_NAMES[part] for part in parts] if split else (),
            files=[*lists, *names],
            told=[name for name in tree.names if looks_like_image(name)],
            remarks=(
                *remarks,
                *entries.remarks(),
                *left_out(
                    strays,
                    "image is in no part of the list's split",
                    "images are in no part of the list's split",
                ),
                *left_out(unlisted, "image is in no list", "images are in no list"),
            ),
        )


def _lists(tree: FileTree) -> tuple[list[str], tuple[str, ...]]:
    """The lists that count, and remarks on those that do not."""
    candidates = [name for name in tree.names if is_list(name)]
    if len(candidates) == 1:
        around = candidates[0].rpartition("/")[0]
        if _image_folders(tree) <= {around, f"{around}/images".lstrip("/")}:
            return candidates, ()  # there is nothing else, so what is wrong with it is to be said
    candidates = sorted(candidates, key=lambda name: (name.count("/"), name))[:MOST_LISTS]
    usable = [name for name in candidates if first_rows(tree, name)]
    of_parts = [name for name in usable if _stem(name) in PART_NAMES]
    if not of_parts:
        return usable, ()
    folder = of_parts[0].rpartition("/")[0]
    taken = [name for name in of_parts if name.rpartition("/")[0] == folder]
    others = [n for n in candidates if _stem(n) in PART_NAMES and n not in taken]
    return taken, left_out(
        others,
        "further list lies elsewhere or has no classes",
        "further lists lie elsewhere or have no classes",
    )


def _unlisted(tree: FileTree, found: Mapping[str, object]) -> list[str]:
    """Of ImageNet's folders, lists name some of the images on purpose."""
    return [
        name
        for name in tree.names
        if name not in found and looks_like_image(name) and not ILSVRC.search(name)
    ]


def _image_folders(tree: FileTree) -> set[str]:
    return {name.rpartition("/")[0] for name in tree.names if looks_like_image(name)}


def _stem(name: str) -> str:
    return name.rpartition("/")[2].rpartition(".")[0].lower()


def _pointing(tree: FileTree, lists: list[str]) -> list[str]:
    """Those of which one of the first images is there."""
    folders = _Folders(tree)

    def points(name: str) -> bool:
        inside = (row for row in first_rows(tree, name) if not folders.leads_out(row))
        found = (folders.find(row, name) for row in inside)
        return any(image is not None and looks_like_image(image) for image in found)

    return [name for name in lists if points(name)]


class _Entries:
    """What the lists say, as far as the images are there."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[str, str]] = {}  # image: class, part
        self._kinds: dict[tuple[str, str], tuple[str, str]] = {}  # each once, of a million rows
        self.missing: list[str] = []
        self.incomplete: list[str] = []
        self.twice: list[str] = []
        self.otherwise: list[str] = []

    def add(self, row: Row, folders: _Folders, name: str, root: Path) -> None:
        if not row.image or not row.name:
            self.incomplete.append(f"line {row.line} of {name}")
            return
        if folders.leads_out(row):
            raise KedgeError(
                f"{root / name}: line {row.line} names {shown(row.image)}, which leads out of this "
                "folder; expected names relative to the list, or full paths within the folder."
            )
        try:
            row.name.encode()
        except UnicodeEncodeError:
            raise KedgeError(
                f"{root / name}: line {row.line} has a class whose name is no text, {row.name!a}."
            ) from None
        if _stem(name) in PART_NAMES:
            row = row._replace(part=_stem(name))
        image = folders.find(row, name)
        if image is None:
            self.missing.append(row.image)
            return
        kind = self._kinds.setdefault((row.name, row.part), (row.name, row.part))
        if image not in self.found:
            self.found[image] = kind
        else:
            (self.twice if self.found[image] == kind else self.otherwise).append(image)

    def remarks(self) -> tuple[str, ...]:
        return (
            *left_out(
                self.missing,
                "image that is listed is not there",
                "images that are listed are not there",
            ),
            *left_out(
                self.incomplete,
                "line has no image or no class",
                "lines have no image or no class",
            ),
            *left_out(self.twice, "image is listed again", "images are listed again"),
            *left_out(
                self.otherwise,
                "image is listed again with another class or part",
                "images are listed again with another class or part",
            ),
        )


class _Folders:
    """Which files are where. Around a list that is given alone, only those folders are looked into
    of which it speaks: it may lie in a folder with everything that someone has."""

    def __init__(self, tree: FileTree) -> None:
        self.alone = len(tree.names) == 1 and tree.path.is_dir()
        self.by_rank = False
        self._root = str(tree.path)
        # As it was given and without links: either may stand in a list.
        full = (os.path.abspath(tree.path), os.path.realpath(tree.path))
        self._in_full = tuple(f"{root.rstrip('/')}/" for root in full)
        self._files: dict[str, set[str]] = {}
        self._called: dict[str, list[str]] = {}
        self._ranked: dict[str, list[str]] = {}
        if not self.alone:
            for name in tree.names:
                folder, _, file = name.rpartition("/")
                self._files.setdefault(f"{folder}/" if folder else "", set()).add(file)
            for folder in sorted(self._files, key=lambda f: ("train/" not in f, f.count("/"), f)):
                self._called.setdefault(folder[:-1].rpartition("/")[2], []).append(folder)

    def leads_out(self, row: Row) -> bool:
        name = row.image.replace("\\", "/")
        if name.startswith("/"):
            return self._below(name) is None
        return bool(DRIVE.match(name)) or ".." in name.split("/")

    def _below(self, name: str) -> str | None:
        """What a full path says behind that of the folder, by the text alone: no link counts."""
        plain = posixpath.normpath(name)
        roots = (root for root in self._in_full if plain.startswith(root))
        return next((plain.removeprefix(root) for root in roots), None)

    def find(self, row: Row, list_name: str) -> str | None:
        """Beside the list, in `images`, in the folder of the class or of the part, all this in the
        folders above too; in a folder of the class anywhere; by Ravi's rank in such a folder. A
        full path is taken as it is."""
        name = row.image.replace("\\", "/")
        if name.startswith("/"):
            below = self._below(name)
            return below if below is not None and self._holds(below) else None
        given = "/".join(p for p in name.split("/") if p not in ("", "."))
        of_class = "" if re.search(r"[/\\\0]", row.name) or is_hidden(row.name) else f"{row.name}/"
        part = next((p for p in (_stem(list_name), row.part) if p.lower() in PART_NAMES), "")
        places = dict.fromkeys(
            ("", "images/", of_class, f"images/{of_class}", f"{part}/", f"{part}/{of_class}")
        )
        for above in _above(list_name):
            for place in places:
                if place[:1] != "/" and self._holds(above + place + given):
                    return above + place + given
        for folder in self._folders_called(of_class[:-1]):
            if self._holds(folder + given):
                return folder + given
        if ranked := RAVI.fullmatch(given.rpartition("/")[2]):
            for folder in self._folders_called(ranked[1]):
                in_order = self._in_order(folder)
                if 0 < int(ranked[2]) <= len(in_order):
                    self.by_rank = True
                    return folder + in_order[int(ranked[2]) - 1]
        return None

    def _holds(self, name: str) -> bool:
        folder, slash, file = name.rpartition("/")
        return file in self._in(folder + slash)

    def _in(self, folder: str) -> set[str]:
        if self.alone and folder not in self._files:
            try:
                with os.scandir(os.path.join(self._root, folder)) as entries:
                    self._files[folder] = {e.name for e in entries if e.is_file()}
            except (OSError, ValueError):  # not there, or no name that a folder can have
                self._files[folder] = set()
        return self._files.get(folder, set())

    def _folders_called(self, name: str) -> list[str]:
        if not name:
            return []
        return [f"{u}{name}/" for u in USUAL] if self.alone else self._called.get(name, [])

    def _in_order(self, folder: str) -> list[str]:
        """By the numbers in the names, which have different lengths."""
        if folder not in self._ranked:
            numbered = {file: m for file in self._in(folder) if (m := ILSVRC.fullmatch(file))}
            self._ranked[folder] = sorted(numbered, key=lambda file: int(numbered[file][1]))
        return self._ranked[folder]


def _above(name: str) -> Iterator[str]:
    """The folder of a file, and those around it."""
    folder = name.rpartition("/")[0]
    while folder:
        yield f"{folder}/"
        folder = folder.rpartition("/")[0]
    yield ""


def _sortable(names: list[str]) -> list[str]:
    """Numbers are no names: they get zeros in front, so that they sort, and as many in every list,
    so that a class which comes back in another is known."""
    if not all(name.isascii() and name.isdigit() and len(name) < 10 for name in set(names)):
        return names
    return numbered([int(name) for name in names])
