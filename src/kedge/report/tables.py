"""The tables of a report, from a record: result, differences, shapes, rounds, seeds and cost."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from kedge.experiments import metrics
from kedge.experiments.records import Record, Run
from kedge.report import captions, queries
from kedge.report.cells import (
    class_count,
    difference_cell,
    measure_cell,
    pool_columns,
    score_cell,
    score_row,
)
from kedge.report.format import (
    NONE,
    duration,
    number,
    place,
    size,
)
from kedge.report.shapes import shapes_table
from kedge.report.table import (
    Cell,
    Column,
    Row,
    Section,
    Table,
)

COST = (Column("training time"), Column("peak memory"), Column("kept per old class"))


def all_tables(record: Record) -> tuple[Table, ...]:
    """In the order in which they are read: the result first, then what it rests on."""
    final, *earlier = reversed(queries.incremental_rounds(record))
    tables = [accuracy_table(record, final), differences_table(record), shapes_table(record)]
    tables.append(metrics_table(record))
    tables += [accuracy_table(record, round) for round in earlier]
    tables += [matrix_table(record), seeds_table(record)]
    tables += [cost_table(record), cost_rounds_table(record)]
    return tuple(table for table in tables if table is not None)


def accuracy_table(record: Record, round: int) -> Table:
    """The main table: methods by pools, the best of each column marked."""
    pools = queries.table_pools(record, round)
    winners = {pool.name: queries.best(record, round, pool.name) for pool in pools}
    methods = queries.methods_after(record, round)
    rows = {method: score_row(record, method, round, winners) for method in methods}
    parts = (
        [rows[m] for m in methods if queries.family(m) == queries.BASE],
        [rows[m] for m in methods if not queries.is_reference(m)],
        [rows[m] for m in methods if queries.family(m) == queries.PARAGON],
    )
    last = round == queries.final_round(record)
    return Table(
        key="accuracy" if last else f"accuracy-round-{round}",
        title=captions.accuracy_title(record, round),
        stub="method",
        columns=pool_columns(pools),
        sections=tuple(Section(tuple(part)) for part in parts if part),
        caption=captions.accuracy(record, round, marks=any(winners.values())),
    )


def differences_table(record: Record, leads: Sequence[str] = ()) -> Table | None:
    """IDA minus each other method. Variants are held against plain IDA, not against each other;
    where only some are asked for, these against all others."""
    round = queries.final_round(record)
    pools = queries.table_pools(record, round)
    leads = leads or queries.leads(record)
    sections = []
    for lead in leads:
        rows = tuple(
            Row(
                f"− {other}" if len(leads) > 1 else f"{lead} − {other}",
                tuple(
                    difference_cell(queries.difference(record, lead, other, round, pool.name))
                    for pool in pools
                ),
            )
            for other in queries.methods_after(record, round)
            if other != lead and (other not in leads[1:])
        )
        if rows:
            sections.append(Section(rows, lead if len(leads) > 1 else ""))
    if not sections:
        return None
    return Table(
        key="differences",
        title=f"{leads[0]} against the others, on the same episodes",
        stub="difference",
        columns=pool_columns(pools),
        sections=tuple(sections),
        caption=captions.differences(record),
    )


def metrics_table(record: Record) -> Table | None:
    """Each method's rounds in five numbers; in four without both ends of the gap."""
    round = queries.final_round(record)
    unseen = queries.unseen_pools(record, round)
    methods = queries.methods_after(record, round)
    if round == 0 or len(methods) < 2:
        return None
    pool = next((p for p in unseen if p.first_shape), None)
    ends = pool is not None and {metrics.LOWER, metrics.UPPER} <= set(methods)
    rows = []
    for method in methods:
        average = metrics.by_seed(record, method, round, metrics.average_accuracy)
        lost = metrics.by_seed(record, method, round, metrics.forgetting)
        back = metrics.by_seed(record, method, round, metrics.backward_transfer)
        gap = metrics.gap_closed(record, method, round, pool.name) if pool else None
        drift = metrics.relative_drift(record, method, round)
        cells = (
            measure_cell(average),
            measure_cell(lost, signs=True),
            measure_cell(back, signs=True),
            *([measure_cell(gap, factor=100, digits=0, unit="%")] if ends else []),
            measure_cell(drift, digits=2),
        )
        rows.append(Row(method, cells, muted=queries.is_reference(method)))
    return Table(
        key="metrics",
        title="The rounds in numbers",
        stub="method",
        columns=(
            Column("accuracy", note="average"),
            Column("forgetting", note="points"),
            Column("backward transfer", note="points"),
            *([Column("gap closed", note="on unseen")] if ends else []),
            Column("anchor drift", note="relative"),
        ),
        sections=(Section(tuple(rows)),),
        caption=captions.metrics(record, place(pool) if pool else "unseen classes", gap=ends),
    )


def matrix_table(record: Record) -> Table | None:
    """a[t][i]: after round t, on the classes that round i brought; only with several rounds."""
    pools = queries.matrix_pools(record)
    if len(queries.incremental_rounds(record)) < 2 or not pools:
        return None
    sections = []
    for method in queries.methods_after(record, queries.final_round(record)):
        rows = tuple(
            Row(
                f"after round {round}",
                tuple(
                    score_cell(
                        queries.score(record, method, round, pool.name),
                        muted=not queries.has_come(pool, round),
                    )
                    for pool in pools
                ),
            )
            for round in record.rounds
            if record.select(method, round)
        )
        sections.append(Section(rows, method))
    return Table(
        key="matrix",
        title="Every round’s classes after every round",
        stub="method",
        columns=tuple(
            Column(pool.name.replace("_", " "), "classes of", class_count(pool)) for pool in pools
        ),
        sections=tuple(sections),
        caption=captions.MATRIX,
    )


def seeds_table(record: Record) -> Table | None:
    """Each seed by itself, and how much the seeds disagree; only with several seeds."""
    if len(record.seeds) < 2:
        return None
    round = queries.final_round(record)
    pools = queries.table_pools(record, round)
    sections = []
    for method in queries.methods_after(record, round):
        runs = sorted(record.select(method, round), key=lambda run: run.seed)
        rows = [
            Row(f"seed {run.seed}", tuple(score_cell(run.scores.get(p.name)) for p in pools))
            for run in runs
        ]
        spread = tuple(Cell(_spread(runs, pool.name)) for pool in pools)
        sections.append(Section((*rows, Row("standard deviation", spread)), method))
    return Table(
        key="seeds",
        title="Each seed by itself",
        stub="method",
        columns=pool_columns(pools),
        sections=tuple(sections),
        caption=captions.SEEDS,
    )


def cost_table(record: Record) -> Table:
    """What each method takes: time, memory, and what it must keep of old classes."""
    rounds = queries.incremental_rounds(record)
    rows = []
    for method in queries.methods_after(record, rounds[-1]):
        runs = [run for round in rounds for run in record.select(method, round)]
        seeds = len({run.seed for run in runs})
        trained = sum(run.seconds for run in runs if run.history)
        cells = (
            Cell(duration(trained / seeds)),
            Cell(size(max(run.peak_memory_mb for run in runs) * 2**20)),
            Cell(size(record.select(method, rounds[-1])[0].kept_bytes_per_class)),
        )
        rows.append(Row(method, cells, muted=queries.is_reference(method)))
    return Table(
        key="cost",
        title="What it costs",
        stub="method",
        columns=COST,
        sections=(Section(tuple(rows)),),
        caption=captions.cost(record),
    )


def cost_rounds_table(record: Record) -> Table | None:
    """The same round by round; only with several rounds."""
    rounds = queries.incremental_rounds(record)
    if len(rounds) < 2:
        return None
    sections = []
    for method in queries.methods_after(record, rounds[-1]):
        found = [(round, metrics.cost(record, method, round)) for round in rounds]
        rows = tuple(
            Row(
                f"round {round}",
                (
                    Cell(duration(cost.seconds)),
                    Cell(size(cost.peak_memory_mb * 2**20)),
                    Cell(size(cost.kept_bytes_per_class)),
                ),
            )
            for round, cost in found
            if cost is not None
        )
        sections.append(Section(rows, method))
    return Table(
        key="cost-rounds",
        title="What each round costs",
        stub="method",
        columns=COST,
        sections=tuple(sections),
        caption=captions.COST_ROUNDS,
    )


def parts_table(parts: Mapping[str, Record]) -> Table | None:
    """Part beside part, method by method; only if all were tested on the same pools."""
    finals = {part: queries.final_round(record) for part, record in parts.items()}
    pools = {part: queries.table_pools(record, finals[part]) for part, record in parts.items()}
    first = next(iter(pools.values()))
    if len(parts) < 2 or any(each != first for each in pools.values()):
        return None
    methods = dict.fromkeys(
        m for part, record in parts.items() for m in queries.methods_after(record, finals[part])
    )
    sections = []
    for method in methods:
        rows = []
        for part, record in parts.items():
            found = [queries.score(record, method, finals[part], pool.name) for pool in first]
            rows.append(Row(part, tuple(map(score_cell, found))))
        sections.append(Section(tuple(rows), method))
    return Table(
        key="parts",
        title="Part beside part",
        stub="method",
        columns=pool_columns(first),
        sections=tuple(sections),
        caption=captions.PARTS,
    )


def _spread(runs: Sequence[Run], pool: str) -> str:
    means = [run.scores[pool].mean for run in runs if pool in run.scores]
    return number(statistics.stdev(means)) if len(means) > 1 else NONE
