"""The lines under the tables: what was measured, how, and what the marks mean."""

from __future__ import annotations

from typing import Any

from kedge.config import EpisodeShape, from_dict
from kedge.experiments.records import Record
from kedge.report import queries
from kedge.report.format import (
    counted,
    listing,
    number,
)

MATRIX = (
    "Accuracy in per cent ± 95% interval. A row is the model after a round, a column the classes "
    "which a round brought. Down a column one reads how much of them is kept as more rounds "
    "follow; muted cells are classes of rounds that had not come yet."
)
SEEDS = (
    "Accuracy in per cent ± 95% interval over the episodes of that seed alone. A seed draws the "
    "classes, the initial weights and the episodes anew, so the standard deviation over seeds "
    "(n − 1 in the denominator) says how much the split itself matters."
)
PARTS = (
    "Accuracy in per cent ± 95% interval, as in the tables of the parts below. Two parts were "
    "trained apart, so a difference between them has no interval of its own: take it as clear "
    "where theirs do not overlap, and as open where they do."
)
COST_ROUNDS = (
    "Time of each round with all that it needs (mean over seeds), its highest memory (on the CPU, "
    "of the whole process) and what the method has to keep of each class that is behind it. A dash "
    "stands for nothing."
)


def accuracy_title(record: Record, round: int) -> str:
    several = len(queries.incremental_rounds(record)) > 1
    return f"Accuracy after round {round}" if several else "Accuracy"


def accuracy(record: Record, round: int, *, marks: bool) -> str:
    parts = [f"Accuracy in per cent, mean ± 95% interval over {units(record, round)}."]
    if round != queries.final_round(record):
        return f"{parts[0]} Marks as in the table of the final round."
    if len(record.seeds) > 1 and not queries.intervals_over_seeds(record):
        parts.append(
            f"Means are over {len(record.seeds)} seeds; the interval is over the episodes of all "
            "seeds together and does not hold the spread between seeds, which has its own table."
        )
    if queries.intervals_over_seeds(record):
        parts.append(
            "A seed draws classes and weights for all methods alike, so these rise and fall "
            "together: compare them by their differences."
        )
    if marks:
        over = "over seeds " if queries.intervals_over_seeds(record) else ""
        parts.append(
            "Bold: the best incremental method of the column, and all that cannot be told apart "
            f"from it (the 95% interval {over}of their paired difference includes zero)."
        )
    references = [m for m in queries.methods_after(record, round) if queries.is_reference(m)]
    if references:
        verb = "is a reference and does" if len(references) == 1 else "are references and do"
        parts.append(f"{' and '.join(references)} {verb} not compete.")
    return " ".join([*parts, *settings(record)])


def differences(record: Record) -> str:
    marks = "▲ ahead and ▼ behind: the interval is clear of zero; no mark: it is not."
    if queries.intervals_over_seeds(record):
        return (
            "Percentage points, mean over seeds ± 95% interval over the differences of the "
            f"{len(record.seeds)} seeds (Student’s t): it holds what another draw of classes and "
            "weights may change. The two methods of a difference share all of that, and the "
            f"episodes, so the interval is narrower than the main table lets one expect. {marks}"
        )
    return (
        "Percentage points ± 95% interval. Both methods answer the very same episodes and are "
        "subtracted episode by episode, so the interval is narrower than the main table lets "
        f"one expect. {marks}"
    )


def metrics(record: Record, unseen: str, *, gap: bool) -> str:
    """With or without the share of the gap between FT and PAR."""
    known = (
        f"Mean ± 95% interval over {len(record.seeds)} seeds (Student’s t)."
        if queries.intervals_over_seeds(record)
        else "Fewer than three seeds, so there are no intervals."
    )
    share = (
        " Gap closed: which share of the way from FT to PAR the method gets, on "
        f"{unseen}; a dash where PAR is not clearly ahead of FT."
    )
    return (
        f"After round {queries.final_round(record)}. {known} Accuracy: on the classes of "
        "each round so far, in per cent, every round counting the same. Forgetting: for the "
        "classes of each earlier round, their best accuracy in the rounds before this one minus "
        "the accuracy now, in points; less is better, and a negative value means that they got "
        "better. Backward transfer: the accuracy now minus that right after their own round."
        f"{share if gap else ''} Anchor drift: how far the anchors are from where they would be "
        "now, in units of the distance between two of them."
    )


def shapes(record: Record, unseen: str, *, marks: bool) -> str:
    bold = " Bold as in the main table." if marks else ""
    over = units(record, queries.final_round(record))
    return (
        f"Accuracy in per cent on {unseen}, mean ± 95% interval over {over}, in test episodes of "
        f"several shapes.{bold} {_shape_sentence(record, tests=False)}"
    ).strip()


def trained_shapes(unseen: str, method: str) -> str:
    return (
        f"Accuracy of {method} in per cent on {unseen} ± 95% interval. A row is what the model was "
        "trained at, a column what it was tested at. Range: the most minus the least of a column, "
        "that is how much the choice of training episodes matters there."
    )


def cost(record: Record) -> str:
    several = len(queries.incremental_rounds(record)) > 1
    over = "summed over the incremental rounds" if several else "for the update"
    if len(record.seeds) > 1:
        over += ", mean over seeds"
    shared = any("jobs" in run.environment for run in record.runs)
    beside = " Several were trained at the same time, and took longer so." if shared else ""
    return (
        f"Training time {over}; the highest memory while it trained (on the CPU, of the whole "
        "process); and what the method has to keep of each class that is behind it. "
        f"A dash stands for nothing.{beside}"
    )


def units(record: Record, round: int) -> str:
    """What an interval is over: seeds if there are enough of them, else episodes."""
    if queries.intervals_over_seeds(record):
        return f"{len(record.seeds)} seeds (Student’s t), each with {episodes(record, round)}"
    each = " for each seed" if len(record.seeds) > 1 else ""
    return episodes(record, round) + each


def episodes(record: Record, round: int) -> str:
    """'2,000 episodes', from the scores themselves: they know it better than the settings."""
    names = {pool.name for pool in queries.table_pools(record, round)}
    scores = [s for run in record.runs if run.round == round for s in run.scores.items()]
    ns = {found.n for name, found in scores if name in names}
    if not ns:
        return "the test episodes"
    few, many = min(ns), max(ns)
    return counted(few, "episodes") if few == many else f"{few:,} to {many:,} episodes"


def settings(record: Record) -> list[str]:
    """Shots, ways, schedule, backbone: a sentence each."""
    config = record.config
    sentences = [_shape_sentence(record)]
    if schedule := config.get("schedule"):
        sentences.append(f"Each round trains for {length(schedule)}.")
    kinds = [
        f"the {kind} is {_named(config[kind], kind)}"
        for kind in ("backbone", "head")
        if kind in config
    ]
    if kinds:
        sentences.append(f"T{listing(kinds)[1:]}.")
    return [sentence for sentence in sentences if sentence]


def length(schedule: dict[str, Any]) -> str:
    """'10 epochs of 100 episodes'."""
    epochs, episodes = schedule["epochs"], schedule["episodes"]
    return f"{counted(epochs, 'epochs')} of {counted(episodes, 'episodes')}"


def _shape_sentence(record: Record, *, tests: bool = True) -> str:
    """What the episodes are; where training and tests differ, both."""
    base = queries.trained(record)
    if base is None:
        return ""
    config = record.config
    ways, shots = config.get("update_ways"), config.get("update_shots")
    counts = {"n_way": ways or base.n_way, "n_shot": shots or base.n_shot}
    later = from_dict(EpisodeShape, counts)
    practised = str(base) if str(later) == str(base) else f"{base}, in later rounds {later}"
    if not tests:
        return f"Training episodes are {practised}."
    pools = queries.table_pools(record, queries.final_round(record))
    shape = next((queries.tested(record, pool) for pool in pools), None) or base
    per_class = f"with {counted(shape.n_query, 'query images')} per class"
    few, many = (number(100 / n) for n in reversed(shape.ways))
    chance = f"(chance is {few}%)" if few == many else f"(chance is {few}% to {many}%)"
    if practised == str(shape):
        return f"Episodes are {shape} {per_class} {chance}."
    return f"Test episodes are {shape} {per_class} {chance}; training episodes are {practised}."


def _named(value: dict[str, Any], kind: str) -> str:
    """'conv4', or with what makes it another: 'conv4 of width 32'."""
    width = value.get("width")
    return f"{value[kind]} of width {width}" if width else str(value[kind])


def backbone(record: Record) -> str:
    return _named(record.config["backbone"], "backbone") if "backbone" in record.config else ""
