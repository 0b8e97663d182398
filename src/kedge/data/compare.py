"""Two data sets compared: pictures that are in both, and class names."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from kedge.data.class_names import alike_names
from kedge.data.copies import Signatures, near_pairs, sign_table
from kedge.data.decode import ImageSpec
from kedge.data.delivery import Delivery
from kedge.data.index import ImageIndex
from kedge.data.open import open_index, open_table
from kedge.data.parallel_decode import decode_images, infer_spec
from kedge.data.table import ImageTable
from kedge.errors import require
from kedge.utils import progress


@dataclass(frozen=True)
class Pair:
    """An image of the first data set and one of the second, with their classes."""

    a: str
    a_class: str
    b: str
    b_class: str


@dataclass(frozen=True)
class Side:
    """One of the data sets."""

    path: str
    form: str
    n_images: int
    n_classes: int
    n_unreadable: int


@dataclass(frozen=True)
class Comparison:
    """What two data sets have in common."""

    a: Side
    b: Side
    same_size: bool  # whether exact copies can be found: packed files may differ in size
    copies: tuple[Pair, ...]  # images of b that are exact copies of one of a
    near_copies: tuple[Pair, ...]  # other images of b that are nearly the same as one of a
    common_classes: tuple[str, ...]
    alike_names: tuple[tuple[str, str], ...]  # a class of b, and one of a with almost the same name

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class _Images:
    """A data set whose images are compared by their signatures."""

    def __init__(self, delivery: Delivery) -> None:
        table = open_table(delivery)
        self.opened = open_index(delivery) if table is None else table
        self.path, self.classes = str(delivery.path), self.opened.classes
        self.labels = np.asarray(self.opened.labels)
        self.signatures = Signatures(len(self.labels))
        self.readable = np.ones(len(self.labels), bool)

    @property
    def form(self) -> str:
        return self.opened.form if isinstance(self.opened, ImageIndex) else "packed images"

    @property
    def packed_spec(self) -> ImageSpec | None:
        return self.opened.image_spec if isinstance(self.opened, ImageTable) else None

    @property
    def summary(self) -> Side:
        n, n_classes = len(self.labels), len(self.classes)
        return Side(self.path, self.form, n, n_classes, int((~self.readable).sum()))

    def name(self, i: int) -> str:
        return self.opened.short_name(i) if isinstance(self.opened, ImageIndex) else f"image {i}"

    def class_of(self, i: int) -> str:
        return self.classes[self.labels[i]]

    def sign(self, spec: ImageSpec) -> None:
        """Fill in the signatures of all images that can be read."""
        if isinstance(self.opened, ImageTable):
            self.signatures = sign_table(self.opened)
            return
        with progress.task(f"reading {self.path}", len(self.labels)) as tick:
            for batch in decode_images(self.opened.images, spec, range(len(self.labels))):
                self.signatures.set(batch.numbers, batch.pixels)
                self.readable[[*batch.unreadable]] = False
                tick(len(batch))


def compare(first: Delivery, second: Delivery) -> Comparison:
    """Find pictures and classes that two data sets have in common."""
    a, b = _Images(first), _Images(second)
    spec = _common_spec(a, b)
    for side in (a, b):
        side.sign(spec)
        require(bool(side.readable.any()), f"{side.path}: no image could be read.")
    specs = {side.packed_spec or spec for side in (a, b)}
    copies = _exact(a, b) if len(specs) == 1 else {}
    counts = np.bincount(b.labels, minlength=len(b.classes)).tolist()
    in_a = set(a.classes)
    only_b = {name: n for name, n in zip(b.classes, counts, strict=True) if name not in in_a}
    return Comparison(
        a.summary,
        b.summary,
        len(specs) == 1,
        _pairs(a, b, copies),
        _pairs(a, b, _near(a, b, copies)),
        tuple(name for name in b.classes if name in in_a),
        tuple(pair for pair in alike_names(only_b, a.classes) if pair[1] in in_a),
    )


def _common_spec(a: _Images, b: _Images) -> ImageSpec:
    """That of a packed file if there is one; otherwise one that fits both."""
    if packed := a.packed_spec or b.packed_spec:
        return packed
    specs = [infer_spec(side.opened) for side in (a, b) if isinstance(side.opened, ImageIndex)]
    n_channels = max(spec.n_channels for spec in specs)
    return replace(specs[0], n_channels=n_channels, inverted=False)


def _exact(a: _Images, b: _Images) -> dict[int, int]:
    """Image of b → its first exact copy in a."""
    numbers = np.flatnonzero(a.readable)
    digests, first = np.unique(a.signatures.digests[numbers], return_index=True)
    candidates = np.flatnonzero(b.readable)
    theirs = b.signatures.digests[candidates]
    place = np.searchsorted(digests, theirs).clip(0, len(digests) - 1)
    found = digests[place] == theirs
    copies = numbers[first[place[found]]]
    return dict(zip(candidates[found].tolist(), copies.tolist(), strict=True))


def _near(a: _Images, b: _Images, exact: dict[int, int]) -> dict[int, int]:
    """Image of b that is no exact copy → the first image of a that is nearly the same."""
    ours, theirs = np.flatnonzero(a.readable), np.flatnonzero(b.readable)
    theirs = theirs[~np.isin(theirs, list(exact))]
    hashes = np.concatenate([a.signatures.hashes[ours], b.signatures.hashes[theirs]])
    near: dict[int, int] = {}
    for i, j in near_pairs(hashes, n_first=len(ours)).tolist():
        near.setdefault(int(theirs[j - len(ours)]), int(ours[i]))
    return dict(sorted(near.items()))


def _pairs(a: _Images, b: _Images, of: dict[int, int]) -> tuple[Pair, ...]:
    return tuple(Pair(a.name(i), a.class_of(i), b.name(j), b.class_of(j)) for j, i in of.items())
