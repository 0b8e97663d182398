"""Our numbers beside the paper's, cell by cell, with the paper's known faults marked.

The settings are rarely the same (the caption lists what differs), so equal numbers are not
expected, but the methods should come out in the same order.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from kedge.experiments import paper
from kedge.experiments.paper import RANGE, PaperColumn, PaperRow, PaperTable
from kedge.experiments.records import EARLIER_METHODS, Record, RecordSet
from kedge.report import captions, queries
from kedge.report.cells import score_cell
from kedge.report.format import NONE, counted, listing, number
from kedge.report.queries import Measurement
from kedge.report.table import Cell, Column, Row, Section, Table

ROUNDS = {"round I": 1, "round II": 2}  # groups of columns that are rounds of one part
DIGITS = 2  # as in the paper
PAPER_NAMES = {"resnet12 of width 64": "ResNet-12", "conv4 of width 64": "Conv-4"}

Counterparts = dict[tuple[PaperRow, PaperColumn], Measurement]


def paper_comparison_table(record_set: RecordSet, table: PaperTable) -> Table:
    """Each row of the paper's table twice: our values, and below them the paper's."""
    ours, substitutes = counterparts(record_set, table), _substitutes(record_set, table)
    sections = []
    for (dataset, _), group in itertools.groupby(table.rows, lambda r: (r.dataset, r.competes)):
        rows = []
        for row in group:
            rows.append(
                Row(row.label, tuple(_our_cell(ours, table, row, c) for c in table.columns))
            )
            paper_cells = (
                _paper_cell(table, row, column, not column.by_ways) for column in table.columns
            )
            rows.append(Row("paper", tuple(paper_cells), muted=True))
        title = f"{dataset}; ours: {substitutes[dataset]}" if dataset in substitutes else dataset
        sections.append(Section(tuple(rows), str(title) if len(table.datasets) > 1 else ""))
    counts = [agreement(ours, table, [column]) for column in table.columns]
    if any(clear for _, clear in counts):
        cells = tuple(Cell(f"{same} of {clear}" if clear else NONE) for same, clear in counts)
        sections.append(Section((Row("same order", cells),)))
    return Table(
        key="paper",
        title=f"Comparison with table {table.number} of the paper",
        stub="trained at" if table.is_sweep else "method",
        columns=tuple(_column(ours, column) for column in table.columns),
        sections=tuple(sections),
        caption=_caption(ours, table),
        notes=_fault_notes(table),
    )


def paper_table(table: PaperTable) -> Table:
    """The paper's table alone; its best values are computed, since some bold marks are wrong."""
    sections = []
    for (dataset, _), group in itertools.groupby(table.rows, lambda r: (r.dataset, r.competes)):
        rows = tuple(
            Row(row.label, tuple(_paper_cell(table, row, c, True) for c in table.columns))
            for row in group
        )
        sections.append(Section(rows, str(dataset) if len(table.datasets) > 1 else ""))
    best = "training shape" if table.is_sweep else "incremental method"
    caption = f"Bold: the best {best} of each column, computed and not as printed."
    return Table(
        key="paper",
        title=f"Table {table.number} ({table.place}), {table.id}: {table.caption}",
        stub="trained at" if table.is_sweep else "method",
        columns=tuple(_column({}, column) for column in table.columns),
        sections=tuple(sections),
        caption=f"{caption} {table.note or ''}".strip(),
        notes=_fault_notes(table),
    )


def _fault_notes(table: PaperTable) -> tuple[tuple[str, str], ...]:
    return tuple((mark, paper.faults()[id].sentence) for id, mark in table.faults.items())


def counterparts(record_set: RecordSet, table: PaperTable) -> Counterparts:
    """Our measurement for every cell that has one, in test episodes of the same shape."""
    pairs = {(r, c): _counterpart(record_set, table, r, c) for r, c, _ in table.walk()}
    return {key: measurement for key, measurement in pairs.items() if measurement is not None}


def _counterpart(
    record_set: RecordSet, table: PaperTable, row: PaperRow, column: PaperColumn
) -> Measurement | None:
    """From the part named after the row, or after the data set and the group of columns."""
    dataset = _substitutes(record_set, table).get(row.dataset, row.dataset)
    names = [f"{dataset} {column.group}", column.group, str(dataset), ""]
    names = [row.label] if column.by_ways else names
    record = next((record_set.parts[name] for name in names if name in record_set.parts), None)
    if record is None:
        return None
    method, round = row.label, ROUNDS.get(column.group, record.rounds[-1])
    if column.by_ways:
        method, round = queries.base_method(record), queries.base_round(record)
    if not record.select(method, round):
        # The paper does not say how it reduces DFA's distance, so an earlier default will do.
        method = EARLIER_METHODS.get(method, method)
        if not record.select(method, round):
            return None
    pools = record.pools(round)
    pool_names = queries.UNSEEN if column.pool == "unseen" else (column.pool,)
    name = next((name for name in pool_names if any(pool.pool == name for pool in pools)), "")
    for pool in (pool for pool in pools if pool.pool == name):
        shape = queries.eval_shape(record, pool)
        if shape is not None and (shape.n_way, shape.n_shot) == (column.n_way, column.n_shot):
            return Measurement(record, method, round, pool)
    return None


def _substitutes(record_set: RecordSet, table: PaperTable) -> dict[str | None, str]:
    """Our data sets for the paper's, in its order, from parts such as "drawings 1-shot"."""
    groups = {column.group for column in table.columns}
    ends = [(part, group) for part in record_set.parts for group in groups]
    ours = dict.fromkeys(p.removesuffix(f" {g}") for p, g in ends if p.endswith(f" {g}"))
    if ours.keys() & set(table.datasets) or len(ours) != len(table.datasets):
        return {}
    return dict(zip(table.datasets, ours, strict=True))


def agreement(
    ours: Counterparts, table: PaperTable, columns: Sequence[PaperColumn]
) -> tuple[int, int]:
    """How many pairs of rows clearly differ in ours: those in the paper's order, and all."""
    same = clear = 0
    for column in columns:
        at = table.columns.index(column)
        for a, b in itertools.combinations(table.rows, 2):
            one, other = ours.get((a, column)), ours.get((b, column))
            difference = a.cells[at].mean - b.cells[at].mean
            if one is None or other is None or a.dataset != b.dataset or difference == 0:
                continue
            # Doubtful: the paper prints another value elsewhere, or this one in the wrong column.
            kinds = {paper.faults()[fault].kind for r in (a, b) for fault in r.cells[at].faults}
            if kinds & {"value", "columns"}:
                continue
            our_difference = one.minus(other)
            if our_difference is not None and (sign := queries.sign(our_difference)):
                clear += 1
                same += (sign > 0) == (difference > 0)
    return same, clear


def order_sentence(ours: Counterparts, table: PaperTable) -> str:
    """How many pairs of methods are in the paper's order, as a sentence."""
    same, clear = agreement(ours, table, table.columns)
    what = "training shapes" if table.is_sweep else "methods"
    return (
        f"{same} of the {counted(clear, 'pairs')} of {what} that differ clearly in ours are in the "
        f"order of the paper’s table {table.number} (its doubtful cells do not count)."
    )


def _our_cell(ours: Counterparts, table: PaperTable, row: PaperRow, column: PaperColumn) -> Cell:
    if row.label == RANGE:
        cells = [ours.get((r, column)) for r in table.rows if r.label != RANGE]
        means = [m.score.mean for m in cells if m is not None and m.score is not None]
        complete = means and len(means) == len(cells)  # fewer shapes would have a smaller range
        return Cell(number(max(means) - min(means), digits=DIGITS) if complete else NONE)
    measurement = ours.get((row, column))
    if measurement is None:
        return Cell(NONE, muted=True)
    best = queries.best(measurement.record, measurement.round, measurement.pool.name)
    strong = row.competes and measurement.method in best
    return score_cell(measurement.score, strong=strong, digits=DIGITS)


def _paper_cell(table: PaperTable, row: PaperRow, column: PaperColumn, bold: bool) -> Cell:
    cell = row.cells[table.columns.index(column)]
    value, _, margin = str(cell).partition(" ±")
    marks = "".join(mark for fault, mark in table.faults.items() if fault in cell.faults)
    return Cell(value, margin, bold and table.is_best(row, column), note=marks)


def _column(ours: Counterparts, column: PaperColumn) -> Column:
    if column.by_ways:
        return Column(f"{column.n_way}-way", column.group)
    sizes = {measurement.pool.n_classes for (_, c), measurement in ours.items() if c == column}
    note = "" if ours or column.n_classes is None else counted(column.n_classes, "classes")
    if len(sizes) == 1 and column.n_classes is not None:
        size = sizes.pop()
        same = size == column.n_classes
        note = counted(size, "classes") if same else f"{size} / {column.n_classes} classes"
    kind, _, part = paper.POOLS[column.pool].partition(", ")  # "unseen", "old domain"
    if part:
        return Column(part, f"{column.group}, {kind}", note)
    return Column(kind, column.group, note)


def _caption(ours: Counterparts, table: PaperTable) -> str:
    records = list({id(m.record): m.record for m in ours.values()}.values())
    sentences = [f"Accuracy in % ± 95% interval, ours above the paper’s ({table.place})."]
    if not records:
        sentences.append("None of its cells has a counterpart here.")
    if any("/" in _column(ours, column).note for column in table.columns):
        sentences.append("Numbers of classes: ours / the paper’s.")
    sentences += _differing_settings(records, table) if records else []
    sentences.append(f"Same order: {order_sentence(ours, table)}")
    if not table.is_sweep:
        sentences.append("Bold: best incremental method, computed for the paper’s values too.")
    return " ".join([*sentences, *([table.note] if table.note else [])])


def _differing_settings(records: Sequence[Record], table: PaperTable) -> list[str]:
    """Sentences on what differs between our runs and the paper's."""
    setting, configs = paper.setting(), [record.config for record in records]
    backbones = [captions.part_name(record, "backbone") for record in records]
    schedules = [captions.schedule_length(c["schedule"]) for c in configs if "schedule" in c]
    pairs = {
        "Backbone": ([PAPER_NAMES.get(b, b) for b in backbones], table.backbone),
        "Head": ([captions.part_name(record, "head") for record in records], table.head),
        "Training in each round": (
            schedules, f"{setting.epochs} epochs of {setting.episodes_per_epoch} episodes"
        ),
        "Seeds": ([str(len(record.seeds)) for record in records], "not stated"),
    }  # fmt: skip
    sentences = []
    for what, (values, theirs) in pairs.items():
        ours = [value for value in dict.fromkeys(values) if value]
        if ours and ours != [theirs]:
            sentences.append(f"{what}: ours {listing(ours)}, the paper’s {theirs}.")
    return sentences
