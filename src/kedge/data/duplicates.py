"""Exact duplicates within a class, which would let a support image be asked as a query too."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

from kedge.utils.text import pluralize


class DuplicateCounter:
    """Counts images that equal an earlier one of their class. Images must come class by class."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()  # label → duplicates
        self._label = -1
        self._seen: set[bytes] = set()

    def add(self, label: int, content: bytes | memoryview) -> None:
        if label != self._label:
            self._label, self._seen = label, set()
        digest = hashlib.blake2b(content, digest_size=16).digest()
        if digest in self._seen:
            self._counts[label] += 1
        self._seen.add(digest)

    def remarks(self, classes: Sequence[str]) -> list[str]:
        if not self._counts:
            return []
        ((label, _),) = self._counts.most_common(1)
        n, n_classes = self._counts.total(), len(self._counts)
        copies = pluralize(n, "image is an exact copy", "images are exact copies")
        where = f"in '{classes[label]}'"
        where = where if n_classes == 1 else f"{n_classes} classes, most {where}"
        return [
            f"{copies} of another of the same class ({where}): the same picture may then be a "
            "support image and a query of one episode"
        ]
