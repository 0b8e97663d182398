"""A benchmark on Omniglot: 1623 characters of 50 alphabets, each drawn by 20 people."""

from __future__ import annotations

from kedge.benchmarks.base import Protocol, Split, deal_classes, shuffled
from kedge.benchmarks.class_lists import classes_in_part
from kedge.benchmarks.disk import choose_held_out, open_cached
from kedge.data.table import ImageTable
from kedge.errors import require

SIZE = 28  # px
SIZES = (432, 432, 100)  # characters of images_background: old, new, validation
ARCHIVES = {"train": ("images_background", sum(SIZES)), "test": ("images_evaluation", 659)}
N_HELD_OUT = 10  # of the 20 images of each trained class
REQUIRED_DATA = (
    "Omniglot: one folder that holds both images_background and images_evaluation, as folders or "
    "as .zip files"
)


def _draw(seed: int, table: ImageTable) -> Split:
    """All characters of images_evaluation, which are of other alphabets, are unseen."""
    train, test = (classes_in_part(table, part) for part in ARCHIVES)
    for names, (archive, n) in zip((train, test), ARCHIVES.values(), strict=True):
        require(
            len(names) == n,
            f"{table.source}: {archive} has {len(names)} characters here instead of {n}; --data "
            f"needs {REQUIRED_DATA}.",
        )
    both = ", ".join(sorted(set(train) & set(test))[:3])
    require(not both, f"{table.source}: both archives hold {both}; --data needs {REQUIRED_DATA}.")
    old, new, val = deal_classes(shuffled(train, "split", "Omniglot", seed), SIZES)
    held_out = choose_held_out(table, train, N_HELD_OUT)
    return Split(seed, (old, new), val, {"unseen": test}, held_out)


OMNIGLOT = Protocol(
    "omniglot",
    f"Omniglot, the {sum(SIZES)} characters of its background alphabets split at random: "
    f"{SIZES[0]} old and {SIZES[1]} new, {SIZES[2]} to validate; unseen are the 659 of other "
    f"alphabets, {SIZE} px, white on black; of the 20 drawings of each trained character "
    f"{N_HELD_OUT} are held out (not in the paper, which has photographs).",
    lambda data: open_cached(data, SIZE, 1),
    _draw,
    REQUIRED_DATA,
)
