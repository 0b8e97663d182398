"""A model in three lines, as an interactive session shows it."""

from __future__ import annotations

from collections.abc import Sequence

from kedge.models.embedding import ModelConfig
from kedge.models.model_file import LineageEntry
from kedge.utils.text import list_some, pluralize

N_NAMES = 6  # of classes
N_ROUNDS = 3  # more are shortened to the first and the last


def model_text(config: ModelConfig, classes: Sequence[str], lineage: Sequence[LineageEntry]) -> str:
    """Network and input, known classes, and rounds with their method and validation."""
    side, colour = config.image_size, "colour" if config.n_channels == 3 else "grey"
    network = f"{config.network_name}{', pretrained' if config.is_pretrained else ''}"
    known = pluralize(len(classes), "known class", "known classes")
    names = f": {list_some(classes, N_NAMES)}" if classes else ""
    rounds = [_round_text(entry) for entry in lineage]
    if len(rounds) > N_ROUNDS:
        rounds = [rounds[0], "…", rounds[-1]]
    history = f": {'; '.join(rounds)}" if rounds else ""
    return (
        f"kedge.Model: {network}, for images of {side}×{side} px in {colour}\n"
        f"  {known}{names}\n"
        f"  {pluralize(len(lineage), 'round')}{history}"
    )


def _round_text(entry: LineageEntry) -> str:
    """'base, 20 classes, validation 74.7%'."""
    n_classes = pluralize(len(entry.classes) + len(entry.untrained), "class", "classes")
    accuracy = entry.val_accuracy
    validation = "no validation" if accuracy is None else f"validation {accuracy:.1f}%"
    return f"{entry.method}, {n_classes}, {validation}"
