"""CIFAR-FS as folders: `data/<class>/*`, and the classes of each part in `splits/*/{part}.txt`."""

from __future__ import annotations

import re
from typing import NamedTuple

from kedge.data.decode import looks_like_image
from kedge.data.files.file_tree import FileTree
from kedge.data.index import PART_NAMES, FileImages, ImageIndex, build_index
from kedge.data.readers.base import Reader
from kedge.errors import KedgeError
from kedge.utils.text import display_name, skipped_remark

LIST = re.compile(r"((?:.*/)?)splits/([^/]+)/(train|val|valid|validation|test)\.txt")
PREFERRED = "bertinetto"


class CifarFoldersReader(Reader):
    form = "folders of classes with lists of a split"

    def recognises(self, tree: FileTree) -> bool:
        return _find_split(tree) is not None

    def read(self, tree: FileTree) -> ImageIndex:
        split = _find_split(tree)
        assert split is not None, "recognises() was not asked"
        part_of = _part_of_each_class(tree, split.lists)
        data = f"{split.root}data/"
        names, classes, parts = [], [], []
        unlisted: dict[str, list[str]] = {}
        for name in tree.names:
            if not name.startswith(data) or not looks_like_image(name):
                continue
            class_name, slash, _ = name[len(data) :].partition("/")
            if slash and class_name in part_of:
                names.append(name)
                classes.append(class_name)
                parts.append(part_of[class_name])
            elif slash:
                unlisted.setdefault(class_name, []).append(name)
        if not names:
            path = tree.path / next(iter(split.lists))
            raise KedgeError(f"{path}: none of the classes has images in {tree.path / data}.")
        empty = sorted(part_of.keys() - set(classes))
        remarks = [
            *skipped_remark(sorted(unlisted), "class", "in no list of the split"),
            *skipped_remark(empty, "class", "listed in the split, but without images"),
        ]
        if split.is_one_of_several:
            remarks.append(f"of several splits, {display_name(split.name)} was used")
        return build_index(
            tree,
            f"{self.form}, {display_name(split.name)}",
            classes,
            FileImages(tree, names),
            parts=parts,
            files=[*split.lists, *names],
            ignored=[name for images in unlisted.values() for name in images],
            remarks=remarks,
        )


class _Split(NamedTuple):
    root: str  # the folder that holds `data/` and `splits/`
    name: str
    lists: dict[str, str]  # the part of each list
    is_one_of_several: bool


def _find_split(tree: FileTree) -> _Split | None:
    """The split to use, of those that have images in `data/`."""
    splits: dict[tuple[str, str], dict[str, str]] = {}
    for name in tree.names:
        if name.endswith(".txt") and (match := LIST.fullmatch(name)):
            splits.setdefault((match[1], match[2]), {})[name] = PART_NAMES[match[3]]
    with_images = [key for key in splits if _has_images(tree, f"{key[0]}data/")]
    if not with_images:
        return None
    key = min(with_images, key=lambda key: (key[0].count("/"), key[1] != PREFERRED, key))
    return _Split(*key, splits[key], len(with_images) > 1)


def _has_images(tree: FileTree, folder: str) -> bool:
    return any(
        name.startswith(folder) and "/" in name[len(folder) :] and looks_like_image(name)
        for name in tree.names
    )


def _part_of_each_class(tree: FileTree, lists: dict[str, str]) -> dict[str, str]:
    part_of: dict[str, str] = {}
    for name, part in lists.items():
        for line in filter(None, map(str.strip, tree.read_text(name).split("\n"))):
            if part_of.setdefault(line, part) != part:
                both = f"the class {display_name(line)} is in {part} and in {part_of[line]}"
                raise KedgeError(f"{tree.path / name}: {both}; a class belongs to one part.")
    return part_of
