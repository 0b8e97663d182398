"""`<class>/*` and `{train,val,test}/<class>/*`: one sub-folder per class, any images in it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from itertools import takewhile

from kedge.data.decode import looks_like_image
from kedge.data.files.file_tree import FileTree, FolderTree, unsupported_image_types
from kedge.data.index import PART_NAMES, ImageIndex
from kedge.data.readers.base import Reader, index_files
from kedge.errors import KedgeError
from kedge.utils.text import display_name, skipped_remark

WNID = re.compile(r"n\d{8}")
PARTS = tuple(dict.fromkeys(PART_NAMES.values()))


class FolderReader(Reader):
    form = "folders of classes"

    def recognises(self, tree: FileTree) -> bool:
        return any("/" in name and looks_like_image(name) for name in tree.names)

    def read(self, tree: FileTree) -> ImageIndex:
        images = [name for name in tree.names if looks_like_image(name)]
        folders = {_folder(name) for name in images}
        depth = _wrapper_depth(folders)
        is_split = _is_split(folders, depth)
        label_of = {
            folder: label
            for folder in {_folder(name) for name in tree.names}
            if (label := _class_and_part(folder, depth, is_split)) is not None
        }
        labels = {name: label_of[_folder(name)] for name in images if _folder(name) in label_of}
        outside = [name for name in images if name not in labels]
        if not labels:
            raise KedgeError(f"{tree.path}: no class found; expected one sub-folder per class.")
        found = set(labels.values())
        parts = ", ".join(part for part in PARTS if part in {part for _, part in found})
        empty = sorted({name for name, _ in label_of.values()} - {name for name, _ in found})
        in_class_folders = (name for name in tree.names if _folder(name) in label_of)
        return index_files(
            tree,
            f"{self.form}, split in {parts}" if is_split else self.form,
            labels,
            files=list(labels),
            ignored=outside,
            remarks=(
                *skipped_remark(outside, "image", "outside the class folders"),
                *skipped_remark(empty, "folder", "no image in it"),
                *unsupported_image_types(in_class_folders),
                *_nesting_hint(tree, folders & label_of.keys(), depth + is_split, is_split),
            ),
        )


def _folder(name: str) -> str:
    return name.rpartition("/")[0]


def _wrapper_depth(folders: Collection[str]) -> int:
    """How many outer folders all images share, such as one with the archive's name."""
    # The last shared folder may be a class and is not counted; a part of a split ends the count.
    paths = [folder.split("/") for folder in folders if folder]
    levels = takewhile(lambda names: len(set(names)) == 1, zip(*paths, strict=False))
    shared = [*takewhile(lambda names: names[0].lower() not in PART_NAMES, levels)]
    return min(len(shared), max(map(len, paths), default=1) - 1)


def _is_split(folders: Collection[str], depth: int) -> bool:
    """Whether the folders at this depth are parts of a split and not classes."""
    # A class can be called "train", but then there are other classes, and none within it. One part
    # is enough if it holds more folders than there are beside it, such as one without labels.
    paths = [folder.split("/")[depth:] for folder in folders if folder.count("/") >= depth]
    tops = {path[0].lower() for path in paths if path[0]}
    with_folders = {PART_NAMES.get(path[0].lower()) for path in paths if len(path) > 1} - {None}
    if tops <= PART_NAMES.keys() or len(with_folders) > 1:
        return True
    return len(_only_part(paths)[1]) > len(tops - PART_NAMES.keys())


def _only_part(paths: Iterable[list[str]]) -> tuple[str, list[str]]:
    """The only folder that holds several folders, and those, if it is named like a part."""
    # Empty if images lie directly in it, or if other folders hold several too: all may be classes.
    within: dict[str, set[str]] = {}
    for top, *inner in paths:
        within.setdefault(top, set()).add(inner[0] if inner else "")
    several = [top for top in within if len(within[top] - {""}) > 1]
    if len(several) != 1 or several[0].lower() not in PART_NAMES or "" in within[several[0]]:
        return "", []
    return several[0], sorted(within[several[0]])


def _class_and_part(folder: str, depth: int, is_split: bool) -> tuple[str, str] | None:
    """Class and part of the images in a folder; None outside the class folders."""
    path = folder.split("/")[depth:] if folder else []
    part = PART_NAMES.get(path.pop(0).lower()) if is_split and path else ""
    return (path[0], part) if path and part is not None else None


def _nesting_hint(tree: FileTree, folders: set[str], level: int, is_split: bool) -> tuple[str, ...]:
    """A remark if folders taken for classes may be groups of classes, or a part of a split."""
    # They may be groups if none has images directly in it and most hold several folders of other
    # names. Numbered folders (character01) and parts of a split are usually no classes.
    paths = [folder.split("/") for folder in sorted(folders)]
    part, in_part = _only_part(path[level:] for path in paths)
    nested = [path for path in paths if len(path) > level + 1]
    named = [path for path in nested if path[level + 1].lower() not in PART_NAMES]
    within: dict[str, set[str]] = {path[level]: set() for path in paths}
    for path in named:
        inner = path[level + 1]
        within[path[level]].add(inner if WNID.fullmatch(inner) else re.sub(r"\d+", "", inner))
    groups = [name for name, inner in within.items() if len(inner) > 1]
    if nested == paths and 2 * len(groups) >= len(within):
        first = next(path for path in named if path[level] == groups[0])
        outer, inner = "/".join(first[: level + 1]), first[level + 1]
    elif part and not is_split:
        outer, inner = "/".join((*paths[0][:level], part)), in_part[0]
    else:
        return ()
    target = tree.path / outer if isinstance(tree, FolderTree) else f"{outer} alone, unpacked"
    what = f"all images of {display_name(outer)} are in sub-folders"
    return (f"{what}: if {display_name(inner)} is a class, give {display_name(str(target))}",)
