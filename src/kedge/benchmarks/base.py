"""Class splits, and benchmarks that hand out images according to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from kedge.data.pools import Pool, RoundData
from kedge.data.table import ImageTable
from kedge.errors import require
from kedge.utils.seeding import generator

TRAIN_PART = "train"  # part of the data to train on, if another part is held out


@dataclass(frozen=True)
class Split:
    """Class names by role. Saved with every result."""

    seed: int
    rounds: tuple[tuple[str, ...], ...]  # round 0 is the base
    val: tuple[str, ...]
    unseen: dict[str, tuple[str, ...]]  # pool name → classes
    held_out: int | str  # test images of each trained class: how many, or which part of the data


Draw = Callable[[int, ImageTable], Split]  # seed and images → split


@dataclass(frozen=True)
class Benchmark:
    """Images with a class split. Some images of every trained class are held out for testing."""

    table: ImageTable
    split: Split

    @property
    def n_rounds(self) -> int:
        return len(self.split.rounds)

    def on_validation_classes(self) -> Benchmark:
        """The same with half of the validation classes in place of the unseen ones; the other half
        validates."""
        val, trained = self.split.val, {name for names in self.split.rounds for name in names}
        own = not trained & set(val)
        require(own, "--test-on validation: this protocol validates on classes that it trains on.")
        n = len(val) // 2
        split = replace(self.split, val=val[:n], unseen={"unseen": val[n:]})
        return replace(self, split=split)

    def round_data(self, round: int, *, with_old: bool = False) -> RoundData:
        """The data of a round on a table of their own; old images only for entitled methods."""
        train, val = self.train_and_val_pools(round)
        if not (with_old and round):
            return RoundData(round, *Pool.isolate(train, val))
        old = Pool.concat("old", [self._class_pool("old", t, held_out=False) for t in range(round)])
        return RoundData(round, *Pool.isolate(train, val, old))

    def train_and_val_pools(self, round: int) -> tuple[Pool, Pool]:
        """The pools of a round on the table of all images."""
        train = self._class_pool("new" if round else "old", round, held_out=False)
        # Of validation classes that are trained on, no test image may be used.
        trained = {name for names in self.split.rounds for name in names}
        rows = (
            self._class_rows(name, held_out=False) if name in trained else self.table.rows_of(name)
            for name in self.split.val
        )
        return train, Pool("validation", self.table, self.split.val, tuple(rows))

    def train_pool(self, round: int) -> Pool:
        """The training images of a round, whatever the current one; for oracles only."""
        return self._class_pool(f"round_{round}", round, held_out=False)

    def test_pool(self, round: int) -> Pool:
        """The held-out images of the classes of one round."""
        return self._class_pool(f"round_{round}", round, held_out=True)

    def test_pools(self, round: int) -> tuple[Pool, ...]:
        """Old, new and unseen classes; then those of each round, if there are more than two."""
        by_round = [self.test_pool(t) for t in range(self.n_rounds)]
        pools = [Pool.concat("old", by_round[: max(round, 1)])]
        if round:
            pools.append(Pool.concat("new", [by_round[round]]))
        pools += [Pool.all(name, self.table, names) for name, names in self.split.unseen.items()]
        return (*pools, *by_round) if self.n_rounds > 2 else tuple(pools)

    def _class_pool(self, name: str, round: int, *, held_out: bool) -> Pool:
        classes = self.split.rounds[round]
        rows = tuple(self._class_rows(c, held_out=held_out) for c in classes)
        return Pool(name, self.table, classes, rows)

    def _class_rows(self, name: str, *, held_out: bool) -> Int64[Tensor, " images"]:
        """The images of a class that are held out for testing, or those to train on."""
        rows, n = self.table.rows_of(name), self.split.held_out
        if isinstance(n, str):
            return rows[self.table.in_part(n if held_out else TRAIN_PART)[rows]]
        order = generator("held out", self.split.seed, name).permutation(len(rows))
        chosen = order[:n] if held_out else order[n:]
        return rows[torch.from_numpy(np.sort(chosen))]


@dataclass(frozen=True)
class Protocol:
    """The definition of a named benchmark: its images, and how classes get their roles."""

    name: str
    description: str  # one sentence, saved in records; also how it differs from the paper
    load: Callable[[str | None], ImageTable]  # --data → images
    draw: Draw
    required_data: str = ""  # what --data must be; empty if the images come with kedge

    def benchmark(self, seed: int, data: str | None = None) -> Benchmark:
        needs = f"has its own images; leave {data} out, or choose another, such as folder"
        if self.required_data:
            needs = f"needs {self.required_data}"
        ok = bool(self.required_data) == (data is not None)
        require(ok, f"--data: the protocol {self.name} {needs}.")
        table = self.load(data)
        return Benchmark(table, self.draw(seed, table))


def shuffled(classes: Sequence[str], *key: int | str) -> list[str]:
    return [classes[i] for i in generator(*key).permutation(len(classes))]


def deal_classes(names: Sequence[str], sizes: Sequence[int]) -> list[tuple[str, ...]]:
    """Consecutive groups of names of these sizes; names that are left over are dropped."""
    ends = np.cumsum(sizes).tolist()
    return [tuple(names[end - n : end]) for end, n in zip(ends, sizes, strict=True)]


def domain_shift_split(
    seed: int, old: Sequence[str], new: Sequence[str], sizes: Sequence[int], held_out: int | str
) -> Split:
    """A split from one domain to another; `sizes` of each: training, validation, unseen."""
    train_old, val_old, unseen_old = deal_classes(old, sizes)
    train_new, val_new, unseen_new = deal_classes(new, sizes)
    unseen = {"unseen_old_domain": unseen_old, "unseen_new_domain": unseen_new}
    unseen["unseen_both"] = unseen_old + unseen_new
    return Split(seed, (train_old, train_new), val_old + val_new, unseen, held_out)


def pool_label(pool_name: str) -> str:
    """A pool's name for readers: 'unseen, old domain', 'classes of round 2'."""
    kind, _, rest = pool_name.partition("_")
    if kind == "round":
        return f"classes of round {rest}"
    return f"{kind}, {rest.replace('_', ' ')}" if rest else kind
