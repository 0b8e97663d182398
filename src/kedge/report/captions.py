"""The lines under the tables: what was measured, how, and what the marks mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kedge.records import Record
from kedge.report import reading
from kedge.report.notation import counted, listing, number

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


def accuracy_title(record: Record, round: int) -> str:
    several = len(reading.incremental_rounds(record)) > 1
    return f"Accuracy after round {round}" if several else "Accuracy"


def accuracy(record: Record, round: int, *, marks: bool) -> str:
    parts = [f"Accuracy in per cent, mean ± 95% interval over {episodes(record, round)}."]
    if round != reading.final_round(record):
        return f"{parts[0]} Marks as in the table of the final round."
    if len(record.seeds) > 1:
        parts.append(
            f"Means are over {len(record.seeds)} seeds; the interval is over the episodes of all "
            "seeds together and does not hold the spread between seeds, which has its own table."
        )
    if marks:
        how = "their paired difference" if reading.all_paired(record, round) else "the difference"
        parts.append(
            "Bold: the best incremental method of the column, and all that cannot be told apart "
            f"from it (the 95% interval of {how} includes zero)."
        )
        if not reading.all_paired(record, round):
            parts.append(
                "Where the record has no paired difference, the two intervals were combined as "
                "if independent."
            )
    references = [m for m in reading.methods_after(record, round) if reading.is_reference(m)]
    if references:
        verb = "is a reference and does" if len(references) == 1 else "are references and do"
        parts.append(f"{' and '.join(references)} {verb} not compete.")
    return " ".join([*parts, *settings(record.config)])


def differences(record: Record) -> str:
    return (
        "Percentage points ± 95% interval. Both methods answer the very same episodes and are "
        "subtracted episode by episode, so the interval is narrower than the main table lets "
        "one expect. ▲ ahead and ▼ behind: the interval is clear of zero; no mark: it is not."
    )


def cost(record: Record) -> str:
    several = len(reading.incremental_rounds(record)) > 1
    over = "summed over the incremental rounds" if several else "for the update"
    if len(record.seeds) > 1:
        over += ", mean over seeds"
    return (
        f"Training time {over}; the highest memory of the process so far, which earlier training "
        "may have set; and what the method has to keep of each class that is behind it. "
        "A dash stands for nothing."
    )


def episodes(record: Record, round: int) -> str:
    """'2,000 episodes', from the scores themselves: they know it better than the settings."""
    ns = {
        s.n
        for run in record.runs
        if run.round == round
        for name, s in run.scores.items()
        if not name.startswith(reading.ROUND_POOL)
    }
    each = " for each seed" if len(record.seeds) > 1 else ""
    if not ns:
        return "the test episodes"
    few, many = min(ns), max(ns)
    return (counted(few, "episodes") if few == many else f"{few:,} to {many:,} episodes") + each


def settings(config: Mapping[str, Any]) -> list[str]:
    """Shots, ways, schedule, backbone: as many of them as the record tells, a sentence each."""
    sentences = []
    way, shot, query = (lookup(config, "episode", f"n_{k}") for k in ("way", "shot", "query"))
    ways = f"{way}-way" if way is not None else ""
    shots = f"{shot}-shot" if shot is not None else ""
    if ways or shots:
        sentence = f"Episodes are {' '.join(filter(None, (ways, shots)))}"
        sentence += f" with {counted(query, 'query images')} per class" if _count(query) else ""
        sentence += f" (chance is {number(100 / way)}%)" if _count(way) else ""
        sentences.append(sentence + ".")
    epochs, length = lookup(config, "schedule", "epochs"), lookup(config, "schedule", "episodes")
    parts = []
    if epochs is not None:
        parts.append(counted(epochs, "epochs") if _count(epochs) else f"{epochs} epochs")
    if length is not None:
        parts.append(counted(length, "episodes") if _count(length) else f"{length} episodes")
    if parts:
        sentences.append(f"Each round trains for {' of '.join(parts)}.")
    backbone, head = named(config, "backbone"), named(config, "head")
    kinds = [(kind, value) for kind, value in (("backbone", backbone), ("head", head)) if value]
    if kinds:
        named_kinds = listing([f"the {kind} is {value}" for kind, value in kinds])
        sentences.append(f"T{named_kinds[1:]}.")
    return sentences


def lookup(config: Mapping[str, Any], *path: str) -> Any:
    """The value under these keys, wherever in the nested settings they begin; None if nowhere."""
    here: Any = config
    for key in path:
        here = here.get(key) if isinstance(here, Mapping) else None
    if here is not None:
        return here
    inner = (lookup(value, *path) for value in config.values() if isinstance(value, Mapping))
    return next((value for value in inner if value is not None), None)


def named(config: Mapping[str, Any], kind: str) -> str:
    """A backbone or head may stand in the settings by its name or with all of its options."""
    value = lookup(config, kind)
    if isinstance(value, Mapping):
        value = value.get(kind) or value.get("name")
    return "" if value is None else str(value)


def _count(value: Any) -> bool:
    return isinstance(value, int) and value > 0
