"""The tables of the paper that kedge implements, for comparison with our own results.

Liu, Majumder, Achille, Ravichandran, Bhotika and Soatto, "Incremental Meta-Learning via Indirect
Discriminant Alignment". `paper.json` holds every table of the final version as printed. Cells that
contradict other cells, the text or arithmetic name their faults.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from types import SimpleNamespace
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from kedge.errors import KedgeError

POOLS = {
    "old": "old",
    "new": "new",
    "unseen": "unseen",
    "unseen_old_domain": "unseen,\nold domain",
    "unseen_new_domain": "unseen,\nnew domain",
    "unseen_both": "unseen,\nboth domains",
}
MARKS = "†‡§¶‖#"


@dataclass(frozen=True)
class Cell:
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
class Column:
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
class Row:
    """One method; in the sweeps one training shape ("5-shot 10-way"), or the range over them."""

    label: str
    dataset: str | None  # None where the paper does not say
    cells: tuple[Cell, ...]

    @property
    def competes(self) -> bool:
        """Whether it can be best: NU does not learn, and PAR sees everything."""
        return self.label not in ("NU", "PAR", "range")


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
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    @property
    def datasets(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row.dataset for row in self.rows if row.dataset))

    @property
    def faults(self) -> tuple[str, ...]:
        """Ids of the faults of all cells, in reading order."""
        return tuple(dict.fromkeys(f for _, _, cell in self.walk() for f in cell.faults))

    def walk(self) -> Iterator[tuple[Row, Column, Cell]]:
        for row in self.rows:
            for column, cell in zip(self.columns, row.cells, strict=True):
                yield row, column, cell

    def cell(self, label: str, key: str, dataset: str | None = None) -> Cell:
        """`cell("IDA", "5-shot unseen")`; the dataset is needed where a table has several."""
        for row, column, cell in self.walk():
            if (row.label, column.key) == (label, key) and dataset in (None, row.dataset):
                return cell
        raise KeyError(f"{self.id} has no cell ({label}, {key}, {dataset})")

    def is_best(self, row: Row, column: Column) -> bool:
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
    known = tables()
    wanted = name.strip().lower()
    for candidate in known.values():
        if wanted in (candidate.id, str(candidate.number)):
            return candidate
    # The start of a name is more likely than a misspelling.
    close = [each for each in known if wanted and each.startswith(wanted)]
    close = close or get_close_matches(wanted, known, n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(close)}?" if close else f"choose from {', '.join(known)}."
    raise KedgeError(f"The paper has no table named {name!r}: {hint}")


def render(table: PaperTable) -> Table:
    """The table for a terminal: best values bold, faults marked and explained below."""
    marks = {fault: _mark(i) for i, fault in enumerate(table.faults)}
    out = Table(
        title=Text(f"Table {table.number} ({table.place}), {table.id}\n{table.caption}"),
        title_style="",
        title_justify="left",
        caption=_footnotes(table, marks),
        caption_style="",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        show_edge=False,
    )
    out.add_column("trained at" if table.rows[-1].label == "range" else "method", no_wrap=True)
    for column in table.columns:
        # May wrap: in a narrow terminal the interval goes below its mean.
        out.add_column(_heading(column))
    before: Row | None = None
    for row in table.rows:
        if before is not None and (row.competes, row.dataset) != (before.competes, before.dataset):
            out.add_section()
        if len(table.datasets) > 1 and (before is None or before.dataset != row.dataset):
            out.add_row(Text(str(row.dataset), style="italic"))
        out.add_row(row.label, *(_entry(table, row, column, marks) for column in table.columns))
        before = row
    return out


def overview() -> Table:
    """A list of all tables."""
    out = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for name in ("table", "name", "in the paper", "what it shows", "faults"):
        out.add_column(name, no_wrap=name != "what it shows")
    for each in tables().values():
        count = str(len(each.faults)) if each.faults else "-"
        out.add_row(str(each.number), each.id, each.place, each.caption, count)
    return out


def _mark(i: int) -> str:
    return MARKS[i % len(MARKS)] * (i // len(MARKS) + 1)


def _heading(column: Column) -> str:
    if column.by_ways:
        return f"{column.group}\n{column.n_way}-way"
    count = "" if column.n_classes is None else f" ({column.n_classes})"
    return f"{column.group}\n{POOLS[column.pool]}{count}"


def _entry(table: PaperTable, row: Row, column: Column, marks: dict[str, str]) -> Text:
    cell = row.cells[table.columns.index(column)]
    text = Text().append(str(cell), style="bold" if table.is_best(row, column) else "")
    return text.append("".join(m for f, m in marks.items() if f in cell.faults), style="yellow")


def _footnotes(table: PaperTable, marks: dict[str, str]) -> Text:
    known = faults()
    lines = [f"{mark} {known[fault].sentence}" for fault, mark in marks.items()]
    best = "training shape" if table.rows[-1].label == "range" else "incremental method"
    lines.append(f"Bold: the best {best} of each column, computed and not as printed.")
    lines += [table.note] if table.note else []
    return Text("\n".join(lines))


@cache
def _paper() -> tuple[dict[str, PaperTable], dict[str, Fault], SimpleNamespace]:
    data = json.loads(files("kedge.experiments").joinpath("paper.json").read_text("utf-8"))
    tables = {raw["id"]: _table_from(raw) for raw in data["tables"]}
    faults = {raw["id"]: Fault(**raw) for raw in data["faults"]}
    return tables, faults, SimpleNamespace(**data["setting"])


def _table_from(raw: dict[str, Any]) -> PaperTable:
    columns = tuple(
        Column(
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
        Row(
            label=row["label"],
            dataset=row.get("dataset", raw["dataset"]),
            cells=tuple(Cell(**{**cell, "faults": tuple(cell["faults"])}) for cell in row["cells"]),
        )
        for row in raw["rows"]
    )
    kept = ("id", "number", "place", "caption", "old_domain", "head", "backbone")
    fields = {name: raw[name] for name in kept}
    return PaperTable(**fields, note=raw.get("note"), columns=columns, rows=rows)
