"""CIFAR-FS as folders: `data/<class>/*`, and the classes of each part in `splits/*/{part}.txt`."""

from __future__ import annotations

import re

from kedge.data.decode import looks_like_image
from kedge.data.files.file_tree import FileTree
from kedge.data.index import (
    PART_NAMES,
    FileImages,
    ImageIndex,
    catalogued,
)
from kedge.data.readers.base import Reader
from kedge.errors import KedgeError
from kedge.utils.text import left_out, shown

LIST = re.compile(r"((?:.*/)?)splits/([^/]+)/(train|val|valid|validation|test)\.txt")
USUAL = "bertinetto"


class CifarFoldersReader(Reader):
    form = "folders of classes with lists of a split"

    def recognises(self, tree: FileTree) -> bool:
        return _lists(tree) is not None

    def read(self, tree: FileTree) -> ImageIndex:
        chosen = _lists(tree)
        if chosen is None:
            raise KedgeError(f"{tree.path}: expected data/<class>/ and splits/*/train.txt in it.")
        place, split, lists, others = chosen
        part_of = _parts(tree, lists)
        names, classes, parts = [], [], []
        unlisted: dict[str, list[str]] = {}
        for name in tree.names:
            if not name.startswith(f"{place}data/") or not looks_like_image(name):
                continue
            of_class, inside, _ = name[len(place) + len("data/") :].partition("/")
            if inside and of_class in part_of:
                names.append(name)
                classes.append(of_class)
                parts.append(part_of[of_class])
            elif inside:
                unlisted.setdefault(of_class, []).append(name)
        if not names:
            raise KedgeError(
                f"{tree.path / next(iter(lists))}: none of the classes that it lists has images in "
                f"{tree.path / place / 'data'}."
            )
        remarks = [
            *left_out(
                sorted(unlisted),
                "class is in no list of the split",
                "classes are in no list of the split",
            ),
            *left_out(
                sorted(part_of.keys() - set(classes)),
                "class of the split has no image",
                "classes of the split have no image",
            ),
        ]
        if others:
            remarks.append(f"of several splits, {shown(split)} was taken")
        return catalogued(
            tree,
            f"{self.form}, {shown(split)}",
            classes,
            FileImages(tree, names),
            parts=parts,
            files=[*lists, *names],
            told=[name for of_class in unlisted.values() for name in of_class],
            remarks=remarks,
        )


def _lists(tree: FileTree) -> tuple[str, str, dict[str, str], bool] | None:
    """Where the data are, the name of the split, the part of each list, and whether there were
    other splits; none where no images lie beside the lists."""
    splits: dict[tuple[str, str], dict[str, str]] = {}
    for name in tree.names:
        if name.endswith(".txt") and (found := LIST.fullmatch(name)):
            splits.setdefault((found[1], found[2]), {})[name] = PART_NAMES[found[3]]
    with_images = [key for key in splits if _has_images(tree, f"{key[0]}data/")]
    if not with_images:
        return None
    place, split = min(with_images, key=lambda key: (key[0].count("/"), key[1] != USUAL, key))
    return place, split, splits[place, split], len(with_images) > 1


def _has_images(tree: FileTree, folder: str) -> bool:
    return any(
        name.startswith(folder) and "/" in name[len(folder) :] and looks_like_image(name)
        for name in tree.names
    )


def _parts(tree: FileTree, lists: dict[str, str]) -> dict[str, str]:
    """The part of each class that is listed."""
    part_of: dict[str, str] = {}
    for name, part in lists.items():
        for of_class in filter(None, (line.strip() for line in tree.text(name).split("\n"))):
            if part_of.setdefault(of_class, part) != part:
                raise KedgeError(
                    f"{tree.path / name}: the class {shown(of_class)} is in the list of "
                    f"{part_of[of_class]} too; a class belongs to one part."
                )
    return part_of
