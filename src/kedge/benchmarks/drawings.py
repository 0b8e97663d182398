"""Benchmarks on the drawings that come with kedge."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from kedge.benchmarks.base import (
    Protocol,
    Split,
    across,
    deal_classes,
    shuffled,
)
from kedge.data.drawings import domains, load_drawings
from kedge.data.table import ImageTable

HELD_OUT = 30  # of the 100 drawings of each trained class


def _load(data: str | None) -> ImageTable:
    return load_drawings()


def _across(first: str, second: str, seed: int, table: ImageTable) -> Split:
    """64 old classes of the first domain, 64 new ones of the second, 8 + 8 to validate."""
    old, new = (shuffled(domains()[part], "split", part, seed) for part in (first, second))
    return across(seed, old, new, (64, 8, 36), HELD_OUT)


def _mixed(sizes: Sequence[int], seed: int, table: ImageTable) -> Split:
    """Classes of both domains mixed: `sizes` of each round, then 16 to validate, 72 unseen."""
    names = shuffled(table.classes, "split", "random", seed)
    *rounds, val, unseen = deal_classes(names, (*sizes, 16, 72))
    return Split(seed, tuple(rounds), val, {"unseen": unseen}, HELD_OUT)


DRAWINGS = (
    Protocol(
        "drawings",
        "Quick, Draw! drawings, from natural things to man-made ones: 64 old and 64 new classes, "
        "36 + 36 unseen, 28 px (the paper's domain shift has 32 + 32 ImageNet classes at 84 px).",
        _load,
        partial(_across, "natural", "manmade"),
    ),
    Protocol(
        "drawings-reverse",
        "Quick, Draw! drawings, from man-made things to natural ones: 64 old and 64 new classes, "
        "36 + 36 unseen, 28 px (the paper's domain shift has 32 + 32 ImageNet classes at 84 px).",
        _load,
        partial(_across, "manmade", "natural"),
    ),
    Protocol(
        "drawings-random",
        "Quick, Draw! drawings, classes split at random: 64 old, 64 new and 72 unseen, 28 px "
        "(the paper splits miniImageNet into 32, 32 and 20 at 84 px).",
        _load,
        partial(_mixed, (64, 64)),
    ),
    Protocol(
        "drawings-many",
        "Quick, Draw! drawings, many classes split at random: 128 old, 128 new and 72 unseen, "
        "28 px (the paper splits tieredImageNet into 176, 175 and 160 at 84 px).",
        _load,
        partial(_mixed, (128, 128)),
    ),
    Protocol(
        "drawings-2-rounds",
        "Quick, Draw! drawings, classes split at random: 64 old ones, then two rounds of 32 new "
        "ones, 72 unseen, 28 px (the paper has two rounds of 16 on miniImageNet at 84 px).",
        _load,
        partial(_mixed, (64, 32, 32)),
    ),
    Protocol(
        "drawings-4-rounds",
        "Quick, Draw! drawings, classes split at random: 64 old ones, then four rounds of 16 new "
        "ones, 72 unseen, 28 px (the paper has two rounds of 16 on miniImageNet at 84 px).",
        _load,
        partial(_mixed, (64, 16, 16, 16, 16)),
    ),
    Protocol(
        "drawings-16-rounds",
        "Quick, Draw! drawings, classes split at random: 16 rounds of 5 classes each, of which the "
        "first is the base, 72 unseen, 28 px (as tiny-imagenet-16-rounds; the paper has two rounds "
        "of 16 on miniImageNet).",
        _load,
        partial(_mixed, (5,) * 16),
    ),
)
