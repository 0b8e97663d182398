"""What a round did to a model, in words and tables (see `kedge.models.outcome`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from kedge.evaluation.results import Score
from kedge.models.model_file import LineageEntry
from kedge.models.outcome import FewShotChange, NamingChange, RoundOutcome, shrunk
from kedge.report.format import NONE, counted, number, signed
from kedge.report.table import Cell, Column, Row, Section, Table

UNTRAINED = "new anchors only"
ESTIMATE = "estimate"
# What `UNTRAINED` means, for captions.
ABOUT_UNTRAINED = "New anchors only: the model before, with anchors of the new classes added."
ESTIMATE_NOISE = 5.0  # points; estimates may be farther from the truth (docs/outcome.md)
MAX_ORIGINS = 6  # rounds of origin with a column of their own in the history


# ── one round ────────────────────────────────────────────────────────────────────────────────


def outcome_table(entry: LineageEntry) -> Table | None:
    """Accuracies before and after a round; None if they were not measured."""
    if (outcome := entry.outcome) is None:
        return None
    sections = []
    if outcome.naming:
        sections.append(Section(tuple(map(_naming_row, outcome.naming)), "naming"))
    if (few := outcome.few_shot) is not None:
        measured = (number(few.before), NONE, number(few.after), f"{few.episodes:,} episodes")
        row = Row(f"{counted(few.classes, 'classes')} held back", _cells(*measured))
        sections.append(Section((row,), f"few-shot, {few.shape}"))
    title = f"Round {entry.round} ({entry.method}): accuracy in %"
    columns = tuple(map(Column, ("before", UNTRAINED, "after", "measured on")))
    key, caption = f"outcome-{entry.round}", _caption(outcome)
    return Table(key, title, columns, tuple(sections), caption, stub="")


def _naming_row(change: NamingChange) -> Row:
    before = NONE if change.before is None else number(change.before)
    on = counted(change.images, "images")
    if change.estimated:
        on = ESTIMATE if change.interval is None else f"{ESTIMATE}, ± {number(change.interval)}"
    label = f"{counted(change.classes, 'classes')} of round {change.round}"
    return Row(label, _cells(before, number(change.untrained), number(change.after), on))


def _cells(*texts: str) -> tuple[Cell, ...]:
    return tuple(Cell(text, muted=text == NONE or text.startswith(ESTIMATE)) for text in texts)


def _caption(outcome: RoundOutcome) -> str:
    naming = "Naming: without examples, among all classes that the model knows."
    estimate = "Estimate: from anchors, not from images."
    if any(change.estimated and change.interval is not None for change in outcome.naming):
        estimate = f"{estimate[:-1]}; ± is the 95% interval of the accuracy after."
    estimated = any(change.estimated for change in outcome.naming)
    return " ".join([naming, ABOUT_UNTRAINED] * bool(outcome.naming) + [estimate] * estimated)


def outcome_sentence(entry: LineageEntry) -> str:
    """What the numbers of a round say, in one sentence; empty if there are none."""
    if (outcome := entry.outcome) is None:
        return ""
    old = [change for change in outcome.naming if change.before is not None]
    new = [change for change in outcome.naming if change.before is None]
    clauses = []
    if old:
        clauses.append(_about_old(old))
    if new:
        clauses.append(_about_new(new, first=entry.round == 0, trained=entry.best_epoch > 0))
    if outcome.few_shot is not None:
        clauses.append(_about_few_shot(outcome.few_shot))
    text = "; ".join(clauses)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _about_old(changes: Sequence[NamingChange]) -> str:
    before = _mean(changes, [change.before or 0.0 for change in changes])
    untrained = _mean(changes, [change.untrained for change in changes])
    after = _mean(changes, [change.after for change in changes])
    gain, noise = after - before, _noise(changes, before, after)
    estimated, why = any(change.estimated for change in changes), ""
    if abs(gain) <= noise:
        what = "kept" if estimated else "not clearly changed"
    elif gain > 0:
        what = f"gained {number(gain)} points"
    else:
        what = f"lost {number(-gain)} points"
        price, harm = before - untrained, untrained - after
        if min(price, harm) > 0:
            why = f", {number(price)} of them since there are more classes to choose from"
        else:
            why = f", all of them {'by training' if harm > 0 else 'since there are more classes'}"
    on = f"{_interval(changes)}%, {ESTIMATE}" if estimated else f"% of {_images(changes)}"
    return f"old classes {what} ({number(before)} → {number(after)}{on}){why}"


def _about_new(changes: Sequence[NamingChange], first: bool, trained: bool) -> str:
    untrained = _mean(changes, [change.untrained for change in changes])
    after = _mean(changes, [change.after for change in changes])
    gain, noise = after - untrained, _noise(changes, untrained, after)
    without = "without training" if first else "by adding anchors alone"
    if abs(gain) > noise:
        more = f"{number(abs(gain))} ± {number(noise)} points {'more' if gain > 0 else 'less'} than"
    else:
        more = f"not clearly more or less ({number(gain, signed=True)} ± {number(noise)}) than"
    estimated = any(change.estimated for change in changes)
    of = f" ({ESTIMATE})" if estimated else f" of {_images(changes)}"
    classes = "its classes" if first else "new classes"
    named = f"{classes}: {number(after)}%{of} named correctly"
    return f"{named}, {more} {without}" if trained else named


def _about_few_shot(few: FewShotChange) -> str:
    gain = few.after - few.before
    change = " ± ".join(signed(Score(gain, few.interval, few.episodes)))
    clear = abs(gain) > few.interval
    what = ("rose" if gain > 0 else "fell") if clear else "not clearly changed"
    return f"few-shot accuracy on classes held back {what} ({change} points)"


def _interval(changes: Sequence[NamingChange]) -> str:
    """The 95% interval of the mean of estimates; empty if it is not known. Their errors count as
    independent, as those that were measured nearly were (LOG.md)."""
    if any(change.interval is None for change in changes):
        return ""
    n = sum(change.classes for change in changes)
    return f" ± {number(math.hypot(*(c.classes * (c.interval or 0.0) for c in changes)) / n)}"


def _images(changes: Sequence[NamingChange]) -> str:
    return counted(sum(change.images for change in changes), "images")


def _mean(changes: Sequence[NamingChange], values: Sequence[float]) -> float:
    """The mean over images; over classes where images are gone."""
    estimated = any(change.estimated for change in changes)
    weights = [change.classes if estimated else change.images for change in changes]
    return sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)


def _noise(changes: Sequence[NamingChange], *accuracies: float) -> float:
    """Half-width of the 95% interval of the difference of two accuracies on the same images.

    Whether the same images were right is not recorded, so the two count as independent, and the
    interval is wider than it need be.
    """
    if any(change.estimated for change in changes):
        return ESTIMATE_NOISE
    n = sum(change.images for change in changes)
    shares = [shrunk(accuracy, n) / 100 for accuracy in accuracies]
    return 196 * math.sqrt(sum(share * (1 - share) / (n + 2) for share in shares))


# ── all rounds ───────────────────────────────────────────────────────────────────────────────


def history_table(
    lineage: Sequence[LineageEntry], max_origins: int | None = MAX_ORIGINS
) -> Table | None:
    """Few-shot and naming accuracy after each round; None if no round was measured.

    Classes of each round have a column, unless there are more rounds than `max_origins`.
    """
    outcomes = {e.round: e.outcome for e in lineage if e.outcome is not None}
    if not outcomes:
        return None
    origins = sorted({change.round for o in outcomes.values() for change in o.naming})
    few = max_origins is None or len(origins) <= max_origins
    names = [f"round {t}" for t in origins] if few else [f"round {origins[0]}", "others", "its own"]
    rows = []
    for t, outcome in outcomes.items():
        by_origin = {change.round: [change] for change in outcome.naming}
        if few:
            groups = [by_origin.get(origin, []) for origin in origins]
        else:
            between = [c for c in outcome.naming if c.round not in (origins[0], t)]
            own_round = by_origin.get(t, []) if t != origins[0] else []
            groups = [by_origin.get(origins[0], []), between, own_round]
        shot = outcome.few_shot
        of_shots = (NONE, NONE) if shot is None else (number(shot.before), number(shot.after))
        rows.append(Row(str(t), (*_cells(*of_shots), *map(_after_cell, groups))))
    columns = [Column(name, "few-shot") for name in ("before", "after")]
    columns += [Column(name, "naming") for name in names]
    caption = (
        f"Naming: classes of {'each round' if few else 'round 0, of others and of the round'}, "
        "among all classes known after it"
    )
    if all(outcome.few_shot is None for outcome in outcomes.values()):
        columns, rows = columns[2:], [replace(row, cells=row.cells[2:]) for row in rows]
    else:
        caption = f"Few-shot: classes held back, which are others in each round. {caption}"
    estimated = any(change.estimated for o in outcomes.values() for change in o.naming)
    caption += f"; ~ is an {ESTIMATE}, since the images are gone." if estimated else "."
    title = "Accuracy in % after each round"
    return Table("history", title, tuple(columns), (Section(tuple(rows)),), caption, stub="round")


def _after_cell(changes: Sequence[NamingChange]) -> Cell:
    if not changes:
        return Cell(NONE, muted=True)
    estimated = any(change.estimated for change in changes)
    after = _mean(changes, [change.after for change in changes])
    return Cell(f"{'~' if estimated else ''}{number(after)}", muted=estimated)
