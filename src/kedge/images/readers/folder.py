"""`<class>/*` and `{train,val,test}/<class>/*`: one sub-folder per class, any images in it."""

from __future__ import annotations

from collections import Counter

from kedge.errors import KedgeError
from kedge.images.pictures import looks_like_image
from kedge.images.readers.contract import (
    PART_NAMES,
    Catalogue,
    FilePictures,
    Reader,
    catalogued,
)
from kedge.images.trees import Tree

BACKGROUND = ("background_google", "background", "_background_noise_", "clutter", "257.clutter")


class FolderReader(Reader):
    form = "folders of classes"

    def recognises(self, tree: Tree) -> bool:
        return any("/" in name and looks_like_image(name) for name in tree.names)

    def read(self, tree: Tree) -> Catalogue:
        images = [name for name in tree.names if looks_like_image(name)]
        prefix = _wrapper(images)
        split = _split_folders(images, prefix)
        names, classes, parts, loose = [], [], [], []
        for image in images:
            way = image[len(prefix) :].split("/")
            part = PART_NAMES[way.pop(0).lower()] if split else ""
            if len(way) < 2:
                loose.append(image)
                continue
            names.append(image)
            classes.append(way[0])
            parts.append(part)
        if not names:
            raise KedgeError(
                f"{tree.path}: no class was found; expected one sub-folder per class with images "
                "in it."
            )
        return catalogued(
            tree,
            f"{self.form}, split in {', '.join(dict.fromkeys(parts))}" if split else self.form,
            classes,
            FilePictures(tree, names),
            parts=parts if split else (),
            remarks=_remarks(tree, prefix, split, set(classes), loose),
            files=names,
        )


def _wrapper(images: list[str]) -> str:
    """Folders around the classes, such as the archive's own name: those that all images share,
    as long as several folders remain below them."""
    prefix = ""
    while True:
        ways = [image[len(prefix) :].split("/") for image in images]
        if len({way[0] for way in ways}) > 1 or any(len(way) < 3 for way in ways):
            return prefix
        if ways[0][0].lower() in PART_NAMES or len({way[1] for way in ways}) < 2:
            return prefix
        prefix += f"{ways[0][0]}/"


def _split_folders(images: list[str], prefix: str) -> bool:
    """Whether the uppermost folders are parts of a split and not classes."""
    ways = [image[len(prefix) :].split("/") for image in images]
    tops = {way[0].lower() for way in ways if len(way) > 1}
    return tops <= PART_NAMES.keys() and any(len(way) > 2 for way in ways)


def _remarks(
    tree: Tree, prefix: str, split: bool, classes: set[str], loose: list[str]
) -> list[str]:
    remarks = []
    if loose:
        remarks.append(
            f"{len(loose)} images lie beside the class folders and were left out, the first is "
            f"{loose[0]}"
        )
    others = Counter(
        name[len(prefix) :].split("/")[1 if split else 0]
        for name in tree.names
        if name.startswith(prefix) and name.count("/") > prefix.count("/") + split
    )
    empty = sorted(others.keys() - classes)
    if empty:
        remarks.append(
            f"{len(empty)} folders hold no image and were left out, the first is '{empty[0]}'"
        )
    background = sorted(name for name in classes if name.lower() in BACKGROUND)
    if background:
        remarks.append(
            f"'{background[0]}' looks like a background, which is no class: leave it out with "
            f"--without {background[0]}"
        )
    return remarks
