"""Photographs of natural and of man-made things, from which classes of both are drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kedge.benchmarks.base import (
    Split,
    across,
    shuffled,
)
from kedge.benchmarks.class_lists import Lists
from kedge.benchmarks.disk import held_out, opened
from kedge.data.table import ImageTable
from kedge.errors import KedgeError

SIZES = (32, 8, 20)  # classes of each domain: to train, to validate, unseen
WORDS = {"natural": "natural", "manmade": "man-made"}


@dataclass(frozen=True)
class Domains:
    """A data set whose classes are known to be of one domain or the other."""

    name: str
    lists: Callable[[], Lists]  # the classes of "natural" and "manmade"
    side: int  # px
    needs: str
    usual: int  # images of each trained class that are held out

    @property
    def every(self) -> frozenset[str]:
        return frozenset(name for part in self.lists().values() for name in part)

    def load(self, data: str | None) -> ImageTable:
        assert data is not None, "Protocol.benchmark asks for it"
        return opened(data, self.side, 3, self.every)

    def draw(self, first: str, second: str, seed: int, table: ImageTable) -> Split:
        """From the first domain to the second one, of the classes that are there."""
        lists, there = self.lists(), set(table.classes)
        known = {part: [n for n in lists[part] if n in there] for part in (first, second)}
        for part, names in known.items():
            if len(names) < sum(SIZES):
                raise KedgeError(
                    f"{table.source}: {len(names)} of {self.name}'s {len(lists[part])} "
                    f"{WORDS[part]} classes are here, but the protocol needs {sum(SIZES)}; --data "
                    f"needs {self.needs}."
                )
        old, new = (
            shuffled(names, "split", self.name, part, seed) for part, names in known.items()
        )
        return across(seed, old, new, SIZES, held_out(table, old + new, self.usual))
