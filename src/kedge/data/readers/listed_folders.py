"""Folders of images with lists of classes: CIFAR-FS and Tiny-ImageNet."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kedge.data.decode import looks_like_image
from kedge.data.files.file_tree import FileTree
from kedge.data.index import PART_NAMES, ImageIndex
from kedge.data.readers.base import Reader, index_files
from kedge.data.remarks import lost
from kedge.errors import KedgeError
from kedge.utils.text import display_name, skipped_remark

SPLIT_LIST = re.compile(r"((?:.*/)?)splits/([^/]+)/(train|val|valid|validation|test)\.txt")
PREFERRED_SPLIT = "bertinetto"
TINY_TRAIN = re.compile(r"((?:.*/)?)train/n\d{8}/(images/)?[^/]+")
TINY_LISTS = ("wnids.txt", "words.txt", "val/val_annotations.txt")
WNID = re.compile(r"n\d{8}")


class CifarFoldersReader(Reader):
    """`data/<class>/*`, and the classes of each part in `splits/*/{part}.txt`."""

    form = "folders of classes with lists of a split"

    def recognises(self, tree: FileTree) -> bool:
        return bool(_splits(tree))

    def read(self, tree: FileTree) -> ImageIndex:
        splits = _splits(tree)
        key = min(splits, key=lambda key: (key[0].count("/"), key[1] != PREFERRED_SPLIT, key))
        (root, split), lists = key, splits[key]
        part_of: dict[str, str] = {}
        for name, part in lists.items():
            for line in filter(None, map(str.strip, tree.read_text(name).split("\n"))):
                if part_of.setdefault(line, part) != part:
                    both = f"the class {display_name(line)} is in {part} and in {part_of[line]}"
                    raise KedgeError(f"{tree.path / name}: {both}; a class belongs to one part.")
        class_of = dict(_images_in_class_folders(tree, root))
        labels = {n: (c, part_of[c]) for n, c in class_of.items() if c in part_of}
        if not labels:
            path = tree.path / next(iter(lists))
            raise KedgeError(f"{path}: none of the classes has images in {tree.path / root}data.")
        classes = set(class_of.values())
        remarks = [
            *skipped_remark(sorted(classes - part_of.keys()), "class", "in no list of the split"),
            *lost(sorted(part_of.keys() - classes), "class", "listed, without images"),
        ]
        if len(splits) > 1:
            remarks.append(f"of several splits, {display_name(split)} was used")
        return index_files(
            tree,
            f"{self.form}, {display_name(split)}",
            labels,
            files=[*lists, *labels],
            ignored=[name for name in class_of if name not in labels],
            remarks=remarks,
        )


def _splits(tree: FileTree) -> dict[tuple[str, str], dict[str, str]]:
    """By root and name, the part of each list; only splits that have images in `data/`."""
    splits: dict[tuple[str, str], dict[str, str]] = {}
    for name in tree.names:
        if name.endswith(".txt") and (match := SPLIT_LIST.fullmatch(name)):
            splits.setdefault((match[1], match[2]), {})[name] = PART_NAMES[match[3]]
    with_images = _roots_with_images(tree, {root for root, _ in splits})
    return {key: splits[key] for key in splits if key[0] in with_images}


def _roots_with_images(tree: FileTree, roots: set[str]) -> set[str]:
    """Those folders in whose `data/` there are images in class folders."""
    found = set()
    for name in filter(looks_like_image, tree.names if roots else ()):
        at = name.find("data/")
        while at >= 0:
            if name[:at] in roots and "/" in name[at + 5 :]:
                found.add(name[:at])
            at = name.find("data/", at + 5)
    return found


def _images_in_class_folders(tree: FileTree, root: str) -> Iterator[tuple[str, str]]:
    """Each image in `data/`, and its class."""
    data = f"{root}data/"
    for name in tree.names:
        class_name, slash, _ = name[len(data) :].partition("/")
        if slash and name.startswith(data) and looks_like_image(name):
            yield name, class_name


class TinyImageNetReader(Reader):
    """`train/<wnid>/images/*`, and `val/images/*` with a list of classes.

    The images of `val` may also have been moved into one folder per class.
    """

    form = "Tiny-ImageNet as its folders"

    def recognises(self, tree: FileTree) -> bool:
        return _tiny_root(tree) is not None

    def read(self, tree: FileTree) -> ImageIndex:
        root = _tiny_root(tree)
        assert root is not None, "recognises() was not asked"
        wnid_of_val = _table(tree, f"{root}val/val_annotations.txt")
        labels: dict[str, tuple[str, str]] = {}
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
                labels[name] = wnid, part
            else:
                no_class[part].append(name)
        remarks: list[str] = []
        for part, names in no_class.items():
            remarks += skipped_remark(names, "image", f"{part}: no class")
        missing = sorted(wnid_of_val.keys() - val_files)
        remarks += lost(missing, "image", "in val_annotations.txt, but missing")
        classes = {wnid for wnid, _ in labels.values()}
        empty = sorted(_table(tree, f"{root}wnids.txt").keys() - classes)
        remarks += lost(empty, "class", "in wnids.txt, but without images")
        return index_files(
            tree,
            self.form,
            labels,
            files=[*labels, *(root + name for name in TINY_LISTS if root + name in tree.names)],
            ignored=[name for names in no_class.values() for name in names],
            remarks=remarks,
        )


def _tiny_root(tree: FileTree) -> str | None:
    """The path before `train/`, if a list of Tiny-ImageNet is there too."""
    # ImageNet has neither folders called `images` nor annotations of this format.
    for name in tree.names:
        if (match := TINY_TRAIN.fullmatch(name)) and looks_like_image(name):
            lists = {match[1] + file for file in (TINY_LISTS if match[2] else TINY_LISTS[-1:])}
            return match[1] if any(name in lists for name in tree.names) else None
    return None


def _table(tree: FileTree, name: str) -> dict[str, str]:
    """The first and the second column of a list; empty if the file is missing."""
    if name not in tree.names:
        return {}
    rows = (line.split() for line in tree.read_text(name).split("\n"))
    return {row[0]: row[1] if len(row) > 1 else "" for row in rows if row}
