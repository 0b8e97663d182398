"""The tables of a record: accuracy, differences, test shapes, rounds, seeds and cost."""

from __future__ import annotations

import statistics
from itertools import groupby

from kedge.experiments import metrics
from kedge.experiments.records import Record
from kedge.report import captions, queries
from kedge.report.cells import (
    difference_cell,
    metric_cell,
    pool_columns,
    score_cell,
    score_row,
    shape_columns,
)
from kedge.report.format import NONE, byte_size, counted, duration, number, pool_phrase
from kedge.report.table import Cell, Column, Row, Section, Table

MAX_NAMING_ROUNDS = 6  # with more rounds, naming is shown after the first and the last


def all_tables(record: Record) -> tuple[Table, ...]:
    """All tables that the record has values for, the main result first."""
    final, *earlier = reversed(queries.incremental_rounds(record))
    tables = [
        accuracy_table(record, final),
        differences_table(record),
        shapes_table(record),
        metrics_table(record),
        naming_table(record),
        *(accuracy_table(record, round) for round in earlier),
        matrix_table(record),
        seeds_table(record),
        cost_table(record),
    ]
    return tuple(table for table in tables if table is not None)


def accuracy_table(record: Record, round: int) -> Table:
    """Methods by pools after a round, the best of each column in bold."""
    pools = queries.table_pools(record, round)
    best = {pool.name: queries.best(record, round, pool.name) for pool in pools}
    methods = queries.methods_after(record, round)
    references = [m for m in methods if queries.is_reference(m)]
    groups = groupby(methods, lambda m: queries.family(m) if m in references else "")
    final = round == queries.final_round(record)
    caption = [captions.accuracy_over(record, round)]
    if final and any(best.values()):
        caption.append(
            "Bold: the best incremental method and those not clearly worse (the interval of the "
            "paired difference includes zero)."
        )
    if final and references:
        caption.append(f"References, which do not compete: {', '.join(references)}.")
    several = len(queries.incremental_rounds(record)) > 1
    return Table(
        key="accuracy" if final else f"accuracy-round-{round}",
        title=f"Accuracy after round {round}" if several else "Accuracy",
        columns=pool_columns(pools),
        sections=tuple(
            Section(tuple(score_row(record, m, round, best) for m in group)) for _, group in groups
        ),
        caption=" ".join([*caption, captions.settings(record)] if final else caption).strip(),
    )


def differences_table(record: Record) -> Table | None:
    """IDA minus each other method. A variant of IDA is compared with plain IDA, too."""
    round, leads = queries.final_round(record), queries.lead_methods(record)
    pools = queries.table_pools(record, round)
    sections = []
    for lead in leads:
        rows = []
        for other in queries.methods_after(record, round):
            if other == lead or other in leads[1:]:
                continue
            values = [queries.difference(record, lead, other, round, pool.name) for pool in pools]
            label = f"− {other}" if len(leads) > 1 else f"{lead} − {other}"
            rows.append(Row(label, tuple(map(difference_cell, values))))
        if rows:
            sections.append(Section(tuple(rows), lead if len(leads) > 1 else ""))
    if not sections:
        return None
    over = "seeds (Student’s t)" if queries.intervals_over_seeds(record) else "episodes"
    return Table(
        key="differences",
        title=f"{leads[0]} minus the others, on the same episodes",
        stub="difference",
        columns=pool_columns(pools),
        sections=tuple(sections),
        caption=f"Percentage points, paired, ± 95% interval over {over}. "
        "▲ ahead, ▼ behind: the interval excludes zero.",
    )


def shapes_table(record: Record) -> Table | None:
    """Methods by shapes of test episodes, on unseen classes; only with several shapes."""
    round = queries.final_round(record)
    pools = queries.unseen_pools(record, round)
    if len(pools) < 2:
        return None
    best = {pool.name: queries.best(record, round, pool.name) for pool in pools}
    methods = queries.methods_after(record, round)
    return Table(
        key="shapes",
        title="Tested at other ways and shots",
        columns=shape_columns(record, pools),
        sections=(Section(tuple(score_row(record, m, round, best) for m in methods)),),
        caption=f"On {pool_phrase(pools[0])}. {captions.accuracy_over(record, round)}",
    )


def metrics_table(record: Record) -> Table | None:
    """Average accuracy, forgetting, backward transfer, gap closed and anchor drift."""
    round, methods = queries.final_round(record), queries.final_methods(record)
    if round == 0 or len(methods) < 2:
        return None
    pool = next((p for p in queries.unseen_pools(record, round) if p.first_shape), None)
    with_gap = pool is not None and {metrics.LOWER, metrics.UPPER} <= set(methods)
    rows = []
    for method in methods:
        cells = [metric_cell(metrics.by_seed(record, method, round, metrics.average_accuracy))]
        for metric in (metrics.forgetting, metrics.backward_transfer):
            cells.append(metric_cell(metrics.by_seed(record, method, round, metric), signs=True))
        if pool and with_gap:
            gap = metrics.gap_closed(record, method, round, pool.name)
            cells.append(metric_cell(gap, factor=100, digits=0, unit="%"))
        cells.append(metric_cell(metrics.relative_drift(record, method, round), digits=2))
        rows.append(Row(method, tuple(cells), muted=queries.is_reference(method)))
    seeds = f"{len(record.seeds)} seeds (Student’s t)"
    over = f", mean ± 95% interval over {seeds}" if queries.intervals_over_seeds(record) else ""
    return Table(
        key="metrics",
        title="Metrics over rounds",
        columns=(
            Column("accuracy", note="average"),
            Column("forgetting", note="points"),
            Column("backward transfer", note="points"),
            *([Column("gap closed", note="on unseen")] if with_gap else []),
            Column("anchor drift", note="relative"),
        ),
        sections=(Section(tuple(rows)),),
        caption=f"After round {round}{over}. Accuracy: mean over the rounds so far, on the classes "
        "of each. Forgetting: best earlier accuracy minus accuracy now, on the classes of earlier "
        "rounds; lower is better. Backward transfer: accuracy now minus accuracy right after their "
        "own round. "
        + "Gap closed: share of the way from FT to PAR; – if PAR is not clearly ahead. " * with_gap
        + "Anchor drift: distance of an anchor from its class, relative to that between classes.",
    )


def naming_table(record: Record) -> Table | None:
    """Accuracy of naming among all classes so far, after each round; None in early records."""
    final, rounds = queries.final_round(record), record.rounds
    rounds = rounds if len(rounds) <= MAX_NAMING_ROUNDS else (rounds[0], final)
    columns = [("naming", round, "stored anchors") for round in rounds]
    columns.append(("naming_true_means", final, "true means"))
    rows = []
    for method in queries.final_methods(record):
        values = [metrics.measure(record, method, round, name) for name, round, _ in columns]
        if any(value is not None for value in values):
            cells = tuple(map(metric_cell, values))
            rows.append(Row(method, cells, muted=queries.is_reference(method)))
    if not rows:
        return None
    seeds = f"{len(record.seeds)} seeds (Student’s t)"
    over = f", mean ± 95% interval over {seeds}" if queries.intervals_over_seeds(record) else ""
    return Table(
        key="naming",
        title="Naming among all known classes",
        columns=tuple(Column(f"after round {round}", group) for _, round, group in columns),
        sections=(Section(tuple(rows)),),
        caption=f"Held-out images of all classes so far that get the right name, in %{over}, "
        "without examples: by the anchors as they were stored when a class was learned, and by "
        "means computed now from all training images, which no incremental method has. NU keeps "
        "the base network and stores anchors of later classes without training.",
    )


def matrix_table(record: Record) -> Table | None:
    """Accuracy after round t on the classes of round i; only with several updates."""
    pools = queries.round_pools(record)
    if len(queries.incremental_rounds(record)) < 2 or not pools:
        return None
    sections = []
    for method in queries.final_methods(record):
        rows = []
        for round in (t for t in record.rounds if record.select(method, t)):
            cells = tuple(
                score_cell(
                    queries.score(record, method, round, pool.name),
                    muted=not queries.is_delivered(pool, round),
                )
                for pool in pools
            )
            rows.append(Row(f"after round {round}", cells))
        sections.append(Section(tuple(rows), method))
    return Table(
        key="matrix",
        title="Classes of each round after each round",
        columns=tuple(
            Column(pool.name.replace("_", " "), "classes of", counted(pool.n_classes, "classes"))
            for pool in pools
        ),
        sections=tuple(sections),
        caption="Accuracy in % ± 95% interval. Row: the model after a round. Column: the classes "
        "that a round delivered. Muted: classes not delivered by then.",
    )


def seeds_table(record: Record) -> Table | None:
    """Accuracy by seed, and the standard deviation over seeds; only with several seeds."""
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
        scores = [
            [r.scores[pool.name].mean for r in runs if pool.name in r.scores] for pool in pools
        ]
        deviations = (number(statistics.stdev(s)) if len(s) > 1 else NONE for s in scores)
        rows.append(Row("standard deviation", tuple(map(Cell, deviations))))
        sections.append(Section(tuple(rows), method))
    return Table(
        key="seeds",
        title="Accuracy by seed",
        columns=pool_columns(pools),
        sections=tuple(sections),
        caption="Accuracy in % ± 95% interval over the episodes of one seed. Each seed draws its "
        "own classes, initial weights and episodes. Standard deviation: over seeds, with n − 1.",
    )


def cost_table(record: Record) -> Table:
    """Training time over all updates, peak memory, and bytes kept per old class."""
    rounds = queries.incremental_rounds(record)
    rows = []
    for method in queries.methods_after(record, rounds[-1]):
        runs = [run for round in rounds for run in record.select(method, round)]
        seconds = sum(run.seconds for run in runs if run.history) / len({run.seed for run in runs})
        memory = max(run.peak_memory_mb for run in runs)
        kept = record.select(method, rounds[-1])[0].kept_bytes_per_class
        sizes = byte_size(memory * 2**20), byte_size(kept)
        cells = tuple(map(Cell, (duration(seconds), *sizes)))
        rows.append(Row(method, cells, muted=queries.is_reference(method)))
    over = ", summed over rounds" * (len(rounds) > 1) + ", mean over seeds" * (
        len(record.seeds) > 1
    )
    parallel = any("jobs" in run.environment for run in record.runs)
    return Table(
        key="cost",
        title="Cost",
        columns=(Column("training time"), Column("peak memory"), Column("kept per old class")),
        sections=(Section(tuple(rows)),),
        caption=f"Training time{over}; peak memory (on the CPU: of the process); bytes stored per "
        "old class. –: none." + " Several runs trained at the same time." * parallel,
    )
