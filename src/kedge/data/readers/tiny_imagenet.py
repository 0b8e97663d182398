"""Tiny-ImageNet as its folders: `train/<wnid>/images/*`, and `val/images/*` with a list of classes.

The images of `val` may also have been moved into one folder per class.
"""

from __future__ import annotations

import re

from kedge.data.decode import looks_like_image
from kedge.data.files.file_tree import FileTree
from kedge.data.index import FileImages, ImageIndex, build_index
from kedge.data.readers.base import Reader
from kedge.utils.text import skipped_remark

TRAIN = re.compile(r"((?:.*/)?)train/n\d{8}/(images/)?[^/]+")
LISTS = ("wnids.txt", "words.txt", "val/val_annotations.txt")
WNID = re.compile(r"n\d{8}")


class TinyImageNetReader(Reader):
    form = "Tiny-ImageNet as its folders"

    def recognises(self, tree: FileTree) -> bool:
        return _root(tree) is not None

    def read(self, tree: FileTree) -> ImageIndex:
        root = _root(tree)
        assert root is not None, "recognises() was not asked"
        wnid_of_val = _table(tree, f"{root}val/val_annotations.txt")
        names, classes, parts = [], [], []
        no_class: dict[str, list[str]] = {"train": [], "val": [], "test": []}
        val_files = set()
        for name in tree.names:
            part, _, inner = name[len(root) :].partition("/")
            if part not in no_class or not name.startswith(root) or not looks_like_image(name):
                continue
            folder, _, file = inner.rpartition("/")
            wnid = folder.partition("/")[0]
            if part == "val":
                val_files.add(file)
                wnid = wnid if WNID.fullmatch(wnid) else wnid_of_val.get(file, "")
            if WNID.fullmatch(wnid):
                names.append(name)
                classes.append(wnid)
                parts.append(part)
            else:
                no_class[part].append(name)
        remarks = [
            r for p in no_class for r in skipped_remark(no_class[p], "image", f"{p}: no class")
        ]
        missing = sorted(wnid_of_val.keys() - val_files)
        remarks += skipped_remark(missing, "image", "in val_annotations.txt, but missing")
        empty = sorted(_table(tree, f"{root}wnids.txt").keys() - set(classes))
        remarks += skipped_remark(empty, "class", "in wnids.txt, but without images")
        return build_index(
            tree,
            self.form,
            classes,
            FileImages(tree, names),
            parts=parts,
            files=[*names, *(root + name for name in LISTS if root + name in tree.names)],
            ignored=[name for part in no_class.values() for name in part],
            remarks=remarks,
        )


def _root(tree: FileTree) -> str | None:
    """The path before `train/`, if a list of Tiny-ImageNet is there too.

    ImageNet has neither folders called `images` nor annotations of this format.
    """
    for name in tree.names:
        if (match := TRAIN.fullmatch(name)) and looks_like_image(name):
            lists = {match[1] + file for file in (LISTS if match[2] else LISTS[-1:])}
            return match[1] if any(name in lists for name in tree.names) else None
    return None


def _table(tree: FileTree, name: str) -> dict[str, str]:
    """The first and the second column of a list; empty if the file is missing."""
    if name not in tree.names:
        return {}
    rows = (line.split() for line in tree.read_text(name).split("\n"))
    return {row[0]: row[1] if len(row) > 1 else "" for row in rows if row}
