"""A benchmark on Omniglot: 1623 characters of 50 alphabets, each drawn by 20 people."""

from __future__ import annotations

from kedge.benchmarks.base import Protocol, Split, deal_classes, shuffled
from kedge.benchmarks.class_lists import classes_in_part
from kedge.benchmarks.disk import choose_held_out, open_cached
from kedge.data.table import ImageTable
from kedge.errors import KedgeError

SIZE = 28  # px
SIZES = (432, 432, 100)  # characters of images_background: old, new, validation
ARCHIVES = {"train": ("images_background", sum(SIZES)), "test": ("images_evaluation", 659)}
N_HELD_OUT = 10  # of the 20 images of each trained class
REQUIRED_DATA = (
    "Omniglot: one folder that holds both images_background and images_evaluation, as folders or "
    "as .zip files"
)


def _load(data: str | None) -> ImageTable:
    return open_cached(data, SIZE, 1)


def _draw(seed: int, table: ImageTable) -> Split:
    """All characters of images_evaluation, which are of other alphabets, are unseen."""
    characters = {part: classes_in_part(table, part) for part in ARCHIVES}
    for part, (archive, n) in ARCHIVES.items():
        if len(characters[part]) != n:
            raise KedgeError(
                f"{table.source}: {archive} has {len(characters[part])} characters here instead of "
                f"{n}; --data needs {REQUIRED_DATA}."
            )
    if both := set(characters["train"]) & set(characters["test"]):
        raise KedgeError(
            f"{table.source}: '{min(both)}' is in images_background and in images_evaluation, "
            f"which have no character in common; --data needs {REQUIRED_DATA}."
        )
    names = shuffled(characters["train"], "split", "Omniglot", seed)
    old, new, val = deal_classes(names, SIZES)
    held_out = choose_held_out(table, characters["train"], N_HELD_OUT)
    return Split(seed, (old, new), val, {"unseen": characters["test"]}, held_out)


OMNIGLOT = Protocol(
    "omniglot",
    f"Omniglot, the {sum(SIZES)} characters of its background alphabets split at random: "
    f"{SIZES[0]} old and {SIZES[1]} new, {SIZES[2]} to validate; unseen are the 659 of other "
    f"alphabets, {SIZE} px, white on black; of the 20 drawings of each trained character "
    f"{N_HELD_OUT} are held out (not in the paper, which has photographs).",
    _load,
    _draw,
    REQUIRED_DATA,
)
