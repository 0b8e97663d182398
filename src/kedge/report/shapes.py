"""Tables of test episodes in several shapes: other numbers of ways and shots."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from kedge.evaluation.results import Score
from kedge.experiments.records import Record
from kedge.report import captions, queries
from kedge.report.cells import (
    score_cell,
    score_row,
    shape_columns,
)
from kedge.report.format import number, place
from kedge.report.table import (
    Cell,
    Row,
    Section,
    Table,
)


def shapes_table(record: Record) -> Table | None:
    """Methods by shapes of test episodes, on unseen classes; only with several shapes."""
    round = queries.final_round(record)
    pools = queries.unseen_pools(record, round)
    if len(pools) < 2:
        return None
    winners = {pool.name: queries.best(record, round, pool.name) for pool in pools}
    methods = queries.methods_after(record, round)
    rows = tuple(score_row(record, method, round, winners) for method in methods)
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
    pools = queries.unseen_pools(record, base_round(record))
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
    if len({str(queries.trained(record)) for record in records}) < 2 or len(tests) > 1:
        return {}
    found = {}
    for part, record in parts.items():
        round, method = base_round(record), base_method(record)
        pools = queries.unseen_pools(record, round)
        scores = [queries.score(record, method, round, pool.name) for pool in pools]
        found[part] = [score for score in scores if score is not None]
    return found if all(len(scores) == len(*tests) > 1 for scores in found.values()) else {}


def spans(scores: Mapping[str, Sequence[Score]]) -> list[float]:
    """How much the choice of the training shape matters, for each test shape."""
    return [span([score.mean for score in each]) for each in zip(*scores.values(), strict=True)]


def span(values: Sequence[float]) -> float:
    return max(values) - min(values) if values else math.nan


def _tested_shapes(record: Record) -> tuple[str, ...]:
    pools = queries.unseen_pools(record, base_round(record))
    return tuple(str(queries.tested(record, pool)) for pool in pools)


def base_round(record: Record) -> int:
    """Where a model stands that only its own training shaped."""
    return 0 if 0 in record.rounds else queries.final_round(record)


def base_method(record: Record) -> str:
    return queries.BASE if queries.BASE in record.methods else record.methods[0]
