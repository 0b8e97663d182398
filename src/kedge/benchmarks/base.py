"""What a protocol is, and how classes get their roles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from kedge.data.pools import (
    Pool,
    RoundData,
    alone,
    union,
    whole,
)
from kedge.data.table import ImageTable
from kedge.errors import KedgeError
from kedge.utils.seeding import generator

TRAINED = "train"  # the part of the data that is trained on where another one is held out


@dataclass(frozen=True)
class Split:
    """Class names by role. Saved with every result."""

    seed: int
    rounds: tuple[tuple[str, ...], ...]  # round 0 is the base
    val: tuple[str, ...]
    unseen: dict[str, tuple[str, ...]]  # pool name → classes
    held_out: int | str  # of each trained class for testing: so many images, or a part of the data

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Split:
        """As a record holds it."""
        return cls(
            seed=saved["seed"],
            rounds=tuple(map(tuple, saved["rounds"])),
            val=tuple(saved["val"]),
            unseen={name: tuple(classes) for name, classes in saved["unseen"].items()},
            held_out=saved["held_out"],
        )


@dataclass(frozen=True)
class Benchmark:
    """A split on its images: hands out deliveries round by round, and the test pools."""

    table: ImageTable
    split: Split

    @property
    def n_rounds(self) -> int:
        return len(self.split.rounds)

    def delivery(self, round: int, *, with_old: bool = False) -> RoundData:
        new, val = self.delivered(round)
        if not (with_old and round):
            return RoundData(round, *alone(new, val))
        earlier = [self._seen("old", t, held_out=False) for t in range(round)]
        return RoundData(round, *alone(new, val, union("old", earlier)))

    def delivered(self, round: int) -> tuple[Pool, Pool]:
        """The images to train on and to validate on, on the table that holds all others too."""
        new = self._seen("new" if round else "old", round, held_out=False)
        return new, whole("validation", self.table, self.split.val)

    def trained(self, round: int) -> Pool:
        """The training images of a round, as long as they were there; for oracles only."""
        return self._seen(f"round_{round}", round, held_out=False)

    def test_pools(self, round: int) -> tuple[Pool, ...]:
        """Old, new and unseen as they stand after this round; of several, each round's too."""
        seen = [self._seen(f"round_{t}", t, held_out=True) for t in range(self.n_rounds)]
        pools = [union("old", seen[: max(round, 1)])]
        if round:
            pools.append(union("new", [seen[round]]))
        for name, classes in self.split.unseen.items():
            pools.append(whole(name, self.table, classes))
        return (*pools, *seen) if self.n_rounds > 2 else tuple(pools)

    def _seen(self, name: str, round: int, *, held_out: bool) -> Pool:
        classes = self.split.rounds[round]
        rows = tuple(self._part(c, held_out=held_out) for c in classes)
        return Pool(name, self.table, classes, rows)

    def _part(self, name: str, *, held_out: bool) -> Int64[Tensor, " images"]:
        """The images of a class that are held out for testing, or those that are trained on."""
        rows, n = self.table.rows_of(name), self.split.held_out
        if isinstance(n, str):
            return rows[self.table.in_part(n if held_out else TRAINED)[rows]]
        order = generator("held out", self.split.seed, name).permutation(len(rows))
        chosen = order[:n] if held_out else order[n:]
        return rows[torch.from_numpy(np.sort(chosen))]


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


def deal_classes(names: Sequence[str], sizes: Sequence[int]) -> list[tuple[str, ...]]:
    """So many names for each role, one role after the other."""
    ends = np.cumsum(sizes).tolist()
    return [tuple(names[end - n : end]) for end, n in zip(ends, sizes, strict=True)]


def across(
    seed: int, old: Sequence[str], new: Sequence[str], sizes: Sequence[int], held_out: int | str
) -> Split:
    """From one domain to another; `sizes` of each: to train, to validate, unseen."""
    (trained_old, val_old, unseen_old) = deal_classes(old, sizes)
    (trained_new, val_new, unseen_new) = deal_classes(new, sizes)
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


def pool_label(pool_name: str) -> str:
    """A pool's name as people read it: 'unseen, old domain', 'classes of round 2'."""
    kind, _, rest = pool_name.partition("_")
    if kind == "round":
        return f"classes of round {rest}"
    return f"{kind}, {rest.replace('_', ' ')}" if rest else kind
