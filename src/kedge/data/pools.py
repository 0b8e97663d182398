"""Pools of images, and who may read whose.

A split, drawn from a seed and saved with every result, says which classes are trained in which
round, which validate and which stay unseen; some images of every trained class are held out, so
that no test ever shows an image that was trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Int64
from torch import Tensor

from kedge.data.table import ImageTable
from kedge.errors import EntitlementError


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
class RoundData:
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
