"""Benchmarks on Tiny-ImageNet: 200 classes of ImageNet at 64 px, 550 images of each.

Its classes by WordNet id are in imagenet.json.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from kedge.benchmarks.base import (
    Protocol,
    Split,
    deal_classes,
    shuffled,
)
from kedge.benchmarks.disk import (
    held_out,
    opened,
    what_is_held_out,
)
from kedge.benchmarks.domains import Domains
from kedge.benchmarks.imagenet import BY_WORDNET_ID, tiny_imagenet_domains
from kedge.data.table import ImageTable
from kedge.errors import KedgeError

SIDE = 64  # px
USUAL = 150  # images of each trained class that are held out

_DOMAINS = Domains(
    "Tiny-ImageNet", tiny_imagenet_domains, SIDE, f"Tiny-ImageNet {BY_WORDNET_ID}", USUAL
)


def _load(data: str | None) -> ImageTable:
    """What the classes are called does not matter where they are drawn at random."""
    assert data is not None, "Protocol.benchmark asks for it"
    return opened(data, SIDE, 3, _DOMAINS.every, by_number=True)


def _mixed(sizes: Sequence[int], seed: int, table: ImageTable) -> Split:
    """Classes of both domains mixed: `sizes` of each round, then 16 to validate, 20 unseen."""
    every = _DOMAINS.every
    if not every <= set(table.classes):
        if len(table.classes) != len(every):
            there = len(every & set(table.classes))
            raise KedgeError(
                f"{table.source}: {there} of the {len(every)} classes of Tiny-ImageNet are here; "
                f"--data needs {_DOMAINS.needs}."
            )
        every = frozenset(table.classes)
    names = shuffled(sorted(every), "split", "Tiny-ImageNet", "random", seed)
    *rounds, val, unseen = deal_classes(names, (*sizes, 16, 20))
    trained = [name for classes in rounds for name in classes]
    return Split(seed, tuple(rounds), val, {"unseen": unseen}, held_out(table, trained, USUAL))


TINY_IMAGENET = (
    Protocol(
        "tiny-imagenet",
        "Tiny-ImageNet, 100 of its 200 classes split at random: 32 old and 32 new, 16 to "
        f"validate, 20 unseen, {SIDE} px; {what_is_held_out(USUAL)} (not in the paper, which "
        "splits miniImageNet into as many at 84 px).",
        _load,
        partial(_mixed, (32, 32)),
        _DOMAINS.needs,
    ),
    Protocol(
        "tiny-imagenet-2-rounds",
        "Tiny-ImageNet, 100 of its 200 classes split at random: 32 old ones, then two rounds of "
        f"16 new ones, 16 to validate, 20 unseen, {SIDE} px; {what_is_held_out(USUAL)} (not in "
        "the paper, which splits miniImageNet into as many at 84 px).",
        _load,
        partial(_mixed, (32, 16, 16)),
        _DOMAINS.needs,
    ),
    Protocol(
        "tiny-imagenet-16-rounds",
        "Tiny-ImageNet, 116 of its 200 classes split at random: 16 rounds of 5 classes each, of "
        f"which the first is the base, 16 to validate, 20 unseen, {SIDE} px; "
        f"{what_is_held_out(USUAL)} (after the long runs of Wang et al.'s episodic replay "
        "distillation; the paper has two rounds of 16 on miniImageNet).",
        _load,
        partial(_mixed, (5,) * 16),
        _DOMAINS.needs,
    ),
    Protocol(
        "tiny-imagenet-domain",
        "Tiny-ImageNet, from natural things to man-made ones: 32 old and 32 new classes, 8 + 8 "
        f"to validate, 20 + 20 unseen, {SIDE} px; {what_is_held_out(USUAL)} (not in the paper, "
        "whose DomainImageNet is drawn from all of ImageNet at 84 px).",
        _DOMAINS.load,
        partial(_DOMAINS.draw, "natural", "manmade"),
        _DOMAINS.needs,
    ),
    Protocol(
        "tiny-imagenet-domain-reverse",
        "Tiny-ImageNet, from man-made things to natural ones: 32 old and 32 new classes, 8 + 8 "
        f"to validate, 20 + 20 unseen, {SIDE} px; {what_is_held_out(USUAL)} (not in the paper, "
        "whose DomainImageNet is drawn from all of ImageNet at 84 px).",
        _DOMAINS.load,
        partial(_DOMAINS.draw, "manmade", "natural"),
        _DOMAINS.needs,
    ),
)
