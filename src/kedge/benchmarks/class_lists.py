"""Data sets whose class lists come with kedge: by official role, or by domain."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources

from kedge.benchmarks.base import Protocol, Split, deal_classes, domain_shift_split, shuffled
from kedge.benchmarks.disk import choose_held_out, open_cached
from kedge.data.table import ImageTable
from kedge.errors import KedgeError

ROLES = ("train", "val", "test")
DOMAINS = {"natural": "natural", "manmade": "man-made"}  # key → word in sentences
DOMAIN_SIZES = (32, 8, 20)  # classes of each domain: training, validation, unseen
FILES = {  # data set → file, and its key there
    "miniImageNet": ("imagenet.json", "miniImageNet"),
    "tieredImageNet": ("imagenet.json", "tieredImageNet"),
    "ImageNet": ("imagenet.json", "domains"),
    "Tiny-ImageNet": ("imagenet.json", "tinyImageNet"),
    "CIFAR-FS": ("cifar_fs.json", None),
}
ClassLists = dict[str, tuple[str, ...]]


@functools.cache
def load_class_lists(dataset: str) -> ClassLists:
    """The classes of each role; for ImageNet and Tiny-ImageNet of each domain."""
    file, key = FILES[dataset]
    text = resources.files("kedge.benchmarks").joinpath(file).read_text(encoding="utf-8")
    content = json.loads(text)
    lists = content if key is None else content[key]
    return {name: tuple(names.split()) for name, names in lists.items() if name != "origin"}


@dataclass(frozen=True)
class ListedDataset:
    """A data set in colour that users have on disk."""

    name: str
    image_size: int
    n_held_out: int  # images of each trained class, if there are enough
    required_data: str  # what --data must be

    @property
    def lists(self) -> ClassLists:
        return load_class_lists(self.name)

    @property
    def all_classes(self) -> frozenset[str]:
        return frozenset(name for names in self.lists.values() for name in names)

    def protocol(
        self,
        name: str,
        description: str,
        draw: Callable[[int, ImageTable], Split],
        any_names: bool = True,
    ) -> Protocol:
        """A protocol on the listed classes, or on as many under other names if that is allowed."""

        def load(data: str | None) -> ImageTable:
            size, classes = self.image_size, self.all_classes
            return open_cached(data, size, 3, classes, any_names=any_names)

        return Protocol(name, description, load, draw, self.required_data)

    def draw_official(self, sizes: Sequence[int], seed: int, table: ImageTable) -> Split:
        """`sizes` of the official training classes for each round; other roles as listed."""
        lists = self._lists_of(table)
        rounds = deal_classes(shuffled(lists["train"], "split", self.name, seed), sizes)
        held_out = choose_held_out(table, lists["train"], self.n_held_out)
        return Split(seed, tuple(rounds), lists["val"], {"unseen": lists["test"]}, held_out)

    def draw_mixed(self, sizes: Sequence[int], seed: int, table: ImageTable) -> Split:
        """Classes of both domains: `sizes` for each round, then 16 for validation, 20 unseen."""
        classes = self.all_classes
        if not classes <= set(table.classes):
            if len(table.classes) != len(classes):
                n_found = len(classes & set(table.classes))
                raise KedgeError(
                    f"{table.source}: holds {n_found} of the {len(classes)} classes of "
                    f"{self.name}; --data needs {self.required_data}."
                )
            classes = frozenset(table.classes)
        names = shuffled(sorted(classes), "split", self.name, "random", seed)
        *rounds, val, unseen = deal_classes(names, (*sizes, 16, 20))
        trained = [name for names in rounds for name in names]
        held_out = choose_held_out(table, trained, self.n_held_out)
        return Split(seed, tuple(rounds), val, {"unseen": unseen}, held_out)

    def draw_domain_shift(self, first: str, second: str, seed: int, table: ImageTable) -> Split:
        """Old classes of the first domain and new ones of the second."""
        available = set(table.classes)
        old, new = (
            [name for name in self.lists[domain] if name in available] for domain in (first, second)
        )
        for domain, names in ((first, old), (second, new)):
            if len(names) < sum(DOMAIN_SIZES):
                raise KedgeError(
                    f"{table.source}: holds {len(names)} of {self.name}'s "
                    f"{len(self.lists[domain])} {DOMAINS[domain]} classes, but the protocol needs "
                    f"{sum(DOMAIN_SIZES)}; --data needs {self.required_data}."
                )
        old = shuffled(old, "split", self.name, first, seed)
        new = shuffled(new, "split", self.name, second, seed)
        held_out = choose_held_out(table, old + new, self.n_held_out)
        return domain_shift_split(seed, old, new, DOMAIN_SIZES, held_out)

    def _lists_of(self, table: ImageTable) -> ClassLists:
        """The official lists; if no name is known, those of the data's own split."""
        wanted = [name for names in self.lists.values() for name in names]
        missing = [name for name in wanted if name not in set(table.classes)]
        if not missing:
            return self.lists
        own = own_class_lists(table) if len(missing) == len(wanted) else None
        if own is not None and all(len(own[role]) == len(self.lists[role]) for role in ROLES):
            return own
        first = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
        raise KedgeError(
            f"{table.source}: {len(missing)} of the {len(wanted)} classes of {self.name} are "
            f"missing ({first}); --data needs {self.required_data}."
        )


def own_class_lists(table: ImageTable) -> ClassLists | None:
    """The classes of each part of the data's own split, or None if two parts share a class."""
    lists = {role: classes_in_part(table, role) for role in ROLES}
    names = [name for part in lists.values() for name in part]
    return lists if all(lists.values()) and len(set(names)) == len(names) else None


def classes_in_part(table: ImageTable, part: str) -> tuple[str, ...]:
    labels = table.labels[table.in_part(part)].unique().tolist()
    return tuple(sorted(table.classes[i] for i in labels))
