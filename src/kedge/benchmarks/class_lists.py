"""Data sets whose class lists come with kedge: by official role, or by domain."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib import resources

from kedge.benchmarks.base import Draw, Protocol, Split, deal_classes, domain_shift_split, shuffled
from kedge.benchmarks.disk import choose_held_out, held_out_rule, open_cached
from kedge.data.table import ImageTable
from kedge.errors import KedgeError, require

ROLES = ("train", "val", "test")
DOMAINS = {"natural": "natural", "manmade": "man-made"}  # key → word in sentences
DOMAIN_SIZES = (32, 8, 20)  # classes of each domain: training, validation, unseen
ClassLists = dict[str, tuple[str, ...]]


@functools.cache
def load_class_lists(dataset: str) -> ClassLists:
    """The classes of each role; for ImageNet and Tiny-ImageNet of each domain."""
    file = resources.files("kedge.benchmarks").joinpath("class_lists.json")
    lists = json.loads(file.read_text(encoding="utf-8"))[dataset]
    return {name: tuple(names.split()) for name, names in lists.items()}


@dataclass(frozen=True)
class ListedDataset:
    """A data set in colour that users have on disk, and the protocols on it."""

    name: str
    image_size: int
    n_held_out: int  # images of each trained class, if there are enough
    required_data: str  # what --data must be
    n_val: int = 16  # classes
    n_unseen: int = 20
    held_out: str = ""  # words on held-out images that precede the usual rule

    @functools.cached_property
    def all_classes(self) -> frozenset[str]:
        return frozenset(c for names in load_class_lists(self.name).values() for c in names)

    def official(self, name: str, sizes: Sequence[int], remark: str) -> Protocol:
        """`sizes` of the official training classes for each round; other roles as listed."""
        split = f"{self.name}, its {sum(sizes)} training classes {self._at_random(sizes)}"
        return self._protocol(name, split, partial(self._draw_official, sizes), remark)

    def mixed(self, name: str, sizes: Sequence[int], remark: str) -> Protocol:
        """`sizes` of the classes of both domains for each round."""
        n = sum(sizes) + self.n_val + self.n_unseen
        split = f"{self.name}, {n} of its {len(self.all_classes)} classes {self._at_random(sizes)}"
        return self._protocol(name, split, partial(self._draw_mixed, sizes), remark)

    def domain_shift(self, name: str, first: str, second: str, remark: str) -> Protocol:
        """Old classes of the first domain and new ones of the second."""
        train, val, unseen = DOMAIN_SIZES
        split = (
            f"{'Domain' if self.name == 'ImageNet' else ''}{self.name}, "
            f"{shift_in_words(first, second)}: {train} old and {train} new classes, "
            f"{val} + {val} to validate, {unseen} + {unseen} unseen"
        )
        draw = partial(self._draw_domain_shift, first, second)
        return self._protocol(name, split, draw, remark, any_names=False)

    def _at_random(self, sizes: Sequence[int]) -> str:
        others = f"{self.n_val} to validate, {self.n_unseen} unseen"
        return f"split at random: {rounds_in_words(sizes)}, {others}"

    def _protocol(
        self, name: str, split: str, draw: Draw, remark: str, any_names: bool = True
    ) -> Protocol:
        """A protocol on the listed classes, or on as many under other names if that is allowed."""
        held_out = f"{self.held_out}{held_out_rule(self.n_held_out)}"

        def load(data: str | None) -> ImageTable:
            return open_cached(data, self.image_size, 3, self.all_classes, any_names=any_names)

        description = f"{split}, {self.image_size} px; {held_out} ({remark})."
        return Protocol(name, description, load, draw, self.required_data)

    def _draw_official(self, sizes: Sequence[int], seed: int, table: ImageTable) -> Split:
        lists = self._lists_of(table)
        rounds = deal_classes(shuffled(lists["train"], "split", self.name, seed), sizes)
        held_out = choose_held_out(table, lists["train"], self.n_held_out)
        return Split(seed, tuple(rounds), lists["val"], {"unseen": lists["test"]}, held_out)

    def _lists_of(self, table: ImageTable) -> ClassLists:
        """The official lists; if no name is known, those of the data's own split."""
        official = load_class_lists(self.name)
        present = set(table.classes)
        missing = [c for names in official.values() for c in names if c not in present]
        if not missing:
            return official
        own = own_class_lists(table) if len(missing) == len(self.all_classes) else None
        if own is not None and all(len(own[role]) == len(official[role]) for role in ROLES):
            return own
        raise KedgeError(
            f"{table.source}: {len(missing)} of the {len(self.all_classes)} classes of {self.name} "
            f"are missing ({', '.join(missing[:3])}, …); --data needs {self.required_data}."
        )

    def _draw_mixed(self, sizes: Sequence[int], seed: int, table: ImageTable) -> Split:
        classes, available = self.all_classes, frozenset(table.classes)
        if not classes <= available:  # names do not matter if classes are drawn at random
            require(
                len(available) == len(classes),
                f"{table.source}: holds {len(classes & available)} of the {len(classes)} classes "
                f"of {self.name}; --data needs {self.required_data}.",
            )
            classes = available
        names = shuffled(sorted(classes), "split", self.name, "random", seed)
        *rounds, val, unseen = deal_classes(names, (*sizes, self.n_val, self.n_unseen))
        held_out = choose_held_out(table, sum(rounds, ()), self.n_held_out)
        return Split(seed, tuple(rounds), val, {"unseen": unseen}, held_out)

    def _draw_domain_shift(self, first: str, second: str, seed: int, table: ImageTable) -> Split:
        available, shuffled_domains = set(table.classes), []
        for domain in (first, second):
            listed = load_class_lists(self.name)[domain]
            names = [name for name in listed if name in available]
            require(
                len(names) >= sum(DOMAIN_SIZES),
                f"{table.source}: holds {len(names)} of {self.name}'s {len(listed)} "
                f"{DOMAINS[domain]} classes, but the protocol needs {sum(DOMAIN_SIZES)}; --data "
                f"needs {self.required_data}.",
            )
            shuffled_domains.append(shuffled(names, "split", self.name, domain, seed))
        old, new = shuffled_domains
        held_out = choose_held_out(table, old + new, self.n_held_out)
        return domain_shift_split(seed, old, new, DOMAIN_SIZES, held_out)


def rounds_in_words(sizes: Sequence[int]) -> str:
    old, *new = sizes
    if len(sizes) == 2:
        return f"{old} old and {new[0]} new"
    if old == new[0]:
        return f"{len(sizes)} rounds of {old} classes each, of which the first is the base"
    return f"{old} old ones, then {'two' if len(new) == 2 else 'four'} rounds of {new[0]} new ones"


def shift_in_words(first: str, second: str) -> str:
    return f"from {DOMAINS[first]} things to {DOMAINS[second]} ones"


def own_class_lists(table: ImageTable) -> ClassLists | None:
    """The classes of each part of the data's own split, or None if two parts share a class."""
    lists = {role: classes_in_part(table, role) for role in ROLES}
    names = [name for part in lists.values() for name in part]
    return lists if all(lists.values()) and len(set(names)) == len(names) else None


def classes_in_part(table: ImageTable, part: str) -> tuple[str, ...]:
    labels = table.labels[table.in_part(part)].unique().tolist()
    return tuple(sorted(table.classes[i] for i in labels))
