"""Pools of images, and who may read whose.

A split, drawn from a seed and saved with every result, says which classes are trained in which
round, which validate and which stay unseen; some images of every trained class are held out, so
that no test ever shows an image that was trained on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from kedge.errors import EntitlementError
from kedge.images.table import ImageTable
from kedge.seeding import generator

TRAINED = "train"  # the part of the data that is trained on where another one is held out


@dataclass(frozen=True, eq=False)
class Pool:
    """The images of some classes in one role. Positions run through all of them, class by class."""

    name: str
    table: ImageTable
    classes: tuple[str, ...]
    class_rows: tuple[Int64[Tensor, " _"], ...]  # rows of the table, one vector per class

    @cached_property
    def rows(self) -> Int64[Tensor, " positions"]:
        """Position → row of the table."""
        return torch.cat(self.class_rows) if self.class_rows else torch.empty(0, dtype=torch.int64)

    @cached_property
    def counts(self) -> Int64[Tensor, " classes"]:
        return torch.tensor([len(rows) for rows in self.class_rows], dtype=torch.int64)

    @cached_property
    def starts(self) -> Int64[Tensor, " classes"]:
        """Position of the first image of each class."""
        return self.counts.cumsum(0) - self.counts

    def __len__(self) -> int:
        return len(self.rows)


def whole(name: str, table: ImageTable, classes: Sequence[str] | None = None) -> Pool:
    """All images of the given classes (of every class, if none are given)."""
    chosen = table.classes if classes is None else tuple(classes)
    return Pool(name, table, chosen, tuple(table.rows_of(c) for c in chosen))


def union(name: str, pools: Sequence[Pool]) -> Pool:
    assert all(pool.table is pools[0].table for pool in pools), "pools of one table"
    return Pool(
        name,
        pools[0].table,
        tuple(c for pool in pools for c in pool.classes),
        tuple(rows for pool in pools for rows in pool.class_rows),
    )


def alone(*pools: Pool) -> list[Pool]:
    """The same pools on a table that holds their images and no other.

    Images in memory are copied; those of a packed file stay there, and only these can be read.
    """
    rows = torch.cat([pool.rows for pool in pools]).sort().values
    part = pools[0].table.only(rows)
    return [
        replace(
            pool, table=part, class_rows=tuple(torch.searchsorted(rows, r) for r in pool.class_rows)
        )
        for pool in pools
    ]


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
class Delivery:
    """What a method is handed in a round, and nothing more.

    The images of earlier rounds are not merely hidden: a method that is not entitled to them
    gets a delivery that does not hold them.
    """

    round: int
    new: Pool
    val: Pool
    earlier: Pool | None = None

    @property
    def old(self) -> Pool:
        if self.earlier is None:
            raise EntitlementError(
                f"Images of the rounds before round {self.round} are gone: this method is "
                "entitled to the new images and to the anchors only."
            )
        return self.earlier


@dataclass(frozen=True)
class Benchmark:
    """A split on its images: hands out deliveries round by round, and the test pools."""

    table: ImageTable
    split: Split

    @property
    def n_rounds(self) -> int:
        return len(self.split.rounds)

    def delivery(self, round: int, *, with_old: bool = False) -> Delivery:
        new, val = self.delivered(round)
        if not (with_old and round):
            return Delivery(round, *alone(new, val))
        earlier = [self._seen("old", t, held_out=False) for t in range(round)]
        return Delivery(round, *alone(new, val, union("old", earlier)))

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


def label(pool_name: str) -> str:
    """A pool's name as people read it: 'unseen, old domain', 'classes of round 2'."""
    kind, _, rest = pool_name.partition("_")
    if kind == "round":
        return f"classes of round {rest}"
    return f"{kind}, {rest.replace('_', ' ')}" if rest else kind
