"""`<class>/*` and `{train,val,test}/<class>/*`: one sub-folder per class, any images in it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from kedge.data.decode import looks_like_image
from kedge.data.files.file_tree import (
    FileTree,
    FolderTree,
    unsupported_image_types,
)
from kedge.data.index import (
    PART_NAMES,
    FileImages,
    ImageIndex,
    catalogued,
)
from kedge.data.readers.base import Reader
from kedge.errors import KedgeError
from kedge.utils.text import left_out, shown


class FolderReader(Reader):
    form = "folders of classes"

    def recognises(self, tree: FileTree) -> bool:
        return any("/" in name and looks_like_image(name) for name in tree.names)

    def read(self, tree: FileTree) -> ImageIndex:
        images = [name for name in tree.names if looks_like_image(name)]
        folders = {_folder(name) for name in images}
        depth = _wrapper(folders)
        split = _is_split(folders, depth)
        belongs = {folder: _class_of(folder, depth, split) for folder in folders}
        names, classes, parts, loose = [], [], [], []
        for image in images:
            part, name = belongs[_folder(image)]
            if name is None:
                loose.append(image)
                continue
            names.append(image)
            classes.append(name)
            parts.append(part)
        if not names:
            raise KedgeError(
                f"{tree.path}: no class was found; expected one sub-folder per class with images "
                "in it."
            )
        found = set(parts)
        taken = [folder for folder in folders if belongs[folder][1] is not None]
        return catalogued(
            tree,
            f"{self.form}, split in {', '.join(p for p in ORDER if p in found)}"
            if split
            else self.form,
            classes,
            FileImages(tree, names),
            parts=parts if split else (),
            remarks=(
                *left_out(
                    loose,
                    "image lies beside the class folders",
                    "images lie beside the class folders",
                ),
                *_remarks(tree, depth, split, set(classes)),
                *(
                    _too_high(tree, taken, depth + split)
                    or _class_or_part(tree, taken, depth, split)
                ),
            ),
            files=names,
            told=loose,
        )


WNID = re.compile(r"n\d{8}")
ORDER = tuple(dict.fromkeys(PART_NAMES.values()))


def _folder(name: str) -> str:
    return name.rpartition("/")[0]


def _wrapper(folders: Collection[str]) -> int:
    """How many folders stand around the classes or the parts of a split, such as one of the
    archive's own name: those that all images share, but for the last, which may be a class."""
    ways = [folder.split("/") for folder in folders if folder]
    if not ways:
        return 0
    first, last = min(ways), max(ways)
    depth = 0
    while (
        depth < min(len(first), len(last))
        and first[depth] == last[depth]
        and first[depth].lower() not in PART_NAMES
    ):
        depth += 1
    return min(depth, max(map(len, ways)) - 1)


def _is_split(folders: Collection[str], depth: int) -> bool:
    """Whether the uppermost folders are parts of a split and not classes: a class can be called
    "train", but then there are others, and no classes within. One part is enough where what lies
    beside it is less than what lies in it, such as one folder of unlabelled images."""
    ways = [folder.split("/")[depth:] for folder in folders if folder.count("/") >= depth]
    tops = {way[0].lower() for way in ways if way[0]}
    within = {PART_NAMES.get(way[0].lower()) for way in ways if len(way) > 1} - {None}
    if tops <= PART_NAMES.keys() or len(within) > 1:
        return True
    return len(_lone_part(ways)[1]) > len(tops - PART_NAMES.keys())


def _lone_part(ways: Iterable[list[str]]) -> tuple[str, list[str]]:
    """A folder that is called like a part of a split, and the several folders in it, beside which
    no image lies; nothing where others have several folders too, for then all may be classes."""
    within: dict[str, set[str]] = {}
    for top, *inner in ways:
        within.setdefault(top, set()).add(inner[0] if inner else "")
    several = [top for top in within if len(within[top] - {""}) > 1]
    if len(several) != 1 or several[0].lower() not in PART_NAMES or "" in within[several[0]]:
        return "", []
    return several[0], sorted(within[several[0]])


def _class_of(folder: str, depth: int, split: bool) -> tuple[str, str | None]:
    """Part of the split and class of the images in a folder; None where they have no class."""
    way = folder.split("/")[depth:] if folder else []
    part = PART_NAMES.get(way.pop(0).lower()) if split and way else ""
    return part or "", (way[0] if way and part is not None else None)


def _remarks(tree: FileTree, depth: int, split: bool, classes: set[str]) -> tuple[str, ...]:
    class_of = {
        folder: name
        for folder in {_folder(name) for name in tree.names}
        if (name := _class_of(folder, depth, split)[1]) is not None
    }
    empty = sorted(set(class_of.values()) - classes)
    return (
        *left_out(empty, "folder holds no image", "folders hold no image"),
        *unsupported_image_types(name for name in tree.names if _folder(name) in class_of),
    )


def _too_high(tree: FileTree, folders: Collection[str], level: int) -> tuple[str, ...]:
    """A remark where what was taken for classes may be folders of them: no image lies in one
    itself, and most hold several folders of different names. Numbered ones (character01) and
    parts of a split are no classes, as a rule, and one folder (images) is none either."""
    ways = [folder.split("/") for folder in sorted(folders)]
    if any(len(way) == level + 1 for way in ways):
        return ()
    named = [way for way in ways if way[level + 1].lower() not in PART_NAMES]
    within: dict[str, set[str]] = {way[level]: set() for way in ways}
    for way in named:
        within[way[level]].add(_unnumbered(way[level + 1]))
    several = [name for name, inner in within.items() if len(inner) > 1]
    if 2 * len(several) < len(within):
        return ()
    first = next(way for way in named if way[level] == several[0])
    outer, inner = "/".join(first[: level + 1]), first[level + 1]
    return (
        f"all images lie in sub-folders, such as {shown(f'{outer}/{inner}')}: if {shown(inner)} is "
        f"a class, give {_within(tree, outer)}",
    )


def _class_or_part(
    tree: FileTree, folders: Collection[str], depth: int, split: bool
) -> tuple[str, ...]:
    """A remark where a class is called like a part of a split, and may be one."""
    ways = [folder.split("/") for folder in sorted(folders)]
    part, inner = _lone_part(way[depth:] for way in ways)
    if split or not part:
        return ()
    outer = "/".join((*ways[0][:depth], part))
    return (
        f"{shown(outer)} was taken for a class, although all its images lie in sub-folders: if "
        f"{shown(inner[0])} is a class, give {_within(tree, outer)}",
    )


def _within(tree: FileTree, outer: str) -> str:
    """How a folder of the tree is given instead of all of it."""
    where = tree.path / outer if isinstance(tree, FolderTree) else f"{outer} alone, unpacked"
    return shown(str(where))


def _unnumbered(name: str) -> str:
    return name if WNID.fullmatch(name) else re.sub(r"\d+", "", name)
