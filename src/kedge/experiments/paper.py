"""The tables of the paper that kedge implements, for comparison with our own results.

Liu, Majumder, Achille, Ravichandran, Bhotika and Soatto, "Incremental Meta-Learning via Indirect
Discriminant Alignment". `paper.json` holds every table of the final version as printed. Cells that
contradict other cells, the text or arithmetic name their faults.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from types import SimpleNamespace
from typing import Any

from kedge.errors import KedgeError

POOLS = {
    "old": "old",
    "new": "new",
    "unseen": "unseen",
    "unseen_old_domain": "unseen, old domain",
    "unseen_new_domain": "unseen, new domain",
    "unseen_both": "unseen, both domains",
}
MARKS = "†‡§¶‖#"  # of faults
RANGE = "range"  # the row of a sweep that is computed from the rows above it


@dataclass(frozen=True)
class PaperCell:
    """An accuracy in % as the paper prints it."""

    mean: float
    ci: float | None  # half-width of the 95% interval; None where not printed
    bold: bool  # as printed; see `PaperTable.is_best`
    faults: tuple[str, ...]  # ids

    def __str__(self) -> str:
        # The ranges of the ECM sweep have four decimals, everything else has two.
        mean = f"{self.mean:.2f}" if round(self.mean, 2) == self.mean else f"{self.mean:.4f}"
        return mean if self.ci is None else f"{mean} ±{self.ci:.2f}"


@dataclass(frozen=True)
class PaperColumn:
    """What the models of a table were tested on."""

    group: str  # what the paper prints above it: "1-shot", "round II"
    n_shot: int
    n_way: int
    pool: str
    n_classes: int | None  # None where the paper does not say
    by_ways: bool  # columns differ by ways (sweeps), not by pool

    @property
    def key(self) -> str:
        """Unique in its table: "1-shot old", "round II new", "5-shot 20-way"."""
        return f"{self.group} {f'{self.n_way}-way' if self.by_ways else self.pool}"


@dataclass(frozen=True)
class PaperRow:
    """One method; in the sweeps one training shape ("5-shot 10-way"), or the range over them."""

    label: str
    dataset: str | None  # None where the paper does not say
    cells: tuple[PaperCell, ...]

    @property
    def competes(self) -> bool:
        """Whether it can be best: NU does not learn, and PAR sees everything."""
        return self.label not in ("NU", "PAR", RANGE)


@dataclass(frozen=True)
class PaperTable:
    id: str
    number: int
    place: str
    caption: str
    note: str | None
    old_domain: str | None  # of DomainImageNet: what the base model was trained on
    head: str
    backbone: str
    columns: tuple[PaperColumn, ...]
    rows: tuple[PaperRow, ...]

    @property
    def datasets(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row.dataset for row in self.rows if row.dataset))

    @property
    def faults(self) -> dict[str, str]:
        """Ids of the faults of all cells in reading order, with the mark of each."""
        found = dict.fromkeys(fault for _, _, cell in self.walk() for fault in cell.faults)
        marks = (mark * n for n in itertools.count(1) for mark in MARKS)
        return dict(zip(found, marks, strict=False))

    @property
    def is_sweep(self) -> bool:
        """Whether rows are training shapes instead of methods."""
        return self.rows[-1].label == RANGE

    def walk(self) -> Iterator[tuple[PaperRow, PaperColumn, PaperCell]]:
        for row in self.rows:
            for column, cell in zip(self.columns, row.cells, strict=True):
                yield row, column, cell

    def cell(self, label: str, key: str, dataset: str | None = None) -> PaperCell:
        """`cell("IDA", "5-shot unseen")`; the dataset is needed where a table has several."""
        for row, column, cell in self.walk():
            if (row.label, column.key) == (label, key) and dataset in (None, row.dataset):
                return cell
        raise KeyError(f"{self.id} has no cell ({label}, {key}, {dataset})")

    def is_best(self, row: PaperRow, column: PaperColumn) -> bool:
        """Whether no method is better; computed, since some bold marks in the paper are wrong."""
        at = self.columns.index(column)
        rivals = [r.cells[at].mean for r in self.rows if r.competes and r.dataset == row.dataset]
        return row.competes and row.cells[at].mean == max(rivals)


@dataclass(frozen=True)
class Fault:
    """Something in the paper that cannot be right, and why."""

    id: str
    kind: str  # value, columns, interval, bold or claim
    sentence: str


def tables() -> dict[str, PaperTable]:
    """All tables of the paper by id, in its order."""
    return dict(_paper()[0])


def faults() -> dict[str, Fault]:
    return dict(_paper()[1])


def setting() -> SimpleNamespace:
    """Constants that the paper states: epochs, lr, temperature, …"""
    return _paper()[2]


def table(name: str) -> PaperTable:
    """A table by its id, or by the number that it has in the paper."""
    known, wanted = tables(), name.strip().lower()
    for candidate in known.values():
        if wanted in (candidate.id, str(candidate.number)):
            return candidate
    # The start of a name is more likely than a misspelling.
    close = [each for each in known if wanted and each.startswith(wanted)]
    close = close or get_close_matches(wanted, known)
    hint = f"did you mean {' or '.join(close)}?" if close else f"choose from {', '.join(known)}."
    raise KedgeError(f"The paper has no table named {name!r}: {hint}")


@cache
def _paper() -> tuple[dict[str, PaperTable], dict[str, Fault], SimpleNamespace]:
    data = json.loads(files("kedge.experiments").joinpath("paper.json").read_text("utf-8"))
    tables = {raw["id"]: _table_from(raw) for raw in data["tables"]}
    faults = {raw["id"]: Fault(**raw) for raw in data["faults"]}
    return tables, faults, SimpleNamespace(**data["setting"])


def _table_from(raw: dict[str, Any]) -> PaperTable:
    columns = tuple(
        PaperColumn(
            group=group["name"],
            n_shot=group["n_shot"],
            n_way=column.get("n_way", raw["n_way"]),
            pool=column["pool"],
            n_classes=column["n_classes"],
            by_ways="n_way" in column,
        )
        for group in raw["groups"]
        for column in group["columns"]
    )
    rows = tuple(
        PaperRow(
            label=row["label"],
            dataset=row.get("dataset", raw["dataset"]),
            cells=tuple(
                PaperCell(**{**cell, "faults": tuple(cell["faults"])}) for cell in row["cells"]
            ),
        )
        for row in raw["rows"]
    )
    kept = ("id", "number", "place", "caption", "old_domain", "head", "backbone")
    fields = {name: raw[name] for name in kept}
    return PaperTable(**fields, note=raw.get("note"), columns=columns, rows=rows)
