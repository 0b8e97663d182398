"""The numbers of the paper that kedge implements, so that a result can be laid beside them.

Liu, Majumder, Achille, Ravichandran, Bhotika and Soatto, "Incremental Meta-Learning via Indirect
Discriminant Alignment". `paper.json` holds every table of the final version as printed, wrong
bold marks and all. Some cells contradict others, the text or arithmetic: those name their faults,
because a reproduction that misses a wrong number has not failed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

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
HEADS = ("prototype", "ecm")
INCREMENTAL = ("FT", "DFA", "EIML", "IDA")
KINDS = ("value", "columns", "interval", "bold", "claim")
MARKS = "†‡§¶‖#"


def _check(holds: bool, sentence: str) -> None:
    """The file ships with the package, so that a fault in it is a bug and not a user's error."""
    if not holds:
        raise ValueError(f"paper.json: {sentence}")


@dataclass(frozen=True)
class Cell:
    """An accuracy in per cent as the paper prints it, right or wrong."""

    mean: float
    ci: float | None  # half of the 95% interval; None where the paper prints none
    bold: bool  # the paper's mark, not ours: see `PaperTable.is_best`
    faults: tuple[str, ...]  # of this very cell; a cell can have several

    def __post_init__(self) -> None:
        _check(0 < self.mean < 100, f"{self.mean} is no accuracy in per cent.")
        _check(self.ci is None or 0 < self.ci < 1, f"±{self.ci} is no interval.")
        _check(len(set(self.faults)) == len(self.faults), f"{self.faults} repeats a fault.")

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
    by_ways: bool  # the sweeps tell their columns apart by ways, all others by pool

    def __post_init__(self) -> None:
        _check(self.pool in POOLS, f"{self.pool} is no pool.")
        _check(self.n_shot >= 1 and self.n_way >= 2, f"{self.key}: no such episode.")
        enough = self.n_classes is None or self.n_classes >= self.n_way
        _check(enough, f"{self.key}: {self.n_classes} classes are too few.")

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

    def __post_init__(self) -> None:
        known = self.label in (*INCREMENTAL, "NU", "PAR", "range")
        _check(known or bool(re.fullmatch(r"\d-shot \d+-way", self.label)), f"who is {self.label}?")

    @property
    def competes(self) -> bool:
        """NU does not learn and PAR sees everything, so that neither can win."""
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

    def __post_init__(self) -> None:
        _check(self.head in HEADS, f"{self.id}: {self.head} is no head.")
        _check(self.old_domain in (None, "natural", "man-made"), f"{self.id}: which domain?")
        keys = [column.key for column in self.columns]
        _check(len(set(keys)) == len(keys), f"{self.id}: two columns have the same key.")
        names = [(row.dataset, row.label) for row in self.rows]
        _check(len(set(names)) == len(names), f"{self.id}: two rows have the same name.")
        ragged = [row.label for row in self.rows if len(row.cells) != len(keys)]
        _check(not ragged, f"{self.id}: rows {ragged} do not have {len(keys)} cells.")

    @property
    def datasets(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row.dataset for row in self.rows if row.dataset))

    @property
    def faults(self) -> tuple[str, ...]:
        """In reading order, which is the order of their marks."""
        return tuple(dict.fromkeys(f for _, _, cell in self.walk() for f in cell.faults))

    def walk(self) -> Iterator[tuple[Row, Column, Cell]]:
        for row in self.rows:
            for column, cell in zip(self.columns, row.cells, strict=True):
                yield row, column, cell

    def cell(self, label: str, key: str, dataset: str | None = None) -> Cell:
        """`cell("IDA", "5-shot unseen")`; the data set is needed where a table has several."""
        for row, column, cell in self.walk():
            if (row.label, column.key) == (label, key) and dataset in (None, row.dataset):
                return cell
        raise KeyError(f"{self.id} has no cell ({label}, {key}, {dataset})")

    def is_best(self, row: Row, column: Column) -> bool:
        """Computed, because some of the paper's own bold marks are wrong."""
        at = self.columns.index(column)
        rivals = [r.cells[at].mean for r in self.rows if r.competes and r.dataset == row.dataset]
        return row.competes and row.cells[at].mean == max(rivals)


class Place(NamedTuple):
    """Where a cell stands."""

    table: str
    dataset: str | None
    row: str
    column: str


@dataclass(frozen=True)
class Fault:
    """Something in the paper that cannot be right, with its proof."""

    id: str
    kind: str  # what is wrong: a value, two columns, an interval, a bold mark, a claim of the text
    sentence: str
    cells: tuple[Place, ...]

    def __post_init__(self) -> None:
        _check(self.kind in KINDS, f"{self.kind} is no kind of fault.")
        _check(self.sentence.endswith("."), f"{self.id}: a fault is told in one sentence.")
        _check(bool(self.cells), f"{self.id} touches no cell.")


@dataclass(frozen=True)
class Setting:
    """The constants that the paper states; the sweeps of ways and shots are in the tables."""

    backbone: str
    image_size: int
    dropblock_keep: float
    n_way: int
    n_shots: tuple[int, ...]
    n_query: int
    epochs: int
    episodes_per_epoch: int
    optimiser: str
    lr: float
    lr_factor: float
    patience: int
    temperature: float
    lam: float  # λ, the weight of the alignment
    lam_values: tuple[float, ...]  # its sweep: miniImageNet, prototypes, 5-way 5-shot
    exemplars: int
    exemplar_values: tuple[int, ...]  # likewise
    evaluation_episodes: int
    confidence: float

    def __post_init__(self) -> None:
        _check(self.lam in self.lam_values, "λ is not among the values of its sweep.")
        _check(self.exemplars in self.exemplar_values, "the exemplars are not in their sweep.")


def tables() -> dict[str, PaperTable]:
    """All tables of the final paper, in its order, by the name that a user types."""
    return dict(_paper()[0])


def faults() -> dict[str, Fault]:
    return dict(_paper()[1])


def setting() -> Setting:
    return _paper()[2]


def table(name: str) -> PaperTable:
    """A table by its id, or by the number that it has in the paper."""
    known = tables()
    wanted = name.strip().lower()
    for candidate in known.values():
        if wanted in (candidate.id, str(candidate.number)):
            return candidate
    # What a user has typed is more often the start of a name than a misspelling of one.
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
        # Free to wrap: in a narrow terminal the interval goes below its mean, and nothing is lost.
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
    """What there is, for a user who does not know the names."""
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
def _paper() -> tuple[dict[str, PaperTable], dict[str, Fault], Setting]:
    data = json.loads(files("kedge").joinpath("paper.json").read_text(encoding="utf-8"))
    known = {raw["id"]: _table_from(raw) for raw in data["tables"]}
    _check(len(known) == len(data["tables"]), "two tables have the same id.")
    touched: dict[str, list[Place]] = {raw["id"]: [] for raw in data["faults"]}
    for each in known.values():
        for row, column, cell in each.walk():
            for fault in cell.faults:
                _check(fault in touched, f"{each.id} names an unknown fault {fault}.")
                touched[fault].append(Place(each.id, row.dataset, row.label, column.key))
    found = {raw["id"]: Fault(**raw, cells=tuple(touched[raw["id"]])) for raw in data["faults"]}
    constants: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in data["setting"].items()
    }
    return known, found, Setting(**constants)


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
