"""What a protocol is, and how classes get their roles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kedge.errors import KedgeError
from kedge.images.table import ImageTable
from kedge.pools import Benchmark, Split
from kedge.seeding import generator


@dataclass(frozen=True)
class Protocol:
    """A named benchmark: where the images come from and how the classes get their roles."""

    name: str
    sentence: str  # what it is, and where it differs from the paper
    load: Callable[[str | None], ImageTable]  # of images on disk, or of None
    draw: Callable[[int, ImageTable], Split]  # seed, images → split
    needs: str = ""  # what a user has to give; nothing where the images come with kedge

    @property
    def needs_data(self) -> bool:
        return bool(self.needs)

    def benchmark(self, seed: int, data: str | None = None) -> Benchmark:
        if self.needs_data and data is None:
            raise KedgeError(f"--data: the protocol {self.name} needs {self.needs}.")
        if data is not None and not self.needs_data:
            raise KedgeError(
                f"--data: the protocol {self.name} brings its own images and reads no others; "
                f"leave {data} out, or choose a protocol that reads it, such as folder."
            )
        table = self.load(data)
        return Benchmark(table, self.draw(seed, table))


def shuffled(classes: Sequence[str], *key: int | str) -> list[str]:
    return [classes[i] for i in generator(*key).permutation(len(classes))]


def dealt(names: Sequence[str], sizes: Sequence[int]) -> list[tuple[str, ...]]:
    """So many names for each role, one role after the other."""
    ends = np.cumsum(sizes).tolist()
    return [tuple(names[end - n : end]) for end, n in zip(ends, sizes, strict=True)]


def across(
    seed: int, old: Sequence[str], new: Sequence[str], sizes: Sequence[int], held_out: int | str
) -> Split:
    """From one domain to another; `sizes` of each: to train, to validate, unseen."""
    (trained_old, val_old, unseen_old) = dealt(old, sizes)
    (trained_new, val_new, unseen_new) = dealt(new, sizes)
    return Split(
        seed=seed,
        rounds=(trained_old, trained_new),
        val=val_old + val_new,
        unseen={
            "unseen_old_domain": unseen_old,
            "unseen_new_domain": unseen_new,
            "unseen_both": unseen_old + unseen_new,
        },
        held_out=held_out,
    )
