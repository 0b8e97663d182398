"""A benchmark on Omniglot: 1623 characters of 50 alphabets, each drawn by 20 people."""

from __future__ import annotations

from kedge.benchmarks.base import (
    Protocol,
    Split,
    deal_classes,
    shuffled,
)
from kedge.benchmarks.disk import held_out, opened
from kedge.data.table import ImageTable
from kedge.errors import KedgeError

SIDE = 28  # px
SIZES = (432, 432, 100)  # characters of images_background: old, new, to validate
ARCHIVES = {"train": ("images_background", sum(SIZES)), "test": ("images_evaluation", 659)}
USUAL = 10  # of the 20 images of each trained class are held out
NEEDS = (
    "Omniglot: one folder that holds both images_background and images_evaluation, as folders or "
    "as .zip files"
)


def _load(data: str | None) -> ImageTable:
    assert data is not None, "Protocol.benchmark asks for it"
    return opened(data, SIDE, 1, None)


def _draw(seed: int, table: ImageTable) -> Split:
    """Unseen are all characters of images_evaluation, whose alphabets are other ones."""
    found: dict[str, list[str]] = {}
    for part, (archive, n) in ARCHIVES.items():
        there = table.labels[table.in_part(part)].unique().tolist()
        found[part] = sorted(table.classes[i] for i in there)
        if not there:
            raise KedgeError(
                f"{table.source}: {archive} with its {n} characters is missing; --data needs "
                f"{NEEDS}."
            )
        if len(there) != n:
            raise KedgeError(
                f"{table.source}: {archive} has {len(there)} characters here instead of {n}; "
                f"--data needs {NEEDS}."
            )
    both = set(found["train"]) & set(found["test"])
    if both:
        raise KedgeError(
            f"{table.source}: '{min(both)}' is in images_background and in images_evaluation, "
            f"which have no character in common; --data needs {NEEDS}."
        )
    names = shuffled(found["train"], "split", "Omniglot", seed)
    old, new, val = deal_classes(names, SIZES)
    spare = held_out(table, found["train"], USUAL)
    return Split(seed, (old, new), val, {"unseen": tuple(found["test"])}, spare)


OMNIGLOT = (
    Protocol(
        "omniglot",
        f"Omniglot, the {sum(SIZES)} characters of its background alphabets split at random: "
        f"{SIZES[0]} old and {SIZES[1]} new, {SIZES[2]} to validate; unseen are the 659 of other "
        f"alphabets, {SIDE} px, white on black; of the 20 drawings of each trained character "
        f"{USUAL} are held out (not in the paper, which has photographs).",
        _load,
        _draw,
        NEEDS,
    ),
)
