"""Cells and columns that several tables share."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from kedge.config import format_count
from kedge.evaluation.results import Score
from kedge.experiments.records import PoolInfo, Record
from kedge.report import queries
from kedge.report.format import NONE, counted, margin, number, signed
from kedge.report.table import AHEAD, BEHIND, Cell, Column, Row


def score_cell(
    score: Score | None, *, strong: bool = False, muted: bool = False, digits: int = 1
) -> Cell:
    if score is None:
        return Cell(NONE, muted=True)
    mean, half_width = number(score.mean, digits=digits), margin(score, digits=digits)
    return Cell(mean, half_width, strong=strong, muted=muted)


def score_row(record: Record, method: str, round: int, best: Mapping[str, Sequence[str]]) -> Row:
    """A method on every pool of `best`, which names the methods to print in bold by pool."""
    cells = (
        score_cell(queries.score(record, method, round, pool), strong=method in methods)
        for pool, methods in best.items()
    )
    return Row(method, tuple(cells), muted=queries.is_reference(method))


def metric_cell(
    score: Score | None, *, factor: int = 1, digits: int = 1, unit: str = "", signs: bool = False
) -> Cell:
    """A metric; its margin is left out where the interval is unknown."""
    if score is None:
        return Cell(NONE, muted=True)
    value = number(factor * score.mean, signed=signs, digits=digits) + unit
    return Cell(value, number(factor * score.ci, digits=digits) if math.isfinite(score.ci) else "")


def difference_cell(difference: Score | None) -> Cell:
    if difference is None:
        return Cell(NONE, muted=True)
    mark = {1: AHEAD, -1: BEHIND, 0: ""}[queries.sign(difference)]
    return Cell(*signed(difference), muted=not mark, mark=mark)


def pool_columns(pools: Sequence[PoolInfo]) -> tuple[Column, ...]:
    """'unseen, old domain' and 'unseen, both' share the heading 'unseen'."""
    shared = Counter(pool.label.partition(", ")[0] for pool in pools if ", " in pool.label)
    columns = []
    for pool in pools:
        head, _, tail = pool.label.partition(", ")
        names = (tail, head) if tail and shared[head] > 1 else (pool.label, "")
        columns.append(Column(*names, counted(pool.n_classes, "classes")))
    return tuple(columns)


def shape_columns(record: Record, pools: Sequence[PoolInfo]) -> tuple[Column, ...]:
    """'5-way', '10-way', … under '1-shot'."""
    shapes = [queries.eval_shape(record, pool) for pool in pools]
    return tuple(
        Column(f"{format_count(shape.n_way)}-way", f"{format_count(shape.n_shot)}-shot")
        for shape in shapes
        if shape is not None
    )
