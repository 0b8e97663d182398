"""Figures of what each round did to a model (see `kedge.models.outcome`)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import MaxNLocator

from kedge.models.model_file import LineageEntry
from kedge.models.outcome import FewShotChange, NamingChange, RoundOutcome
from kedge.report import style
from kedge.report.outcome import ABOUT_UNTRAINED, ESTIMATE, UNTRAINED
from kedge.report.style import Look, ReportFigure

# Each is smaller than the one before, so that all show where they are equal.
BEFORE, ANCHORS, AFTER = (
    Look(style.QUIET, "white", "o", ""),
    Look("#e69f00", "#e69f00", "D", ""),
    Look("#0072b2", "#0072b2", "o", ""),
)
SIZES = {BEFORE: 9.0, ANCHORS: 6.0, AFTER: 4.5}  # points
CHANGE = "#bbbbbb"  # the line between two of them
MAX_LABELS = 7  # lines with a label at their end
ROW, HALF = 0.27, 2.4  # inches: of a row, and of a panel of the history


def outcome_figure(entry: LineageEntry) -> ReportFigure | None:
    """A row for the classes of each round, and one for few-shot accuracy."""
    if entry.outcome is None or not _n_rows(entry.outcome):
        return None
    with style.house_style():
        figure = Figure((style.WIDTH, 1.1 + ROW * _n_rows(entry.outcome)), layout="constrained")
        _draw_round(figure.subplots(), entry.outcome)
        _add_legend(figure)
    caption = (
        "Naming: the share of images named correctly among all classes that the model knows, by "
        f"the round in which a class was learned. {ABOUT_UNTRAINED} An estimate is computed from "
        "anchors, since the images are gone."
    )
    title = f"What round {entry.round} did"
    return ReportFigure(f"outcome-{entry.round}", title, caption, figure)


def naming_figure(lineage: Sequence[LineageEntry]) -> ReportFigure | None:
    """Naming accuracy of the classes of each round, after each later round."""
    if len(_namings(lineage)) < 2:
        return None
    with style.house_style():
        figure, (axes,) = style.panels(1, 1, HALF)
        _draw_naming(axes, lineage)
    caption = (
        "One line for the classes of each round. Filled dots: measured on images that the round "
        "held back; the rest of a line are estimates, since the images are gone. The more classes "
        "a model knows, the harder naming is."
    )
    return ReportFigure("naming", "Naming after each round", caption, figure)


def few_shot_figure(lineage: Sequence[LineageEntry]) -> ReportFigure | None:
    """Few-shot accuracy before and after each round."""
    if len(_few_shots(lineage)) < 2:
        return None
    with style.house_style():
        figure, (axes,) = style.panels(1, 1, HALF)
        _draw_few_shot(axes, lineage)
    caption = (
        "Before (rings) and after each round (dots), on classes that the round held back. These "
        "are others in each round, so only the distance of a dot from its ring tells what a round "
        "did. Bars: 95% intervals of the change."
    )
    return ReportFigure("few-shot", "Few-shot accuracy, round by round", caption, figure)


def model_picture(lineage: Sequence[LineageEntry]) -> Figure | None:
    """What the last round did and, after several rounds, the accuracies of all; None if the last
    round was not measured."""
    outcome = lineage[-1].outcome if lineage else None
    if outcome is None or not _n_rows(outcome):
        return None
    panels = [
        (draw, title)
        for draw, measured, title in (
            (_draw_naming, _namings, "naming (filled: measured)"),
            (_draw_few_shot, _few_shots, "few-shot (rings: before)"),
        )
        if len(measured(lineage)) > 1
    ]
    heights = [1.1 + ROW * _n_rows(outcome), *([HALF] if panels else [])]
    with style.house_style():
        figure = Figure((style.WIDTH, sum(heights)), layout="constrained")
        parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
        axes = parts[0].subplots()
        _draw_round(axes, outcome)
        axes.set_title(f"what round {lineage[-1].round} did")
        _add_legend(parts[0])
        if panels:
            grid = parts[1].subplots(1, len(panels), squeeze=False)[0]
            for axes, (draw, title) in zip(grid, panels, strict=True):
                draw(axes, lineage)
                axes.set_title(title)
    return figure


def _namings(lineage: Sequence[LineageEntry]) -> dict[int, tuple[NamingChange, ...]]:
    """Naming accuracies by round, where they were measured."""
    return {e.round: e.outcome.naming for e in lineage if e.outcome and e.outcome.naming}


def _few_shots(lineage: Sequence[LineageEntry]) -> dict[int, FewShotChange]:
    """Few-shot accuracies by round, where they were measured."""
    return {e.round: e.outcome.few_shot for e in lineage if e.outcome and e.outcome.few_shot}


def _n_rows(outcome: RoundOutcome) -> int:
    return len(outcome.naming) + (outcome.few_shot is not None)


def _add_legend(figure: Figure | SubFigure) -> None:
    looks = {"before": BEFORE, UNTRAINED: ANCHORS, "after": AFTER}
    handles = [style.handle(name, look, markersize=SIZES[look]) for name, look in looks.items()]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))


def _draw_round(axes: Axes, outcome: RoundOutcome) -> None:
    rows: list[tuple[str, float | None, float | None, float]] = [
        (
            f"classes of round {c.round} ({ESTIMATE if c.estimated else f'{c.images:,} images'})",
            c.before,
            c.untrained,
            c.after,
        )
        for c in outcome.naming
    ]
    if (few := outcome.few_shot) is not None:
        rows.append((f"few-shot ({few.shape})", few.before, None, few.after))
        if outcome.naming:
            axes.axhline(len(rows) - 1.5, color=style.RULE, linewidth=1.0)
    for y, (_, before, untrained, after) in enumerate(rows):
        known = [value for value in (before, untrained, after) if value is not None]
        axes.plot([min(known), max(known)], [y, y], color=CHANGE, linewidth=2.2, zorder=2)
        for value, look in ((before, BEFORE), (untrained, ANCHORS), (after, AFTER)):
            if value is not None:
                style.errorbar(axes, [value], [y], look, markersize=SIZES[look])
    axes.set_yticks(range(len(rows)), [label for label, *_ in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("accuracy (%)")
    _widen(axes, "x")


def _draw_naming(axes: Axes, lineage: Sequence[LineageEntry]) -> None:
    lines: dict[int, list[tuple[int, float, bool]]] = {}
    for t, changes in _namings(lineage).items():
        for change in changes:
            lines.setdefault(change.round, []).append((t, change.after, change.estimated))
    few, last = len(lines) <= MAX_LABELS, max(lines)
    for origin, points in sorted(lines.items()):
        colour = to_hex(mpl.colormaps["cividis"](0.9 * origin / max(1, last)))
        ends = few or origin in (min(lines), last)
        rounds, values = [t for t, *_ in points], [value for _, value, _ in points]
        axes.plot(rounds, values, color=colour, linewidth=1.6 if ends else 0.8)
        for t, value, estimated in points:
            if few or not estimated:
                look = Look(colour, "white" if estimated else colour, "o", "")
                style.errorbar(axes, [t], [value], look, markersize=4.5)
    axes.margins(x=0.1)
    _finish_rounds(axes)
    low, high = axes.get_ylim()
    labelled = lines if few else {origin: lines[origin] for origin in (min(lines), last)}
    y = -math.inf
    for origin, points in sorted(labelled.items(), key=lambda line: line[1][-1][1]):
        t, value, _ = points[-1]
        y = max(value, y + 0.07 * (high - low))  # labels of equal values do not overlap
        text = axes.annotate(f"round {origin}", (t, y), (5, 0), fontsize=7.5, va="center")
        text.set_anncoords("offset points")


def _draw_few_shot(axes: Axes, lineage: Sequence[LineageEntry]) -> None:
    for t, few in _few_shots(lineage).items():
        axes.plot([t, t], [few.before, few.after], color=CHANGE, linewidth=2.2, zorder=2)
        style.errorbar(axes, [t], [few.before], BEFORE, markersize=6.5)
        style.errorbar(axes, [t], [few.after], AFTER, yerr=few.interval, markersize=4.0)
    axes.margins(x=0.1)
    _finish_rounds(axes)


def _finish_rounds(axes: Axes) -> None:
    axes.set_xlabel("round")
    axes.set_ylabel("accuracy (%)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _widen(axes, "y")


def _widen(axes: Axes, axis: str, least: float = 15.0) -> None:
    """Let the axis span at least some points, within 0 and 100 and a margin, so that small
    differences do not look large."""
    low, high = getattr(axes, f"get_{axis}lim")()
    extra = max(0.0, least - (high - low)) / 2
    low, high = low - extra, high + extra
    over = max(0.0, high - 101.0)
    getattr(axes, f"set_{axis}lim")(max(-1.0, low - over), high - over)
