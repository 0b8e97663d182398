"""Benchmarks on the drawings that come with kedge."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from kedge.benchmarks.base import Draw, Protocol, Split, deal_classes, domain_shift_split, shuffled
from kedge.benchmarks.class_lists import rounds_in_words, shift_in_words
from kedge.data.drawings import drawing_domains, load_drawings
from kedge.data.table import ImageTable

N_HELD_OUT = 30  # of the 100 drawings of each trained class


def _domain_shift(name: str, first: str, second: str) -> Protocol:
    split = f"{shift_in_words(first, second)}: 64 old and 64 new classes, 36 + 36 unseen"
    remark = "the paper's domain shift has 32 + 32 ImageNet classes at 84 px"
    return _protocol(name, split, partial(_draw_domain_shift, first, second), remark)


def _mixed(name: str, sizes: Sequence[int], remark: str, classes: str = "classes") -> Protocol:
    two = len(sizes) == 2
    rounds = f"{sizes[0]} old, {sizes[1]} new and" if two else f"{rounds_in_words(sizes)},"
    split = f"{classes} split at random: {rounds} 72 unseen"
    return _protocol(name, split, partial(_draw_mixed, sizes), remark)


def _protocol(name: str, split: str, draw: Draw, remark: str) -> Protocol:
    text = f"Quick, Draw! drawings, {split}, 28 px ({remark})."
    return Protocol(name, text, lambda data: load_drawings(), draw)


def _draw_domain_shift(first: str, second: str, seed: int, table: ImageTable) -> Split:
    """64 old classes of the first domain, 64 new ones of the second, 8 + 8 for validation."""
    old, new = (shuffled(drawing_domains()[d], "split", d, seed) for d in (first, second))
    return domain_shift_split(seed, old, new, (64, 8, 36), N_HELD_OUT)


def _draw_mixed(sizes: Sequence[int], seed: int, table: ImageTable) -> Split:
    """Classes of both domains: `sizes` for each round, then 16 for validation, 72 unseen."""
    names = shuffled(table.classes, "split", "random", seed)
    *rounds, val, unseen = deal_classes(names, (*sizes, 16, 72))
    return Split(seed, tuple(rounds), val, {"unseen": unseen}, N_HELD_OUT)


_PAPER_ROUNDS = "the paper has two rounds of 16 on miniImageNet"
_PAPER_MINI = "the paper splits miniImageNet into 32, 32 and 20 at 84 px"
_PAPER_TIERED = "the paper splits tieredImageNet into 176, 175 and 160 at 84 px"

DRAWINGS = (
    _domain_shift("drawings", "natural", "manmade"),
    _domain_shift("drawings-reverse", "manmade", "natural"),
    _mixed("drawings-random", (64, 64), _PAPER_MINI),
    _mixed("drawings-many", (128, 128), _PAPER_TIERED, "many classes"),
    _mixed("drawings-2-rounds", (64, 32, 32), f"{_PAPER_ROUNDS} at 84 px"),
    _mixed("drawings-4-rounds", (64, 16, 16, 16, 16), f"{_PAPER_ROUNDS} at 84 px"),
    _mixed("drawings-16-rounds", (5,) * 16, f"as tiny-imagenet-16-rounds; {_PAPER_ROUNDS}"),
)
