"""`<class>/*` and `{train,val,test}/<class>/*`: one sub-folder per class, any images in it."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import takewhile

from kedge.data.decode import looks_like_image
from kedge.data.delivery import ClassFolders
from kedge.data.files import list_file
from kedge.data.files.file_tree import FileTree, unsupported_image_types
from kedge.data.index import PART_NAMES, ImageIndex
from kedge.data.readers.base import Reader, index_files
from kedge.data.readers.folder_levels import check_levels, place_of
from kedge.data.remarks import Remark, lost
from kedge.errors import KedgeError
from kedge.utils.text import display_name

PARTS = tuple(dict.fromkeys(PART_NAMES.values()))


class FolderReader(Reader):
    form = "folders of classes"

    def recognises(self, tree: FileTree) -> bool:
        return any("/" in name and looks_like_image(name) for name in tree.names)

    def read(self, tree: FileTree, classes: ClassFolders | None = None) -> ImageIndex:
        """`classes` says which of nested folders are the classes; without it, the outer ones are,
        or the user is asked."""
        images = [name for name in tree.names if looks_like_image(name)]
        folders = {_folder(name) for name in images}
        depth = _wrapper_depth(folders)
        is_split = _is_split(folders, depth)
        path_of = {
            folder: path
            for folder in {*map(_folder, tree.names), *tree.empty_folders}
            if (path := _path_and_part(folder, depth, is_split)) is not None
        }
        with_images = sorted(folders & path_of.keys())
        if not with_images:
            raise KedgeError(f"{tree.path}: no class found; expected one sub-folder per class.")
        places = {folder: place_of(path) for folder, (path, _) in path_of.items()}
        remarks = check_levels(tree.path, [places[folder] for folder in with_images], classes)
        has_parts = is_split
        if classes in ("leaf", "path") and not is_split:
            has_parts = all(places[folder].part for folder in with_images)
            if not has_parts:
                remarks += _unused_parts(places[folder].part for folder in with_images)

        def label(folder: str) -> tuple[str, str]:
            """Class and part of the images in a folder."""
            place, (path, part) = places[folder], path_of[folder]
            name = {"leaf": place.inner, "path": place.full}.get(classes or "top", path[0])
            return name, (part or place.part) if has_parts else ""

        label_of = {folder: label(folder) for folder in path_of}
        in_classes = [name for name in tree.names if _folder(name) in label_of]
        labels = {name: label_of[_folder(name)] for name in in_classes if looks_like_image(name)}
        outside = [name for name in images if name not in labels]
        found = set(labels.values())
        used, parts = {name for name, _ in found}, {part for _, part in found}
        without_image = {label_of[_folder(name)][0] for name in in_classes} - used
        index = index_files(
            tree,
            self.form + f", split in {', '.join(p for p in PARTS if p in parts)}" * has_parts,
            labels,
            files=list(labels),
            ignored=outside,
            remarks=(
                *lost(outside, "image", "outside the class folders"),
                *lost(sorted(without_image), "folder", "no image in it"),
                *unsupported_image_types(in_classes),
                *(_unread_lists(tree) if len(used) == 1 else ()),
                *remarks,
            ),
        )
        stamp = index.stamp
        if classes in ("leaf", "path"):  # the same files with other labels
            stamp = hashlib.sha256(f"{stamp} {classes}".encode()).hexdigest()
        empty = sorted({name for name, _ in label_of.values()} - used)
        return replace(index, stamp=stamp, empty_classes=tuple(empty))


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


def _path_and_part(folder: str, depth: int, is_split: bool) -> tuple[list[str], str] | None:
    """The folders from the class's on, and the part; None outside the class folders."""
    path = folder.split("/")[depth:] if folder else []
    part = PART_NAMES.get(path.pop(0).lower()) if is_split and path else ""
    return (path, part) if path and part is not None else None


def _unread_lists(tree: FileTree) -> tuple[Remark, ...]:
    """A remark on lists that may name the classes of images in a single folder."""
    lists = [name for name in tree.names if name.lower().endswith(list_file.SUFFIXES)]
    what = "all images are read as one class, since this file has no columns of images and classes"
    return (Remark(f"{what}: {display_name(lists[0])}", "label"),) if lists else ()


def _unused_parts(parts: Iterable[str]) -> tuple[Remark, ...]:
    """A remark if some images lie in folders that look like parts of a split, and some do not."""
    names = ", ".join(sorted(set(parts) - {""}))
    what = f"only some images lie in folders of a split ({names}), so all were read together"
    return (Remark(what, "leak"),) if names else ()
