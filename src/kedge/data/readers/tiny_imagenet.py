"""Tiny-ImageNet as its folders: `train/<wnid>/images/*`, and `val/images/*` with a list of classes.

Many have moved the images of `val` into folders of their classes; both forms are read.
"""

from __future__ import annotations

import re

from kedge.data.decode import looks_like_image
from kedge.data.files.file_tree import FileTree
from kedge.data.index import (
    FileImages,
    ImageIndex,
    catalogued,
)
from kedge.data.readers.base import Reader
from kedge.errors import KedgeError
from kedge.utils.text import left_out

TRAIN = re.compile(r"((?:.*/)?)train/n\d{8}/(images/)?[^/]+")
LISTS = ("wnids.txt", "words.txt", "val/val_annotations.txt")
WNID = re.compile(r"n\d{8}")


class TinyImageNetReader(Reader):
    form = "Tiny-ImageNet as its folders"

    def recognises(self, tree: FileTree) -> bool:
        return _place(tree) is not None

    def read(self, tree: FileTree) -> ImageIndex:
        place = _place(tree)
        if place is None:
            raise KedgeError(f"{tree.path}: expected train/<wnid>/images/ with wnids.txt beside.")
        listed = _table(tree, f"{place}val/val_annotations.txt")
        names, classes, parts = [], [], []
        without: dict[str, list[str]] = {"train": [], "val": [], "test": []}
        seen = set()
        for name in tree.names:
            part, _, inner = name[len(place) :].partition("/")
            if part not in without or not name.startswith(place) or not looks_like_image(name):
                continue
            folder, _, file = inner.rpartition("/")
            wnid = folder.partition("/")[0]
            if part == "val":
                seen.add(file)
                wnid = wnid if WNID.fullmatch(wnid) else listed.get(file, "")
            if WNID.fullmatch(wnid):
                names.append(name)
                classes.append(wnid)
                parts.append(part)
            else:
                without[part].append(name)
        expected = _table(tree, f"{place}wnids.txt").keys()
        return catalogued(
            tree,
            self.form,
            classes,
            FileImages(tree, names),
            parts=parts,
            files=[*names, *(place + name for name in LISTS if place + name in tree.names)],
            told=[name for part in without.values() for name in part],
            remarks=(
                *(
                    r
                    for part in without
                    for r in left_out(
                        without[part],
                        f"image of {part} has no class",
                        f"images of {part} have no class",
                    )
                ),
                *left_out(
                    sorted(listed.keys() - seen),
                    "image of val_annotations.txt is not there",
                    "images of val_annotations.txt are not there",
                ),
                *left_out(
                    sorted(expected - set(classes)),
                    "class of wnids.txt has no image",
                    "classes of wnids.txt have no image",
                ),
            ),
        )


def _place(tree: FileTree) -> str | None:
    """What stands before `train`, where a list that belongs to it is there too. ImageNet itself
    has no folders called images, and no annotations of this form."""
    for name in tree.names:
        if (found := TRAIN.fullmatch(name)) and looks_like_image(name):
            beside = {found[1] + file for file in (LISTS if found[2] else LISTS[-1:])}
            return found[1] if any(name in beside for name in tree.names) else None
    return None


def _table(tree: FileTree, name: str) -> dict[str, str]:
    """First and second column of a list; empty where there is none."""
    if name not in tree.names:
        return {}
    rows = (line.split() for line in tree.text(name).split("\n"))
    return {row[0]: row[1] if len(row) > 1 else "" for row in rows if row}
