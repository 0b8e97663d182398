"""The tables of a report, from a record: result, differences, shapes, rounds, seeds and cost."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

from kedge import metrics
from kedge.config import counted as written
from kedge.evaluation import Score
from kedge.records import PoolInfo, Record, Run
from kedge.report import captions, reading
from kedge.report.layout import AHEAD, BEHIND, Cell, Column, Row, Section, Table
from kedge.report.notation import (
    NONE,
    counted,
    duration,
    margin,
    number,
    place,
    signed,
    size,
)

COST = (Column("training time"), Column("peak memory"), Column("kept per old class"))


def all_tables(record: Record) -> tuple[Table, ...]:
    """In the order in which they are read: the result first, then what it rests on."""
    final, *earlier = reversed(reading.incremental_rounds(record))
    tables = [accuracy_table(record, final), differences_table(record), shapes_table(record)]
    tables.append(metrics_table(record))
    tables += [accuracy_table(record, round) for round in earlier]
    tables += [matrix_table(record), seeds_table(record)]
    tables += [cost_table(record), cost_rounds_table(record)]
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
                score_cell(
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


def shapes_table(record: Record) -> Table | None:
    """Methods by shapes of test episodes, on unseen classes; only with several shapes."""
    round = reading.final_round(record)
    pools = reading.unseen_pools(record, round)
    if len(pools) < 2:
        return None
    winners = {pool.name: reading.best(record, round, pool.name) for pool in pools}
    rows = tuple(
        Row(
            method,
            tuple(
                score_cell(
                    reading.score(record, method, round, pool.name),
                    strong=method in winners[pool.name],
                )
                for pool in pools
            ),
            muted=reading.is_reference(method),
        )
        for method in reading.methods_after(record, round)
    )
    return Table(
        key="shapes",
        title="Tested at other ways and shots",
        stub="method",
        columns=shape_columns(record, pools),
        sections=(Section(rows),),
        caption=captions.shapes(record, place(pools[0]), marks=any(winners.values())),
    )


def trained_shapes_table(parts: Mapping[str, Record]) -> Table | None:
    """One model per part by shapes of test episodes; only if parts were trained at several.

    The last row is the most minus the least of each column, as in the paper's tables 14 and 15.
    """
    scores = trained_scores(parts)
    if not scores:
        return None
    record = next(iter(parts.values()))
    pools = reading.unseen_pools(record, base_round(record))
    rows = [Row(part, tuple(map(score_cell, found))) for part, found in scores.items()]
    ranges = Row("range", tuple(Cell(number(each)) for each in spans(scores)))
    return Table(
        key="trained-shapes",
        title="Trained and tested at other ways and shots",
        stub="trained at",
        columns=shape_columns(record, pools),
        sections=(Section(tuple(rows)), Section((ranges,))),
        caption=captions.trained_shapes(place(pools[0]), base_method(record)),
    )


def trained_scores(parts: Mapping[str, Record]) -> dict[str, list[Score]]:
    """On unseen classes, by part and test shape; empty unless just the training shapes differ."""
    records = list(parts.values())
    tests = {_tested_shapes(record) for record in records}
    if len({str(reading.trained(record)) for record in records}) < 2 or len(tests) > 1:
        return {}
    found = {}
    for part, record in parts.items():
        round, method = base_round(record), base_method(record)
        pools = reading.unseen_pools(record, round)
        scores = [reading.score(record, method, round, pool.name) for pool in pools]
        found[part] = [score for score in scores if score is not None]
    return found if all(len(scores) == len(*tests) > 1 for scores in found.values()) else {}


def spans(scores: Mapping[str, Sequence[Score]]) -> list[float]:
    """How much the choice of the training shape matters, for each test shape."""
    return [span([score.mean for score in each]) for each in zip(*scores.values(), strict=True)]


def span(values: Sequence[float]) -> float:
    return max(values) - min(values) if values else math.nan


def _tested_shapes(record: Record) -> tuple[str, ...]:
    pools = reading.unseen_pools(record, base_round(record))
    return tuple(str(reading.tested(record, pool)) for pool in pools)


def base_round(record: Record) -> int:
    """Where a model stands that only its own training shaped."""
    return 0 if 0 in record.rounds else reading.final_round(record)


def base_method(record: Record) -> str:
    return reading.BASE if reading.BASE in record.methods else record.methods[0]


def metrics_table(record: Record) -> Table | None:
    """Each method's rounds in five numbers; only with several rounds."""
    round = reading.final_round(record)
    unseen = reading.unseen_pools(record, round)
    if len(reading.incremental_rounds(record)) < 2 or not reading.matrix_pools(record):
        return None
    pool = next((p for p in unseen if p.first_shape), None)
    rows = []
    for method in reading.methods_after(record, round):
        average = metrics.by_seed(record, method, round, metrics.average_accuracy)
        lost = metrics.by_seed(record, method, round, metrics.forgetting)
        back = metrics.by_seed(record, method, round, metrics.backward_transfer)
        gap = metrics.gap_closed(record, method, round, pool.name) if pool else None
        drift = metrics.relative_drift(record, method, round)
        cells = (
            _measure_cell(average),
            _measure_cell(lost, signs=True),
            _measure_cell(back, signs=True),
            _measure_cell(gap, factor=100, digits=0, unit="%"),
            _measure_cell(drift, digits=2),
        )
        rows.append(Row(method, cells, muted=reading.is_reference(method)))
    return Table(
        key="metrics",
        title="The rounds in numbers",
        stub="method",
        columns=(
            Column("average accuracy", note="of all rounds’ classes"),
            Column("forgetting", note="less is better"),
            Column("backward transfer", note="more is better"),
            Column("gap closed", note="FT to PAR, unseen"),
            Column("anchor drift", note="relative"),
        ),
        sections=(Section(tuple(rows)),),
        caption=captions.metrics(record, place(pool) if pool else "unseen classes"),
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
                    score_cell(
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
            Row(f"seed {run.seed}", tuple(score_cell(run.scores.get(p.name)) for p in pools))
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
        columns=COST,
        sections=(Section(tuple(rows)),),
        caption=captions.cost(record),
    )


def cost_rounds_table(record: Record) -> Table | None:
    """The same round by round; only with several rounds."""
    rounds = reading.incremental_rounds(record)
    if len(rounds) < 2:
        return None
    sections = []
    for method in reading.methods_after(record, rounds[-1]):
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


# ── cells and headings ───────────────────────────────────────────────────────────────────────


def score_cell(
    score: Score | None, *, strong: bool = False, muted: bool = False, digits: int = 1
) -> Cell:
    if score is None:
        return Cell(NONE, muted=True)
    shown, around = number(score.mean, digits=digits), margin(score, digits=digits)
    return Cell(shown, around, strong=strong, muted=muted)


def _measure_cell(
    score: Score | None, *, factor: int = 1, digits: int = 1, unit: str = "", signs: bool = False
) -> Cell:
    """An interval that is not known is left out."""
    if score is None:
        return Cell(NONE, muted=True)
    value = number(factor * score.mean, signed=signs, digits=digits) + unit
    return Cell(value, number(factor * score.ci, digits=digits) if math.isfinite(score.ci) else "")


def _difference_cell(found: reading.Difference | None) -> Cell:
    if found is None:
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


def shape_columns(record: Record, pools: Sequence[PoolInfo]) -> tuple[Column, ...]:
    """'5-way', '10-way', … under '1-shot'."""
    shapes = [reading.tested(record, pool) for pool in pools]
    return tuple(
        Column(f"{written(shape.n_way)}-way", f"{written(shape.n_shot)}-shot")
        for shape in shapes
        if shape is not None
    )


def _classes(pool: PoolInfo) -> str:
    return counted(pool.n_classes, "classes")
