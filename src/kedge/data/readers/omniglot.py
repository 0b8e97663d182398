"""Omniglot: `images_background` and `images_evaluation`, each a folder or a .zip, or one of them.

Both hold `<Alphabet>/characterNN/*.png` of different alphabets, so they are the split.
"""

from __future__ import annotations

import re

from kedge.data.damage import reject_failed_download
from kedge.data.decode import looks_like_image
from kedge.data.files import open_tree
from kedge.data.files.file_tree import FileTree
from kedge.data.index import ConcatImages, FileImages, ImageIndex, build_index
from kedge.data.readers.base import Reader
from kedge.errors import KedgeError

OMNIGLOT_PARTS = {"images_background": "train", "images_evaluation": "test"}
HALF = r"(?:.*/)?(images_background|images_evaluation)"
DRAWING = re.compile(HALF + r"/([^/]+/character\d+)/[^/]+")
DRAWING_IN_HALF = re.compile(r"(?:.*/)?([^/]+/character\d+)/[^/]+")
ARCHIVE = re.compile(HALF + r"\.zip")


class OmniglotReader(Reader):
    form = "Omniglot"

    def recognises(self, tree: FileTree) -> bool:
        return any(_half_and_class(tree, n) or ARCHIVE.fullmatch(n) for n in tree.names)

    def read(self, tree: FileTree) -> ImageIndex:
        halves = _drawings(tree)
        files = [name for drawings in halves.values() for name in drawings]
        trees = dict.fromkeys(halves, tree)
        for name in tree.names:
            match = ARCHIVE.fullmatch(name)
            if match is None or match[1] in halves:  # a folder is preferred to its archive
                continue
            half, path = match[1], tree.local_path(name)
            reject_failed_download(path)
            trees[half] = open_tree(path)
            halves[half] = _drawings(trees[half]).get(half, {})
            if not halves[half]:
                raise KedgeError(f"{path}: expected <Alphabet>/characterNN/*.png in it.")
            files.append(name)
        found = [half for half in OMNIGLOT_PARTS if half in halves]
        return build_index(
            tree,
            self.form,
            [name for half in found for name in halves[half].values()],
            ConcatImages([FileImages(trees[half], list(halves[half])) for half in found]),
            parts=[OMNIGLOT_PARTS[half] for half in found for _ in halves[half]],
            files=files,
            remarks=[
                *(r for other in trees.values() if other is not tree for r in other.remarks),
                *(f"{half} is missing" for half in OMNIGLOT_PARTS if half not in halves),
            ],
            image_size=28,
            inverted=True,
        )


def _drawings(tree: FileTree) -> dict[str, dict[str, str]]:
    """For each half in the tree, the class of each drawing."""
    halves: dict[str, dict[str, str]] = {}
    for name in filter(looks_like_image, tree.names):
        if match := _half_and_class(tree, name):
            halves.setdefault(match[0], {})[name] = match[1]
    return halves


def _half_and_class(tree: FileTree, name: str) -> tuple[str, str] | None:
    if match := DRAWING.fullmatch(name):
        return match[1], match[2]
    half = tree.path.name.partition(".")[0]  # the tree may be one half itself
    if half in OMNIGLOT_PARTS and (match := DRAWING_IN_HALF.fullmatch(name)):
        return half, match[1]
    return None
