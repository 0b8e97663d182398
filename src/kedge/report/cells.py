"""Cells and headings that several tables share."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from kedge.config import written
from kedge.evaluation.results import Score
from kedge.experiments.records import PoolInfo, Record
from kedge.report import queries
from kedge.report.format import (
    NONE,
    counted,
    margin,
    number,
    signed,
)
from kedge.report.table import (
    AHEAD,
    BEHIND,
    Cell,
    Column,
    Row,
)


def score_cell(
    score: Score | None, *, strong: bool = False, muted: bool = False, digits: int = 1
) -> Cell:
    if score is None:
        return Cell(NONE, muted=True)
    shown, around = number(score.mean, digits=digits), margin(score, digits=digits)
    return Cell(shown, around, strong=strong, muted=muted)


def score_row(record: Record, method: str, round: int, winners: Mapping[str, Sequence[str]]) -> Row:
    """A method on every pool for which `winners` names the best, those in bold."""
    cells = (
        score_cell(queries.score(record, method, round, pool), strong=method in best)
        for pool, best in winners.items()
    )
    return Row(method, tuple(cells), muted=queries.is_reference(method))


def measure_cell(
    score: Score | None, *, factor: int = 1, digits: int = 1, unit: str = "", signs: bool = False
) -> Cell:
    """An interval that is not known is left out."""
    if score is None:
        return Cell(NONE, muted=True)
    value = number(factor * score.mean, signed=signs, digits=digits) + unit
    return Cell(value, number(factor * score.ci, digits=digits) if math.isfinite(score.ci) else "")


def difference_cell(found: queries.Difference | None) -> Cell:
    if found is None:
        return Cell(NONE, muted=True)
    mark = AHEAD if found.ahead else BEHIND if found.behind else ""
    return Cell(*signed(found.score), muted=not found.clear, mark=mark)


def pool_columns(pools: Sequence[PoolInfo]) -> tuple[Column, ...]:
    """'unseen, old domain' and 'unseen, both' share the heading 'unseen'."""
    halves = [pool.label.partition(", ") for pool in pools]
    shared = Counter(head for head, _, tail in halves if tail)
    return tuple(
        Column(tail, head, class_count(pool))
        if shared[head] > 1 and tail
        else Column(pool.label, "", class_count(pool))
        for pool, (head, _, tail) in zip(pools, halves, strict=True)
    )


def shape_columns(record: Record, pools: Sequence[PoolInfo]) -> tuple[Column, ...]:
    """'5-way', '10-way', … under '1-shot'."""
    shapes = [queries.tested(record, pool) for pool in pools]
    return tuple(
        Column(f"{written(shape.n_way)}-way", f"{written(shape.n_shot)}-shot")
        for shape in shapes
        if shape is not None
    )


def class_count(pool: PoolInfo) -> str:
    return counted(pool.n_classes, "classes")
