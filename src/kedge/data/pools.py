"""Pools of images in one role, and the images that a method is given in a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Int64
from torch import Tensor

from kedge.data.table import ImageTable
from kedge.errors import EntitlementError


@dataclass(frozen=True, eq=False)
class Pool:
    """Images of some classes in one role. A position counts through all, class by class."""

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
        """Images per class."""
        return torch.tensor([len(rows) for rows in self.class_rows], dtype=torch.int64)

    @cached_property
    def starts(self) -> Int64[Tensor, " classes"]:
        """Position of the first image of each class."""
        return self.counts.cumsum(0) - self.counts

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def all(cls, name: str, table: ImageTable, classes: Sequence[str] | None = None) -> Pool:
        """All images of the given classes; of every class by default."""
        chosen = table.classes if classes is None else tuple(classes)
        return cls(name, table, chosen, tuple(table.rows_of(c) for c in chosen))

    def select(self, name: str, chosen: Sequence[int]) -> Pool:
        """Some of the classes, by their numbers."""
        classes = tuple(self.classes[i] for i in chosen)
        return Pool(name, self.table, classes, tuple(self.class_rows[i] for i in chosen))

    @classmethod
    def concat(cls, name: str, pools: Sequence[Pool]) -> Pool:
        """The classes of several pools, which must share one table."""
        assert all(pool.table is pools[0].table for pool in pools), "pools of one table"
        classes = tuple(name for pool in pools for name in pool.classes)
        return cls(name, pools[0].table, classes, tuple(r for p in pools for r in p.class_rows))

    @staticmethod
    def isolate(*pools: Pool) -> list[Pool]:
        """The same pools on a new table that holds their images and can read no others."""
        rows = torch.cat([pool.rows for pool in pools]).sort().values
        table, isolated = pools[0].table.subset(rows), []
        for pool in pools:
            class_rows = tuple(torch.searchsorted(rows, r) for r in pool.class_rows)
            isolated.append(Pool(pool.name, table, pool.classes, class_rows))
        return isolated


@dataclass(frozen=True)
class RoundData:
    """The images of one round; those of earlier rounds only for methods entitled to them."""

    round: int
    train: Pool
    val: Pool
    _old: Pool | None = None  # training images of previous rounds, for methods entitled to them

    @property
    def training_pools(self) -> tuple[Pool, ...]:
        """The images that may be trained on: of this round, and of earlier ones if available."""
        return (self.train,) if self._old is None else (self.train, self._old)

    @property
    def old(self) -> Pool:
        """Training images of all previous rounds. Raises EntitlementError if not available."""
        if self._old is None:
            before = f"Images of the rounds before round {self.round} are not available"
            raise EntitlementError(f"{before}: this method may use new images and anchors only.")
        return self._old
