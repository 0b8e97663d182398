"""Benchmarks on the drawings that come with kedge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from kedge.benchmarks.base import Protocol, Split, deal_classes, domain_shift_split, shuffled
from kedge.data.drawings import drawing_domains, load_drawings
from kedge.data.table import ImageTable

N_HELD_OUT = 30  # of the 100 drawings of each trained class


def _draw_domain_shift(first: str, second: str, seed: int, table: ImageTable) -> Split:
    """64 old classes of the first domain, 64 new ones of the second, 8 + 8 for validation."""
    old, new = (shuffled(drawing_domains()[d], "split", d, seed) for d in (first, second))
    return domain_shift_split(seed, old, new, (64, 8, 36), N_HELD_OUT)


def _draw_mixed(sizes: Sequence[int], seed: int, table: ImageTable) -> Split:
    """Classes of both domains: `sizes` for each round, then 16 for validation, 72 unseen."""
    names = shuffled(table.classes, "split", "random", seed)
    *rounds, val, unseen = deal_classes(names, (*sizes, 16, 72))
    return Split(seed, tuple(rounds), val, {"unseen": unseen}, N_HELD_OUT)


def _protocol(
    name: str, split: str, paper: str, draw: Callable[[int, ImageTable], Split]
) -> Protocol:
    text = f"Quick, Draw! drawings, {split}, 28 px ({paper})."
    return Protocol(name, text, lambda data: load_drawings(), draw)


_SHIFT_SIZES = "64 old and 64 new classes, 36 + 36 unseen"
_PAPER_SHIFT = "the paper's domain shift has 32 + 32 ImageNet classes at 84 px"
_PAPER_ROUNDS = "the paper has two rounds of 16 on miniImageNet"

DRAWINGS = (
    _protocol(
        "drawings",
        f"from natural things to man-made ones: {_SHIFT_SIZES}",
        _PAPER_SHIFT,
        partial(_draw_domain_shift, "natural", "manmade"),
    ),
    _protocol(
        "drawings-reverse",
        f"from man-made things to natural ones: {_SHIFT_SIZES}",
        _PAPER_SHIFT,
        partial(_draw_domain_shift, "manmade", "natural"),
    ),
    _protocol(
        "drawings-random",
        "classes split at random: 64 old, 64 new and 72 unseen",
        "the paper splits miniImageNet into 32, 32 and 20 at 84 px",
        partial(_draw_mixed, (64, 64)),
    ),
    _protocol(
        "drawings-many",
        "many classes split at random: 128 old, 128 new and 72 unseen",
        "the paper splits tieredImageNet into 176, 175 and 160 at 84 px",
        partial(_draw_mixed, (128, 128)),
    ),
    _protocol(
        "drawings-2-rounds",
        "classes split at random: 64 old ones, then two rounds of 32 new ones, 72 unseen",
        f"{_PAPER_ROUNDS} at 84 px",
        partial(_draw_mixed, (64, 32, 32)),
    ),
    _protocol(
        "drawings-4-rounds",
        "classes split at random: 64 old ones, then four rounds of 16 new ones, 72 unseen",
        f"{_PAPER_ROUNDS} at 84 px",
        partial(_draw_mixed, (64, 16, 16, 16, 16)),
    ),
    _protocol(
        "drawings-16-rounds",
        "classes split at random: 16 rounds of 5 classes each, of which the first is the base, 72 "
        "unseen",
        f"as tiny-imagenet-16-rounds; {_PAPER_ROUNDS}",
        partial(_draw_mixed, (5,) * 16),
    ),
)
