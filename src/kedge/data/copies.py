"""Copies among images: exact ones by a digest of the pixels, near ones by a perceptual hash.

Two images are exact copies if they are the same after decoding, as a network sees them, whatever
their files. Near copies are the same picture in another quality or size. What is kept of an image
is 26 bytes, and images are compared in time that grows about as their number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
from jaxtyping import Bool, Float32, Int64, UInt8, UInt16

from kedge.data.index import ImageIndex
from kedge.data.remarks import Kind, Remark
from kedge.data.table import ImageTable
from kedge.utils.text import display_name, pluralize

N_WAVES = 12  # lowest frequencies of each axis in a perceptual hash, which has N_WAVES² bits
N_WORDS = N_WAVES**2 // 16  # of 16 bits
# Bits in which the hashes of near copies may differ. With fewer different bits than words, one word
# is equal, by which the copies are found. Chosen on photographs saved again (LOG.md, 2026-11-18).
MOST_BITS = N_WORDS - 1
# Bounds of time and memory, where thousands of images are alike, such as those of a film:
MOST_NEIGHBOURS = 64  # images with an equal word that each is compared with
MOST_PAIRS = 1_000_000
BATCH = 256  # images of a table that are in memory at a time


class Signatures:
    """The digest and the perceptual hash of each of n images, for comparisons in this process."""

    def __init__(self, n: int) -> None:
        self.digests: Int64[np.ndarray, " n"] = np.zeros(n, np.int64)
        self.hashes: UInt16[np.ndarray, "n words"] = np.zeros((n, N_WORDS), np.uint16)

    def __len__(self) -> int:
        return len(self.digests)

    def set(self, rows: Int64[np.ndarray, " b"], pixels: UInt8[np.ndarray, "b c h w"]) -> None:
        """Sign the images of these rows."""
        self.digests[rows] = _digests(pixels)
        self.hashes[rows] = perceptual_hashes(pixels)

    def put(self, start: int, others: Signatures) -> None:
        """Write the others from a row on."""
        rows = slice(start, start + len(others))
        self.digests[rows], self.hashes[rows] = others.digests, others.hashes

    def select(self, rows: Int64[np.ndarray, " m"]) -> Signatures:
        selected = Signatures(0)
        selected.digests, selected.hashes = self.digests[rows], self.hashes[rows]
        return selected


def perceptual_hashes(pixels: UInt8[np.ndarray, "b c h w"]) -> UInt16[np.ndarray, "b words"]:
    """The signs of the lowest frequencies of the grey image (its discrete cosine transform), which
    hardly change with size, compression, brightness or contrast."""
    n, n_channels, height, width = pixels.shape
    grey = pixels[:, 0].astype(np.float32)
    for k in range(1, n_channels):
        grey += pixels[:, k]
    rows = (grey.reshape(-1, width) @ _waves(width).T).reshape(n, height, N_WAVES)
    waves = _waves(height) @ rows
    return np.packbits(waves.reshape(n, -1) > 0, axis=1).view(np.uint16)


def _digests(pixels: UInt8[np.ndarray, "b c h w"]) -> Int64[np.ndarray, " b"]:
    """Python's own hash of the pixels: 64 bits, other ones in each process, and several times as
    fast as SHA-256."""
    return np.array([hash(image.tobytes()) for image in pixels], np.int64)


@cache
def _waves(size: int) -> Float32[np.ndarray, "waves size"]:
    places, frequencies = 2 * np.arange(size) + 1, np.arange(N_WAVES)[:, None]
    return np.cos(np.pi / (2 * size) * places * frequencies).astype(np.float32)


def count_copies(table: ImageTable, others: ImageTable) -> int:
    """How many images of `others` are exact copies of one of the table."""
    known, theirs = map(sign_table, (table, others))
    return int(np.isin(theirs.digests, known.digests).sum())


def sign_table(table: ImageTable) -> Signatures:
    signatures, start = Signatures(len(table)), 0
    for images in table.images.split(BATCH):
        signatures.set(np.arange(start, start + len(images)), images.numpy())
        start += len(images)
    return signatures


def near_pairs(
    hashes: UInt16[np.ndarray, "n words"], n_first: int | None = None
) -> Int64[np.ndarray, "pairs 2"]:
    """Pairs i < j of near copies; with `n_first`, only those with i < n_first <= j.

    Hashes that differ in at most MOST_BITS bits have an equal word, so only images with an equal
    word are compared: those next to each other after sorting by the word (multi-index hashing).
    """
    n, found = len(hashes), np.empty(0, np.int64)  # pairs as i * n + j
    for word in hashes.T:
        order = np.argsort(word, kind="stable")
        ordered, starts, close = word[order], np.arange(n), [found]
        for step in range(1, MOST_NEIGHBOURS + 1):
            starts = starts[starts < n - step]
            starts = starts[ordered[starts] == ordered[starts + step]]
            if not len(starts):
                break
            i, j = np.sort([order[starts], order[starts + step]], axis=0)
            if n_first is not None:
                between = (i < n_first) & (j >= n_first)
                i, j = i[between], j[between]
            near = np.bitwise_count(hashes[i] ^ hashes[j]).sum(1) <= MOST_BITS
            close.append(i[near] * n + j[near])
        found = np.sort(np.concatenate(close))  # np.unique hashes, which is slow for such numbers
        found = found[np.diff(found, prepend=-1) != 0]
        if len(found) > MOST_PAIRS:
            break
    return np.stack(np.divmod(found[:MOST_PAIRS], n), 1)


def copy_remarks(
    index: ImageIndex, signatures: Signatures, within_classes: bool = False
) -> list[str]:
    """Remarks on copies among the images of an index.

    Near copies within a class, such as photographs taken one after the other, are usual: they are
    remarked upon with `within_classes` only.
    """
    part = index.part if index.parts else np.zeros(len(index), np.uint8)
    _, first, inverse = np.unique(signatures.digests, return_index=True, return_inverse=True)
    picture = first[inverse.reshape(-1)]  # of each image, the first image that it equals
    wrong = "classes", "one of the classes is wrong"
    leak = "parts of the split", "accuracy on copies of trained images is too high"
    return [
        *_spread_remark(index, picture, index.labels, "label", *wrong),
        *_spread_remark(index, picture, part, "leak", *leak),
        *_within_classes(picture, index.labels, part, index.classes),
        *_near_remark(index, picture, part, signatures, within_classes),
    ]


def _spread_remark(
    index: ImageIndex,
    picture: Int64[np.ndarray, " n"],
    group: np.ndarray,
    kind: Kind,
    places: str,
    consequence: str,
) -> list[Remark]:
    """A remark on pictures that are in several groups: classes or parts of the split."""
    order = np.lexsort((group, picture))
    same = picture[order[1:]] == picture[order[:-1]]
    changes = np.flatnonzero(same & (group[order[1:]] != group[order[:-1]]))
    if not len(changes):
        return []
    n = len(np.unique(picture[order[changes]]))
    first, second = (
        f"{index.short_name(i)} of '{display_name(index.classes[index.labels[i]])}'"
        for i in order[changes[0] : changes[0] + 2].tolist()
    )
    several = f"{pluralize(n, 'picture is', 'pictures are')} in several {places}"
    return [Remark(f"{several}, such as {first} and {second}: {consequence}", kind)]


def _near_remark(
    index: ImageIndex,
    picture: Int64[np.ndarray, " n"],
    part: UInt8[np.ndarray, " n"],
    signatures: Signatures,
    within_classes: bool,
) -> list[str]:
    pairs = near_pairs(signatures.hashes)
    i, j = pairs[picture[pairs[:, 0]] != picture[pairs[:, 1]]].T
    other_class, other_part = index.labels[i] != index.labels[j], part[i] != part[j]
    chosen = np.flatnonzero(other_class | other_part | within_classes)
    if not len(chosen):
        return []
    across = {"classes": int(other_class.sum()), "parts of the split": int(other_part.sum())}
    where = "; ".join(f"in different {what}: {n}" for what, n in across.items() if n)
    first, second = index.short_name(int(i[chosen[0]])), index.short_name(int(j[chosen[0]]))
    nearly = pluralize(len(chosen), "pair of images is", "pairs of images are") + " nearly the same"
    return [f"{nearly}{f' ({where})' if where else ''}, such as {first} and {second}"]


def _within_classes(
    picture: Int64[np.ndarray, " n"],
    labels: Int64[np.ndarray, " n"],
    part: UInt8[np.ndarray, " n"],
    classes: Sequence[str],
) -> Iterator[Remark]:
    """A remark on images that equal another of their class and part."""
    order = np.lexsort((part, labels, picture))
    keys = np.stack([picture, labels, part])[:, order]
    repeated: Bool[np.ndarray, " m"] = (keys[:, 1:] == keys[:, :-1]).all(0)
    n = int(repeated.sum())
    if not n:
        return
    counts = np.bincount(labels[order[1:]][repeated], minlength=len(classes))
    where = f"in '{display_name(classes[int(counts.argmax())])}'"
    n_classes = int((counts > 0).sum())
    where = where if n_classes == 1 else f"{n_classes} classes, most {where}"
    copies = pluralize(n, "image is an exact copy", "images are exact copies")
    yield Remark(
        f"{copies} of another of the same class ({where}): the same picture may then be a "
        "support image and a query of one episode",
        "leak",
    )
