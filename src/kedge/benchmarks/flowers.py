"""A benchmark on photographs of flowers, none of whose classes is one of ImageNet's 1000.

Flowers-102: Nilsback and Zisserman, Automated flower classification over a large number of classes,
2008; here with 40 photographs of each of the 102 kinds.
"""

from __future__ import annotations

from kedge.benchmarks.base import Protocol, Split, deal_classes, shuffled
from kedge.benchmarks.disk import open_cached
from kedge.data.table import ImageTable
from kedge.errors import require

N_CLASSES = 102
N_FIRST = 50  # the same under every seed: settings were chosen on them (LOG.md)
DELIVERIES, N_UNSEEN = (12, 12, 12), 16
TUNING = ((24, 6, 6, 6), 8)  # of the first 50 classes only: rounds, and unseen
N_HELD_OUT = 10
IMAGE_SIZE = 160


def _names(table: ImageTable) -> list[str]:
    n = len(table.classes)
    require(n == N_CLASSES, f"{table.source}: there are {n} classes, not {N_CLASSES}.")
    return shuffled(sorted(table.classes), "split", "flowers")


def _draw(seed: int, table: ImageTable) -> Split:
    names = _names(table)
    first, others = names[:N_FIRST], shuffled(names[N_FIRST:], "split", "flowers", seed)
    *rounds, unseen = deal_classes(others, (*DELIVERIES, N_UNSEEN))
    return Split(seed, (tuple(first), *rounds), tuple(first), {"unseen": unseen}, N_HELD_OUT)


def _draw_tuning(seed: int, table: ImageTable) -> Split:
    sizes, n_unseen = TUNING
    names = shuffled(_names(table)[:N_FIRST], "split", "flowers", "tuning", seed)
    *rounds, unseen = deal_classes(names, (*sizes, n_unseen))
    return Split(seed, tuple(rounds), rounds[0], {"unseen": unseen}, N_HELD_OUT)


def _protocol(name: str, description: str, draw: object, image_size: int = IMAGE_SIZE) -> Protocol:
    return Protocol(
        name,
        description,
        lambda data: open_cached(data, image_size, 3),
        draw,  # type: ignore[arg-type]
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
        "flowers-tuning",
        "The first 50 kinds of flowers alone, to choose settings: 24 to begin with, three "
        "deliveries of 6, and 8 unseen ones (not in the paper).",
        _draw_tuning,
    ),
)
