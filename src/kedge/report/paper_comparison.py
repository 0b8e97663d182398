"""Our numbers beside the paper's, cell by cell, its known faults marked.

The settings are rarely the same, so that equal numbers are not to be expected: the caption says
what differs. What can be expected is that the methods come out in the same order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kedge.evaluation.results import Score
from kedge.experiments import metrics, paper
from kedge.experiments.paper import PaperTable
from kedge.experiments.records import (
    PoolInfo,
    Record,
    RecordSet,
)
from kedge.report import captions, queries
from kedge.report.cells import score_cell
from kedge.report.format import (
    NONE,
    counted,
    listing,
    number,
)
from kedge.report.queries import Difference
from kedge.report.shapes import (
    base_method,
    base_round,
    span,
)
from kedge.report.table import (
    Cell,
    Column,
    Row,
    Section,
    Table,
)

ROUNDS = {"round I": 1, "round II": 2}  # groups of columns that are rounds of one part
RANGE = "range"  # the row of the sweeps that is computed from those above it
DIGITS = 2  # as the paper prints its numbers


@dataclass(frozen=True)
class Place:
    """Where a collection holds the counterpart of a cell."""

    record: Record
    method: str
    round: int
    pool: PoolInfo

    @property
    def score(self) -> Score | None:
        return queries.score(self.record, self.method, self.round, self.pool.name)

    @property
    def best(self) -> bool:
        return self.method in queries.best(self.record, self.round, self.pool.name)

    def _by_seed(self) -> dict[int, float]:
        runs = self.record.select(self.method, self.round)
        return {run.seed: run.scores[self.pool.name].mean for run in runs}

    def minus(self, other: Place) -> Difference | None:
        """Paired within a record, by seed between two records that have enough of them; two
        trainings under one seed share no more than their classes, and count as independent."""
        if self.record is other.record and self.round == other.round:
            name = self.pool.name
            return queries.difference(self.record, self.method, other.method, self.round, name)
        a, b = self.score, other.score
        if a is None or b is None:
            return None
        if queries.intervals_over_seeds(self.record) and self.record.seeds == other.record.seeds:
            ours, theirs = self._by_seed(), other._by_seed()
            if ours.keys() != theirs.keys():
                return None
            return Difference(metrics.over_seeds([ours[seed] - theirs[seed] for seed in ours]))
        return Difference(Score(a.mean - b.mean, math.hypot(a.ci, b.ci), min(a.n, b.n)))


SAME = {"resnet12 of width 64": "ResNet-12", "conv4 of width 64": "Conv-4"}  # in the paper's words
Places = dict[tuple[paper.Row, paper.Column], Place]


def paper_comparison_table(collection: RecordSet, table: PaperTable) -> Table:
    """Each row twice: ours, and below it what the paper prints."""
    places, instead = find(collection, table), _stand_ins(collection, table)
    signs = (sign * n for n in itertools.count(1) for sign in paper.MARKS)
    marks = dict(zip(table.faults, signs, strict=False))
    sections = []
    sweep = table.rows[-1].label == RANGE
    for (dataset, _), rows in itertools.groupby(table.rows, lambda r: (r.dataset, r.competes)):
        lines = []
        for row in rows:
            ours = (_our_cell(places, table, row, column) for column in table.columns)
            theirs = (_their_cell(table, row, column, marks) for column in table.columns)
            lines.append(Row(row.label, tuple(ours)))
            lines.append(Row("paper", tuple(theirs), muted=True))
        title = f"{dataset}; ours: {instead[dataset]}" if dataset in instead else str(dataset)
        sections.append(Section(tuple(lines), title if len(table.datasets) > 1 else ""))
    counts = [agreement(places, table, [column]) for column in table.columns]
    if any(clear for _, clear in counts):
        cells = tuple(Cell(f"{same} of {clear}" if clear else NONE) for same, clear in counts)
        sections.append(Section((Row("same order", cells),)))
    known = paper.faults()
    return Table(
        key="beside",
        title=f"Beside the paper’s table {table.number}",
        stub="trained at" if sweep else "method",
        columns=tuple(_column(places, table, column) for column in table.columns),
        sections=tuple(sections),
        caption=_caption(collection, table, places),
        notes=tuple((mark, known[fault].sentence) for fault, mark in marks.items()),
    )


def find(collection: RecordSet, table: PaperTable) -> Places:
    """The counterpart of every cell that has one, in episodes of the very same shape."""
    places: Places = {}
    for row, column, _ in table.walk():
        record = _record(collection, table, row, column)
        if record is None:
            continue
        if column.by_ways:
            place = _place(record, base_method(record), base_round(record), column)
        else:
            round = ROUNDS.get(column.group, record.rounds[-1])
            place = _place(record, row.label, round, column)
        if place is not None:
            places[row, column] = place
    return places


def _record(
    collection: RecordSet, table: PaperTable, row: paper.Row, column: paper.Column
) -> Record | None:
    """Of the part that is named after the row, or after data set and group of columns."""
    if column.by_ways:
        return collection.parts.get(row.label)
    ours = _stand_ins(collection, table).get(row.dataset, row.dataset)
    names = (f"{ours} {column.group}", column.group, ours, "")
    return next((collection.parts[name] for name in names if name in collection.parts), None)


def _stand_ins(collection: RecordSet, table: PaperTable) -> dict[str | None, str]:
    """Data sets that stand for the paper's, in its order: parts named "drawings 1-shot", …"""
    groups = {column.group for column in table.columns}
    ends = [(part, group) for part in collection.parts for group in groups]
    found = _unique(p.removesuffix(f" {g}") for p, g in ends if p.endswith(f" {g}"))
    if set(found) & set(table.datasets) or len(found) != len(table.datasets):
        return {}
    return dict(zip(table.datasets, found, strict=True))


def _place(record: Record, method: str, round: int, column: paper.Column) -> Place | None:
    if not record.select(method, round):
        return None
    pools = record.pools(round)
    names = queries.UNSEEN if column.pool == "unseen" else (column.pool,)
    name = next((name for name in names if any(pool.pool == name for pool in pools)), "")
    wanted = (column.n_way, column.n_shot)
    for pool in (pool for pool in pools if pool.pool == name):
        shape = queries.tested(record, pool)
        if shape is not None and (shape.n_way, shape.n_shot) == wanted:
            return Place(record, method, round, pool)
    return None


def agreement(
    places: Places, table: PaperTable, columns: Sequence[paper.Column]
) -> tuple[int, int]:
    """Of the pairs of methods that are clearly apart in ours: as in the paper, and in all."""
    same = clear = 0
    for column in columns:
        at = table.columns.index(column)
        for a, b in itertools.combinations(table.rows, 2):
            one, other = places.get((a, column)), places.get((b, column))
            theirs = a.cells[at].mean - b.cells[at].mean
            if one is None or other is None or a.dataset != b.dataset or theirs == 0:
                continue
            if _doubtful(a.cells[at]) or _doubtful(b.cells[at]):
                continue
            ours = one.minus(other)
            if ours is not None and ours.clear:
                clear += 1
                same += ours.ahead == (theirs > 0)
    return same, clear


def _doubtful(cell: paper.Cell) -> bool:
    """Whether the paper prints another value elsewhere, or has put this one in the wrong place."""
    known = paper.faults()
    return any(known[fault].kind in ("value", "columns") for fault in cell.faults)


def order_sentence(collection: RecordSet, table: PaperTable) -> str:
    """The result of the comparison in plain words."""
    places = find(collection, table)
    same, clear = agreement(places, table, table.columns)
    what = "training shapes" if table.rows[-1].label == RANGE else "methods"
    if not clear:
        return (
            f"No two {what} are clearly apart here, so nothing can be said about the order in "
            f"the paper’s table {table.number}."
        )
    return (
        f"Of the {counted(clear, 'pairs')} of {what} that are clearly apart here, {same} "
        f"{'is' if same == 1 else 'are'} in the same order as in the paper’s table {table.number}."
    )


# ── cells, headings and caption ──────────────────────────────────────────────────────────────


def _our_cell(places: Places, table: PaperTable, row: paper.Row, column: paper.Column) -> Cell:
    if row.label == RANGE:
        return Cell(number(_our_range(places, table, column), digits=DIGITS))
    place = places.get((row, column))
    if place is None:
        return Cell(NONE, muted=True)
    return score_cell(place.score, strong=row.competes and place.best, digits=DIGITS)


def _our_range(places: Places, table: PaperTable, column: paper.Column) -> float:
    """Over all training shapes of the paper, or not at all: fewer would give less."""
    found = [places.get((row, column)) for row in table.rows if row.label != RANGE]
    scores = [place.score for place in found if place is not None]
    means = [score.mean for score in scores if score is not None]
    return span(means) if len(means) == len(found) else math.nan


def _their_cell(
    table: PaperTable, row: paper.Row, column: paper.Column, marks: dict[str, str]
) -> Cell:
    cell = row.cells[table.columns.index(column)]
    value, _, margin = str(cell).partition(" ±")
    best = table.is_best(row, column) and not column.by_ways
    return Cell(value, margin, best, note="".join(marks[f] for f in marks if f in cell.faults))


def _column(places: Places, table: PaperTable, column: paper.Column) -> Column:
    if column.by_ways:
        return Column(f"{column.n_way}-way", column.group)
    sizes = {place.pool.n_classes for (_, c), place in places.items() if c == column}
    note = ""
    if len(sizes) == 1 and column.n_classes is not None:
        ours, theirs = sizes.pop(), column.n_classes
        note = counted(ours, "classes") if ours == theirs else f"{ours} / {theirs} classes"
    kind, _, part = paper.POOLS[column.pool].partition(",\n")  # "unseen", "old domain"
    if part:
        return Column(part, f"{column.group}, {kind}", note)
    return Column(kind, column.group, note)


def _caption(collection: RecordSet, table: PaperTable, places: Places) -> str:
    sweep = table.rows[-1].label == RANGE
    records = list({id(p.record): p.record for p in places.values()}.values())
    parts = [
        f"Accuracy in per cent ± 95% interval; below each of our numbers the one that the paper "
        f"prints in its table {table.number} ({table.place})."
    ]
    if not records:
        parts.append("None of its cells has a counterpart here.")
    else:
        parts.append(_differs(records, table))
        if any("/" in _column(places, table, column).note for column in table.columns):
            parts.append("Numbers of classes: ours / the paper’s.")
        what = "training shapes" if sweep else "methods"
        parts.append(
            f"Same order: of all pairs of {what} whose difference is clear of zero in ours, those "
            "that the paper puts in the same order; cells whose value in the paper is in doubt do "
            "not count. " + order_sentence(collection, table)
        )
    if not sweep:
        parts.append(
            "Bold: in ours as in the main tables, in the paper’s the best incremental method of "
            "each column, computed and not as printed."
        )
    parts += [table.note] if table.note else []
    return " ".join(parts)


def _differs(records: Sequence[Record], table: PaperTable) -> str:
    """What is not the same as in the paper, so that nobody takes the two for one experiment."""
    setting = paper.setting()
    about = [f"{record.sentence.removesuffix('.')}." for record in records]
    told = [f"Ours: {' '.join(_unique(about))}"]
    pairs = (
        ("Backbone", [SAME.get(b, b) for b in map(captions.backbone, records)], table.backbone),
        (
            "Training in each round",
            [captions.length(r.config["schedule"]) for r in records if "schedule" in r.config],
            f"{setting.epochs} epochs of {setting.episodes_per_epoch} episodes",
        ),
        ("Head", [r.config["head"]["head"] for r in records if "head" in r.config], table.head),
    )
    for what, ours, theirs in pairs:
        names = [name for name in _unique(ours) if name]
        if names and names != [theirs]:
            told.append(f"{what}: ours {listing(names)}, the paper’s {theirs}.")
    seeds = sorted({len(record.seeds) for record in records})
    over = listing([str(n) for n in seeds])
    if seeds == [1]:
        told.append("Ours is one seed; the paper names no number of seeds.")
    else:
        told.append(f"Ours are means over {over} seeds; the paper names no number of seeds.")
    if any(queries.intervals_over_seeds(record) for record in records):
        told.append("Our intervals are over seeds, the paper’s over episodes.")
    return " ".join(told)


def _unique(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))
