"""A closer look: seeds one by one, and over many rounds old classes by age and their anchors.

The results page has these tables; a record's own report shows the same as figures.
"""

from __future__ import annotations

import statistics
from dataclasses import replace

from kedge.experiments import metrics
from kedge.experiments.metrics import Matrix
from kedge.experiments.records import Record
from kedge.report import queries
from kedge.report.cells import (
    difference_cell,
    measure_cell,
    pool_columns,
)
from kedge.report.format import NONE, number
from kedge.report.table import (
    Cell,
    Column,
    Row,
    Section,
    Table,
)

MANY = 3  # updates from which on age means anything


def seed_differences_table(record: Record) -> Table | None:
    """IDA minus each other method, seed by seed; only with several seeds."""
    if len(record.seeds) < 2:
        return None
    round, lead = queries.final_round(record), queries.leads(record)[0]
    pools = queries.table_pools(record, round)
    alone = {seed: _of_seed(record, seed) for seed in record.seeds}
    sections = []
    for other in (m for m in queries.methods_after(record, round) if m != lead):
        rows = []
        for seed, own in alone.items():
            found = [queries.difference(own, lead, other, round, pool.name) for pool in pools]
            rows.append(Row(f"seed {seed}", tuple(map(difference_cell, found))))
        sections.append(Section(tuple(rows), f"{lead} − {other}"))
    return Table(
        key="seed-differences",
        title=f"{lead} against the others, seed by seed",
        stub="difference",
        columns=pool_columns(pools),
        sections=tuple(sections),
        caption="Percentage points ± 95% interval over the episodes of that seed alone, which both "
        "methods answer. ▲ ahead and ▼ behind: the interval is clear of zero.",
    )


def _of_seed(record: Record, seed: int) -> Record:
    runs = tuple(run for run in record.runs if run.seed == seed)
    return replace(record, runs=runs, pairs=tuple(p for p in record.pairs if p.seed == seed))


def variants_table(record: Record) -> Table | None:
    """Each variant of IDA minus the plain one, after the last round."""
    round, (plain, *variants) = queries.final_round(record), queries.leads(record)
    if plain != queries.OURS or not variants:
        return None
    pools = queries.table_pools(record, round)
    rows = []
    for variant in variants:
        found = [queries.difference(record, variant, plain, round, pool.name) for pool in pools]
        rows.append(Row(f"{variant} − {plain}", tuple(map(difference_cell, found))))
    return Table(
        key="variants",
        title=f"What another setting changes, after round {round}",
        stub="difference",
        columns=pool_columns(pools),
        sections=(Section(tuple(rows)),),
        caption="Percentage points ± 95% interval. ▲ better and ▼ worse than IDA as it is: the "
        "interval is clear of zero.",
    )


def standing_table(record: Record) -> Table | None:
    """IDA minus the others that matter in a long run, after every round."""
    lead, rounds = queries.leads(record)[0], queries.incremental_rounds(record)
    present = queries.methods_after(record, queries.final_round(record))
    paragons = [method for method in present if queries.family(method) == queries.PARAGON]
    others = [*(method for method in ("FT", "EIML") if method in present), *paragons]
    pools = [
        pool
        for pool in queries.table_pools(record, queries.final_round(record))
        if pool.name in ("old", *queries.UNSEEN)
    ]
    if len(rounds) < MANY or lead in others or not others:
        return None
    rows = [
        Row(
            str(t),
            tuple(
                difference_cell(queries.difference(record, lead, other, t, pool.name))
                for pool in pools
                for other in others
            ),
        )
        for t in rounds
    ]
    return Table(
        key="standing",
        title=f"Where {lead} stands, round by round",
        stub="after round",
        columns=tuple(Column(f"{lead} − {m}", pool.label) for pool in pools for m in others),
        sections=(Section(tuple(rows)),),
        caption="Percentage points ± 95% interval, on all classes of earlier rounds (old) and on "
        "unseen ones. ▲ ahead and ▼ behind: the interval is clear of zero.",
    )


def ages_table(record: Record) -> Table | None:
    """How well classes are known when so many rounds have come since their own."""
    methods = queries.methods_after(record, queries.final_round(record))
    matrices = {method: metrics.matrix(record, method) for method in methods}
    if len(queries.incremental_rounds(record)) < MANY or not queries.matrix_pools(record):
        return None
    rows = [
        Row(str(age), tuple(_age_cell(matrices[method], age) for method in methods))
        for age in range(queries.final_round(record) + 1)
    ]
    hard = " NU has seen none of them but the first: its column says how hard the classes are."
    return Table(
        key="ages",
        title="Accuracy by age of the classes",
        stub="rounds since",
        columns=tuple(map(Column, methods)),
        sections=(Section(tuple(rows)),),
        caption="Accuracy in per cent on the classes of one round when so many rounds have come "
        "since, mean over all rounds; in brackets, how much that is above or below the accuracy on "
        f"the same classes right after their own round.{hard if queries.BASE in methods else ''}",
    )


def _age_cell(a: Matrix, age: int) -> Cell:
    """Over all rounds t in which the classes of round t − age were tested, then and now."""
    pairs = [
        (a[t][t - age], a[t - age][t - age])
        for t in a
        if t - age in a and t - age in a[t] and t - age in a[t - age]
    ]
    if not pairs:
        return Cell(NONE, muted=True)
    now, then = (statistics.fmean(values) for values in zip(*pairs, strict=True))
    since = f"\u00a0({number(now - then, signed=True)})" if age else ""  # on one line with it
    return Cell(f"{number(now)}{since}")


def drift_table(record: Record) -> Table | None:
    """How far classes are from their anchors after each round, by method."""
    methods = [
        method
        for method in queries.methods_after(record, queries.final_round(record))
        if not queries.is_reference(method)
    ]
    rounds = queries.incremental_rounds(record)
    found = {t: [metrics.relative_drift(record, method, t) for method in methods] for t in rounds}
    if len(rounds) < 2 or not any(one for row in found.values() for one in row):
        return None
    rows = [
        Row(str(t), tuple(measure_cell(score, digits=2) for score in row))
        for t, row in found.items()
    ]
    return Table(
        key="drift",
        title="Anchor drift, round by round",
        stub="after round",
        columns=tuple(map(Column, methods)),
        sections=(Section(tuple(rows)),),
        caption="Mean distance between a class and its stored anchor, in units of the distance "
        "between two classes: at 1, classes are as far from their own anchor as from each other. "
        "An oracle: it takes the old images, which no method sees.",
    )
