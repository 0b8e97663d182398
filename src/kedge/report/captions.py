"""Sentences about how a record was made, for captions: episodes, intervals and settings."""

from __future__ import annotations

from typing import Any

from kedge.experiments.records import Record
from kedge.report import queries
from kedge.report.format import counted, number


def accuracy_over(record: Record, round: int) -> str:
    """'Accuracy in %, mean ± 95% interval over …': seeds if there are enough, else episodes."""
    episodes = _episodes(record, round)
    if queries.intervals_over_seeds(record):
        over = f"{len(record.seeds)} seeds (Student’s t), each with {episodes}"
    elif len(record.seeds) > 1:
        over = f"the episodes of {len(record.seeds)} seeds ({episodes} each)"
    else:
        over = episodes
    return f"Accuracy in %, mean ± 95% interval over {over}."


def _episodes(record: Record, round: int) -> str:
    """'2,000 episodes', as counted in the scores."""
    names = {pool.name for pool in queries.table_pools(record, round)}
    scores = [s for run in record.runs if run.round == round for s in run.scores.items()]
    counts = {score.n for name, score in scores if name in names}
    if len(counts) == 1:
        return counted(counts.pop(), "episodes")
    return f"{min(counts):,} to {max(counts):,} episodes" if counts else "the test episodes"


def settings(record: Record) -> str:
    """Episode shapes, schedule, backbone and head, a sentence each."""
    config, trained = record.config, queries.train_shape(record)
    sentences = []
    if trained is not None:
        pools = queries.table_pools(record, queries.final_round(record))
        shape = next((queries.eval_shape(record, pool) for pool in pools), None) or trained
        chance = " to ".join(dict.fromkeys(f"{number(100 / n)}%" for n in reversed(shape.ways)))
        sentences.append(
            f"Test episodes are {shape} with {counted(shape.n_query, 'query images')} per class "
            f"(chance is {chance}); training episodes are {trained}."
        )
    if schedule := config.get("schedule"):
        later = config.get("update_epochs")
        later = "" if later is None else f" ({later} in later rounds)"
        sentences.append(f"Each round trains for {schedule_length(schedule)}{later}.")
    for kind in ("backbone", "head"):
        if name := part_name(record, kind):
            sentences.append(f"{kind.capitalize()}: {name}.")
    return " ".join(sentences)


def schedule_length(schedule: dict[str, Any]) -> str:
    """'10 epochs of 100 episodes'."""
    epochs, episodes = schedule["epochs"], schedule["episodes"]
    return f"{counted(epochs, 'epochs')} of {counted(episodes, 'episodes')}"


def part_name(record: Record, kind: str) -> str:
    """'conv4 of width 32', or '' if the record does not say."""
    config = record.config.get(kind, {kind: ""})
    has_width = config.get("width") and config[kind].startswith(("conv4", "resnet12"))
    width = f" of width {config['width']}" if has_width else ""
    return f"{config[kind]}{width}"
