"""Omniglot: `images_background` and `images_evaluation`, each a folder or a .zip, or one of them.

Within are `<Alphabet>/characterNN/*.png`. The two have different alphabets: they are the split.
"""

from __future__ import annotations

import re

from kedge.data.decode import looks_like_image
from kedge.data.files.file_tree import FileTree, open_tree
from kedge.data.files.sniff import reject_failed_download
from kedge.data.index import (
    FileImages,
    ImageIndex,
    Joined,
    catalogued,
)
from kedge.data.readers.base import Reader
from kedge.errors import KedgeError

PARTS = {"images_background": "train", "images_evaluation": "test"}
HALF = r"(?:.*/)?(images_background|images_evaluation)"
DRAWING = re.compile(HALF + r"/([^/]+/character\d+)/[^/]+")
WITHOUT_HALF = re.compile(r"(?:.*/)?([^/]+/character\d+)/[^/]+")
ARCHIVE = re.compile(HALF + r"\.zip")


class OmniglotReader(Reader):
    form = "Omniglot"

    def recognises(self, tree: FileTree) -> bool:
        return any(_half_and_class(tree, n) or ARCHIVE.fullmatch(n) for n in tree.names)

    def read(self, tree: FileTree) -> ImageIndex:
        """A folder counts before the archive of the same name, from which it will have come."""
        there = _drawings(tree)
        files = [name for half in there.values() for name in half]
        trees = dict.fromkeys(there, tree)
        for name in tree.names:
            found = ARCHIVE.fullmatch(name)
            if found and found[1] not in there:
                reject_failed_download(tree.local(name))
                packed = open_tree(tree.local(name))
                there |= {
                    half: drawn for half, drawn in _drawings(packed).items() if half == found[1]
                }
                if found[1] not in there:
                    raise KedgeError(
                        f"{tree.path / name}: expected <Alphabet>/characterNN/*.png in it; get it "
                        "again."
                    )
                trees[found[1]] = packed
                files.append(name)
        halves = [half for half in PARTS if half in there]
        return catalogued(
            tree,
            self.form,
            [drawn for half in halves for drawn in there[half].values()],
            Joined([FileImages(trees[half], list(there[half])) for half in halves]),
            parts=[PARTS[half] for half in halves for _ in there[half]],
            files=files,
            remarks=[
                *(r for other in trees.values() if other is not tree for r in other.remarks),
                *(f"{half} is not there" for half in PARTS if half not in there),
            ],
            image_size=28,
            inverted=True,
        )


def _drawings(tree: FileTree) -> dict[str, dict[str, str]]:
    """Of each half that is there, the class of each drawing."""
    there: dict[str, dict[str, str]] = {}
    for name in filter(looks_like_image, tree.names):
        if found := _half_and_class(tree, name):
            there.setdefault(found[0], {})[name] = found[1]
    return there


def _half_and_class(tree: FileTree, name: str) -> tuple[str, str] | None:
    if found := DRAWING.fullmatch(name):
        return found[1], found[2]
    half = tree.path.name.partition(".")[0]  # perhaps the half itself was given
    if half in PARTS and (found := WITHOUT_HALF.fullmatch(name)):
        return half, found[1]
    return None
