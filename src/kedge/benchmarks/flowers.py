"""A benchmark on photographs of flowers, of which ImageNet's 1000 classes have hardly any (daisy
and yellow lady's slipper), so that unseen kinds are new to a network pretrained there too.

Flowers-102: Nilsback and Zisserman, Automated flower classification over a large number of classes,
2008; here with 40 photographs of each of the 102 kinds.
"""

from __future__ import annotations

from kedge.benchmarks.base import Draw, Protocol, Split, deal_classes, shuffled
from kedge.benchmarks.disk import open_cached
from kedge.data.table import ImageTable
from kedge.errors import require

N_CLASSES = 102
N_FIRST = 50  # the same under every seed: settings were chosen on them (LOG.md)
DELIVERIES, N_UNSEEN = (12, 12, 12), 16
N_BASE, MANY_DELIVERIES = 36, (5,) * 10  # ten updates: the base is a part of the first 50 classes
# Of the first 50 classes only: classes of the rounds, and unseen ones.
TUNING, TUNING_UPDATES = ((20, 10, 10), 10), ((15, 5, 5, 5, 5, 5), 10)
N_HELD_OUT = 10
IMAGE_SIZE = 160
Sizes = tuple[tuple[int, ...], int]


def _names(table: ImageTable) -> list[str]:
    n = len(table.classes)
    require(n == N_CLASSES, f"{table.source}: there are {n} classes, not {N_CLASSES}.")
    return shuffled(sorted(table.classes), "split", "flowers")


def _draw(seed: int, table: ImageTable) -> Split:
    names = _names(table)
    first, others = names[:N_FIRST], shuffled(names[N_FIRST:], "split", "flowers", seed)
    *rounds, unseen = deal_classes(others, (*DELIVERIES, N_UNSEEN))
    return Split(seed, (tuple(first), *rounds), tuple(first), {"unseen": unseen}, N_HELD_OUT)


def _draw_ten_updates(seed: int, table: ImageTable) -> Split:
    """The unseen classes are those of the protocol flowers under the same seed."""
    names, unseen = _names(table), _draw(seed, table).unseen
    base, rest = names[:N_BASE], [name for name in names[N_BASE:] if name not in unseen["unseen"]]
    rounds = deal_classes(shuffled(rest, "split", "flowers", "ten updates", seed), MANY_DELIVERIES)
    return Split(seed, (tuple(base), *rounds), tuple(base), unseen, N_HELD_OUT)


def _draw_tuning(seed: int, table: ImageTable, classes: Sizes = TUNING) -> Split:
    sizes, n_unseen = classes
    names = shuffled(_names(table)[:N_FIRST], "split", "flowers", "tuning", seed)
    *rounds, unseen = deal_classes(names, (*sizes, n_unseen))
    return Split(seed, tuple(rounds), rounds[0], {"unseen": unseen}, N_HELD_OUT)


def _protocol(name: str, description: str, draw: Draw) -> Protocol:
    return Protocol(
        name,
        description,
        lambda data: open_cached(data, IMAGE_SIZE, 3),
        draw,
        "the 102 kinds of flowers: a folder with one sub-folder of images per kind, or its .zip",
    )


FLOWERS = (
    _protocol(
        "flowers",
        "102 kinds of flowers: 50 to begin with, three deliveries of 12, and 16 unseen ones; of "
        f"each kind {N_HELD_OUT} photographs are held out for testing. The first 50 kinds are the "
        "same under every seed (not in the paper).",
        _draw,
    ),
    _protocol(
        "flowers-10-updates",
        "102 kinds of flowers: 36 to begin with, ten deliveries of 5, and 16 unseen ones, those of "
        "the protocol flowers (not in the paper).",
        _draw_ten_updates,
    ),
    _protocol(
        "flowers-tuning",
        "The first 50 kinds of flowers alone, to choose settings: 20 to begin with, two "
        "deliveries of 10, and 10 unseen ones (not in the paper).",
        _draw_tuning,
    ),
    _protocol(
        "flowers-tuning-5-updates",
        "The first 50 kinds of flowers alone, to choose settings of many small updates: 15 to "
        "begin with, five deliveries of 5, and 10 unseen ones (not in the paper).",
        lambda seed, table: _draw_tuning(seed, table, TUNING_UPDATES),
    ),
)
