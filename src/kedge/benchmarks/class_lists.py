"""Data sets with official lists of classes for training, validation and testing."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from kedge.benchmarks.base import (
    Split,
    deal_classes,
    shuffled,
)
from kedge.benchmarks.disk import held_out, opened
from kedge.data.table import ImageTable
from kedge.errors import KedgeError

ROLES = ("train", "val", "test")
Lists = dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class OfficialLists:
    """One of them, in colour: how it is opened, and which of its classes play which role."""

    name: str
    lists: Callable[[], Lists]
    side: int  # px
    needs: str
    usual: int  # images of each trained class that are held out

    def load(self, data: str | None) -> ImageTable:
        """Of a folder that holds other classes too, such as ImageNet's, only these are read."""
        assert data is not None, "Protocol.benchmark asks for it"
        names = frozenset(name for part in self.lists().values() for name in part)
        return opened(data, self.side, 3, names, by_number=True)

    def draw(self, sizes: Sequence[int], seed: int, table: ImageTable) -> Split:
        """The training classes at random: `sizes` of each round. The others as they are."""
        lists = self.lists_of(table)
        rounds = deal_classes(shuffled(lists["train"], "split", self.name, seed), sizes)
        spare = held_out(table, lists["train"], self.usual)
        return Split(seed, tuple(rounds), lists["val"], {"unseen": lists["test"]}, spare)

    def lists_of(self, table: ImageTable) -> Lists:
        """The official ones; where no name is known, the parts that the data come with."""
        official, there = self.lists(), set(table.classes)
        wanted = [name for part in official.values() for name in part]
        missing = [name for name in wanted if name not in there]
        if not missing:
            return official
        own = parted(table) if len(missing) == len(wanted) else None
        if own is not None and _sizes(own) == _sizes(official):
            return own
        first = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
        raise KedgeError(
            f"{table.source}: {len(missing)} of the {len(wanted)} classes of {self.name} are "
            f"missing ({first}); --data needs {self.needs}."
        )


def _sizes(lists: Lists) -> list[int]:
    return [len(lists[role]) for role in ROLES]


def parted(table: ImageTable) -> Lists | None:
    """The classes of each part that the data come with, unless two parts share one."""
    found = {}
    for role in ROLES:
        there = table.labels[table.in_part(role)].unique().tolist()
        found[role] = tuple(sorted(table.classes[i] for i in there))
    names = [name for part in found.values() for name in part]
    return found if all(found.values()) and len(set(names)) == len(names) else None


def packaged(file: str) -> dict[str, Any]:
    """Lists that come with kedge. In the file a list is one text with spaces."""
    text = resources.files("kedge.benchmarks").joinpath(file).read_text(encoding="utf-8")
    content = json.loads(text)
    del content["origin"]
    return _listed(content)


def _listed(content: dict[str, Any]) -> dict[str, Any]:
    return {
        key: tuple(value.split()) if isinstance(value, str) else _listed(value)
        for key, value in content.items()
    }
