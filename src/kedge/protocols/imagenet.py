"""Benchmarks drawn from ImageNet: miniImageNet, tieredImageNet and DomainImageNet.

Their official class lists, by WordNet id, are in imagenet.json.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from functools import partial
from importlib import resources

from kedge.errors import KedgeError
from kedge.images.table import ImageTable
from kedge.pools import Split
from kedge.protocols.contract import Protocol, across, dealt, shuffled
from kedge.protocols.disk import HELD_OUT, held_out, opened

SIDE = 84  # px
BY_WORDNET_ID = (
    "a folder of class folders named by WordNet id (n01532829 and so on), or a packed image file "
    "of classes with such names"
)
Lists = dict[str, tuple[str, ...]]


def official(name: str) -> Lists:
    """Of miniImageNet or tieredImageNet: the classes of "train", "val" and "test"."""
    return dict(_lists()[name])


def imagenet_domains() -> Lists:
    """All 1000 classes of ILSVRC in two parts: "natural" and "manmade"."""
    return dict(_lists()["domains"])


@functools.cache
def _lists() -> dict[str, Lists]:
    text = resources.files("kedge.protocols").joinpath("imagenet.json").read_text(encoding="utf-8")
    parts = json.loads(text)
    del parts["origin"]
    return {
        name: {role: tuple(ids.split()) for role, ids in part.items()}
        for name, part in parts.items()
    }


def _photographs(data: str | None) -> ImageTable:
    assert data is not None, "Protocol.benchmark asks for it"
    return opened(data, SIDE, 3)


def _official(name: str, sizes: Sequence[int], seed: int, table: ImageTable) -> Split:
    """The official training classes at random: `sizes` of each round. The others as they are."""
    lists = official(name)
    _check_classes(table, name, lists)
    rounds = dealt(shuffled(lists["train"], "split", name, seed), sizes)
    unseen = {"unseen": lists["test"]}
    return Split(seed, tuple(rounds), lists["val"], unseen, held_out(table, lists["train"]))


def _check_classes(table: ImageTable, name: str, lists: Lists) -> None:
    there = set(table.classes)
    wanted = [each for part in lists.values() for each in part]
    missing = [each for each in wanted if each not in there]
    if missing:
        first = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
        raise KedgeError(
            f"{table.source}: {len(missing)} of the {len(wanted)} classes of {name} are missing "
            f"({first}); --data needs {BY_WORDNET_ID}."
        )


def _imagenet_across(first: str, second: str, seed: int, table: ImageTable) -> Split:
    """32 old classes of the first domain, 32 new ones of the second, 8 + 8 to validate."""
    sizes, there = (32, 8, 20), set(table.classes)
    known = {
        part: [name for name in names if name in there]
        for part, names in imagenet_domains().items()
    }
    for part, names in known.items():
        if len(names) < sum(sizes):
            raise KedgeError(
                f"{table.source}: {len(names)} of ImageNet's {len(imagenet_domains()[part])} "
                f"{'man-made' if part == 'manmade' else part} classes are here, but the protocol "
                f"needs {sum(sizes)}; --data needs {BY_WORDNET_ID}."
            )
    old, new = (shuffled(known[part], "split", "ImageNet", part, seed) for part in (first, second))
    return across(seed, old, new, sizes, held_out(table, known[first] + known[second]))


IMAGENET = (
    Protocol(
        "mini-imagenet",
        "miniImageNet, its 64 training classes split at random: 32 old and 32 new, 16 to "
        f"validate, 20 unseen, {SIDE} px; {HELD_OUT} (the paper tests on 300 further images of "
        "each trained class, and trains on all 600).",
        _photographs,
        partial(_official, "miniImageNet", (32, 32)),
        BY_WORDNET_ID,
    ),
    Protocol(
        "mini-imagenet-2-rounds",
        "miniImageNet, its 64 training classes split at random: 32 old ones, then two rounds of "
        f"16 new ones, 16 to validate, 20 unseen, {SIDE} px; {HELD_OUT} (the paper tests on 300 "
        "further images of each trained class, and trains on all 600).",
        _photographs,
        partial(_official, "miniImageNet", (32, 16, 16)),
        BY_WORDNET_ID,
    ),
    Protocol(
        "tiered-imagenet",
        "tieredImageNet, its 351 training classes split at random: 176 old and 175 new, 97 to "
        f"validate, 160 unseen, {SIDE} px; {HELD_OUT} (the paper tests on about 1000 further "
        "images of each trained class, which not every class has).",
        _photographs,
        partial(_official, "tieredImageNet", (176, 175)),
        BY_WORDNET_ID,
    ),
    Protocol(
        "domain-imagenet",
        "DomainImageNet, from natural things to man-made ones: 32 old and 32 new classes, 8 + 8 "
        f"to validate, 20 + 20 unseen, {SIDE} px; {HELD_OUT} (the paper does not list its "
        "classes: these are drawn, with all their images, from ImageNet's 449 natural and 551 "
        "man-made ones).",
        _photographs,
        partial(_imagenet_across, "natural", "manmade"),
        BY_WORDNET_ID,
    ),
    Protocol(
        "domain-imagenet-reverse",
        "DomainImageNet, from man-made things to natural ones: 32 old and 32 new classes, 8 + 8 "
        f"to validate, 20 + 20 unseen, {SIDE} px; {HELD_OUT} (the paper does not list its "
        "classes: these are drawn, with all their images, from ImageNet's 449 natural and 551 "
        "man-made ones).",
        _photographs,
        partial(_imagenet_across, "manmade", "natural"),
        BY_WORDNET_ID,
    ),
)
