"""The tables of a report, from a record: the result, the differences, rounds, seeds and cost."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence

from kedge.evaluation import Score
from kedge.records import PoolInfo, Record, Run
from kedge.report import captions, reading
from kedge.report.layout import AHEAD, BEHIND, Cell, Column, Row, Section, Table
from kedge.report.notation import NONE, counted, duration, margin, number, signed, size


def all_tables(record: Record) -> tuple[Table, ...]:
    """In the order in which they are read: the result first, then what it rests on."""
    final, *earlier = reversed(reading.incremental_rounds(record))
    tables = [accuracy_table(record, final), differences_table(record)]
    tables += [accuracy_table(record, round) for round in earlier]
    tables += [matrix_table(record), seeds_table(record), cost_table(record)]
    return tuple(table for table in tables if table is not None)


def accuracy_table(record: Record, round: int) -> Table:
    """The main table: methods by pools, the best of each column marked."""
    pools = reading.table_pools(record, round)
    winners = {pool.name: reading.best(record, round, pool.name) for pool in pools}
    methods = reading.methods_after(record, round)
    rows = {
        method: Row(
            method,
            tuple(
                _score_cell(
                    reading.score(record, method, round, pool.name),
                    strong=method in winners[pool.name],
                )
                for pool in pools
            ),
            muted=reading.is_reference(method),
        )
        for method in methods
    }
    parts = (
        [rows[m] for m in methods if reading.family(m) == reading.BASE],
        [rows[m] for m in methods if not reading.is_reference(m)],
        [rows[m] for m in methods if reading.family(m) == reading.PARAGON],
    )
    last = round == reading.final_round(record)
    return Table(
        key="accuracy" if last else f"accuracy-round-{round}",
        title=captions.accuracy_title(record, round),
        stub="method",
        columns=_columns(pools),
        sections=tuple(Section(tuple(part)) for part in parts if part),
        caption=captions.accuracy(record, round, marks=any(winners.values())),
    )


def differences_table(record: Record) -> Table | None:
    """IDA minus each other method. Variants are held against plain IDA, not against each other."""
    round = reading.final_round(record)
    pools = reading.table_pools(record, round)
    leads = reading.leads(record)
    sections = []
    for lead in leads:
        rows = tuple(
            Row(
                f"− {other}" if len(leads) > 1 else f"{lead} − {other}",
                tuple(
                    _difference_cell(reading.difference(record, lead, other, round, pool.name))
                    for pool in pools
                ),
            )
            for other in reading.methods_after(record, round)
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
        columns=_columns(pools),
        sections=tuple(sections),
        caption=captions.differences(record),
    )


def matrix_table(record: Record) -> Table | None:
    """a[t][i]: after round t, on the classes that round i brought; only with several rounds."""
    pools = reading.matrix_pools(record)
    if len(reading.incremental_rounds(record)) < 2 or not pools:
        return None
    sections = []
    for method in reading.methods_after(record, reading.final_round(record)):
        rows = tuple(
            Row(
                f"after round {round}",
                tuple(
                    _score_cell(
                        reading.score(record, method, round, pool.name),
                        muted=not reading.has_come(pool, round),
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
            Column(pool.name.replace("_", " "), "classes of", _classes(pool)) for pool in pools
        ),
        sections=tuple(sections),
        caption=captions.MATRIX,
    )


def seeds_table(record: Record) -> Table | None:
    """Each seed by itself, and how much the seeds disagree; only with several seeds."""
    if len(record.seeds) < 2:
        return None
    round = reading.final_round(record)
    pools = reading.table_pools(record, round)
    sections = []
    for method in reading.methods_after(record, round):
        runs = sorted(record.select(method, round), key=lambda run: run.seed)
        rows = [
            Row(f"seed {run.seed}", tuple(_score_cell(run.scores.get(p.name)) for p in pools))
            for run in runs
        ]
        spread = tuple(Cell(_spread(runs, pool.name)) for pool in pools)
        sections.append(Section((*rows, Row("standard deviation", spread)), method))
    return Table(
        key="seeds",
        title="Each seed by itself",
        stub="method",
        columns=_columns(pools),
        sections=tuple(sections),
        caption=captions.SEEDS,
    )


def cost_table(record: Record) -> Table:
    """What each method takes: time, memory, and what it must keep of old classes."""
    rounds = reading.incremental_rounds(record)
    rows = []
    for method in reading.methods_after(record, rounds[-1]):
        runs = [run for round in rounds for run in record.select(method, round)]
        seeds = len({run.seed for run in runs})
        trained = sum(run.seconds for run in runs if run.history)
        cells = (
            Cell(duration(trained / seeds)),
            Cell(size(max(run.peak_memory_mb for run in runs) * 2**20)),
            Cell(size(record.select(method, rounds[-1])[0].kept_bytes_per_class)),
        )
        rows.append(Row(method, cells, muted=reading.is_reference(method)))
    return Table(
        key="cost",
        title="What it costs",
        stub="method",
        columns=(Column("training time"), Column("peak memory"), Column("kept per old class")),
        sections=(Section(tuple(rows)),),
        caption=captions.cost(record),
    )


# ── cells and headings ───────────────────────────────────────────────────────────────────────


def _score_cell(score: Score | None, *, strong: bool = False, muted: bool = False) -> Cell:
    if score is None or not math.isfinite(score.mean):
        return Cell(NONE, muted=True)
    return Cell(number(score.mean), margin(score), strong=strong, muted=muted)


def _difference_cell(found: reading.Difference | None) -> Cell:
    if found is None or not math.isfinite(found.score.mean):
        return Cell(NONE, muted=True)
    mark = AHEAD if found.ahead else BEHIND if found.behind else ""
    return Cell(*signed(found.score), muted=not found.clear, mark=mark)


def _spread(runs: Sequence[Run], pool: str) -> str:
    means = [run.scores[pool].mean for run in runs if pool in run.scores]
    return number(statistics.stdev(means)) if len(means) > 1 else NONE


def _columns(pools: Sequence[PoolInfo]) -> tuple[Column, ...]:
    """'unseen, old domain' and 'unseen, both' share the heading 'unseen'."""
    halves = [pool.label.partition(", ") for pool in pools]
    shared = Counter(head for head, _, tail in halves if tail)
    return tuple(
        Column(tail, head, _classes(pool))
        if shared[head] > 1 and tail
        else Column(pool.label, "", _classes(pool))
        for pool, (head, _, tail) in zip(pools, halves, strict=True)
    )


def _classes(pool: PoolInfo) -> str:
    return counted(pool.n_classes, "classes")
