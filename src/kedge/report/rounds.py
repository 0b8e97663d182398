"""Figures for several rounds: how each method fares as the rounds go by."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from kedge.experiments.records import PoolInfo, Record
from kedge.report import queries
from kedge.report.format import (
    listing,
    number,
    shortened,
)
from kedge.report.style import (
    LONGEST,
    WIDTH,
    Look,
    head,
    house_style,
    looks,
    panel_title,
    shown,
)

IN_A_ROW = 3  # panels
LEGIBLE = 10  # columns of a matrix; with more, its numbers are left to the table
TEXTS = {
    "rounds": (
        "Accuracy after each round",
        (
            "On all classes of earlier rounds (old), on those that the round brought (new) and on "
            "unseen ones. Bars are 95% intervals.{references}"
        ),
    ),
    "matrix": (
        "Every round’s classes after every round",
        (
            "One panel per method: a row is the model after a round, a column the classes that a "
            "round brought. {framed} to rounds that had come by then."
        ),
    ),
    "drift": (
        "How far classes drift from their anchors",
        (
            "Mean distance between the anchor that was stored and where its class is now, divided "
            "by the mean distance between two classes: at 1, classes are as far from their own "
            "anchor as from each other. An oracle: it takes the old images.{bars}"
        ),
    ),
}
SPOKEN = {queries.BASE: "NU (no update)", queries.PARAGON: "PAR (paragon)"}


def references(record: Record) -> str:
    """How the references are drawn, as many as there are; for the caption."""
    words = {
        queries.BASE: "NU (dashed, never updated)",
        queries.PARAGON: "PAR (thick, trained on everything)",
    }
    said = [words[name] for name in queries.references(record)]
    if not said:
        return ""
    verbs = ("is", "it is a reference") if len(said) == 1 else ("are", "they are references")
    return f" {listing(said)} {verbs[0]} drawn without points: {verbs[1]}."


def rounds_figure(record: Record) -> Figure | None:
    """A panel per pool: old, new, unseen, each over the rounds."""
    pools = queries.table_pools(record, queries.final_round(record))
    methods = _methods(record)
    look = looks(record.methods)
    if not pools:
        return None
    across = min(len(pools), IN_A_ROW)
    down = math.ceil(len(pools) / across)
    with house_style():
        figure = Figure((WIDTH, 0.6 + 2.9 * down), layout="constrained")
        grid = figure.subplots(down, across, sharey=True, squeeze=False).flatten()
        for axes, pool in zip(grid, pools, strict=False):
            for place, method in enumerate(methods):
                aside = 0.04 * (place - (len(methods) - 1) / 2)  # equal values stay visible
                _over_rounds(axes, record, method, pool, look[method], aside)
            axes.set_title(pool.label)
            _round_axis(axes, record.rounds)
        for axes in grid[len(pools) :]:
            axes.set_visible(False)
        for axes in grid[: len(pools) : across]:
            axes.set_ylabel("accuracy (%)")
        head(figure, [_handle(method, look[method]) for method in methods])
    return figure


def drift_figure(record: Record) -> Figure | None:
    """How far classes have moved from their anchors, in units of the room between classes."""
    drifts = drift(record)
    rounds = sorted({t for found in drifts.values() for t in found})
    if len(rounds) < 2:
        return None
    look = looks(record.methods)
    with house_style():
        figure = Figure((5.4, 3.4), layout="constrained")
        axes = figure.add_subplot()
        for place, (method, found) in enumerate(drifts.items()):
            aside = 0.03 * (place - (len(drifts) - 1) / 2)
            means = {t: statistics.fmean(ratios) for t, ratios in found.items()}
            below = [means[t] - min(ratios) for t, ratios in found.items()]
            above = [max(ratios) - means[t] for t, ratios in found.items()]
            axes.errorbar(
                [t + aside for t in means], list(means.values()), yerr=[below, above],
                color=look[method].colour, linestyle=look[method].line, elinewidth=1.0,
                marker=_marker(method, look[method]), markerfacecolor=look[method].fill,
                markersize=5, zorder=3,
            )  # fmt: skip
        _round_axis(axes, rounds)
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
        axes.set_ylabel("anchor drift / distance between classes")
        head(figure, [_handle(method, look[method]) for method in drifts])
    return figure


def drift(record: Record) -> dict[str, dict[int, list[float]]]:
    """Method → round → drift over spread, a value per seed. PAR's features are new each round."""
    found: dict[str, dict[int, list[float]]] = {}
    for method in _methods(record):
        for t in record.rounds:
            for run in record.select(method, t):
                moved = run.measures.get("anchor_drift", math.nan)
                apart = run.measures.get("anchor_spread", math.nan)
                if math.isfinite(moved) and math.isfinite(apart) and apart > 0:
                    found.setdefault(method, {}).setdefault(t, []).append(moved / apart)
    return {m: rounds for m, rounds in found.items() if queries.family(m) != queries.PARAGON}


def _methods(record: Record) -> tuple[str, ...]:
    return shown(queries.methods_after(record, queries.final_round(record)))


def _round_axis(axes: Axes, rounds: Sequence[int]) -> None:
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    room = max(0.3, 0.035 * (rounds[-1] - rounds[0]))
    axes.set_xlim(rounds[0] - room, rounds[-1] + room)


def _over_rounds(
    axes: Axes, record: Record, method: str, pool: PoolInfo, look: Look, aside: float
) -> None:
    found = [(t, queries.score(record, method, t, pool.name)) for t in record.rounds]
    known = [(t, score) for t, score in found if score is not None]
    axes.errorbar(
        [t + aside for t, _ in known],
        [score.mean for _, score in known],
        yerr=[score.ci if math.isfinite(score.ci) else 0.0 for _, score in known],
        color=look.colour, linestyle=look.line, linewidth=_width(method), elinewidth=1.0,
        marker=_marker(method, look), markerfacecolor=look.fill, markersize=4.5,
    )  # fmt: skip


def _marker(method: str, look: Look) -> str:
    """References are lines without points."""
    return "" if queries.is_reference(method) else look.marker


def _width(method: str) -> float:
    return 2.2 if queries.family(method) == queries.PARAGON else 1.3


def _handle(method: str, look: Look) -> Line2D:
    return Line2D(
        [], [], color=look.colour, linestyle=look.line, linewidth=_width(method),
        marker=_marker(method, look), markerfacecolor=look.fill, markersize=5,
        label=SPOKEN.get(method, shortened(method, LONGEST)),
    )  # fmt: skip


def matrix_figure(record: Record) -> Figure | None:
    """A heat map per method on one common scale; cells of rounds yet to come are unframed."""
    pools = queries.matrix_pools(record)
    methods = _methods(record)
    values = {
        method: [[_mean(record, method, t, pool.name) for pool in pools] for t in record.rounds]
        for method in methods
    }
    known = [v for rows in values.values() for row in rows for v in row if math.isfinite(v)]
    if not known:
        return None
    crowded = len(pools) > LEGIBLE
    across = min(len(methods), IN_A_ROW if len(pools) <= 5 or crowded else IN_A_ROW - 1)
    down = math.ceil(len(methods) / across)
    panel = max(1.7, 0.75 + 0.24 * len(record.rounds)) if not crowded else 2.0
    panel += 0.15 * max(panel_title(method).count("\n") for method in methods)
    with house_style():
        figure = Figure((WIDTH, 0.4 + panel * down), layout="constrained")
        grid = figure.subplots(down, across, squeeze=False).flatten()
        image: AxesImage | None = None
        for axes, method in zip(grid, methods, strict=False):
            image = axes.imshow(
                values[method], cmap="cividis", vmin=min(known), vmax=max(known), aspect="auto"
            )
            _annotate(axes, record, values[method], pools, (min(known), max(known)))
            axes.set_title(panel_title(method))
        for axes in grid[len(methods) :]:
            axes.set_visible(False)
        for axes in grid[: len(methods) : across]:
            axes.set_ylabel("after round")
        for axes in grid[max(0, len(methods) - across) : len(methods)]:
            axes.set_xlabel("classes of round")
        if image is not None:
            bar = figure.colorbar(image, ax=list(grid), shrink=0.8, pad=0.02)
            bar.set_label("accuracy (%)")
            bar.outline.set_visible(False)
    return figure


def framed(record: Record) -> str:
    """How the matrix marks what has come; for its caption."""
    few = len(queries.matrix_pools(record)) <= LEGIBLE
    return "Framed cells belong" if few else "Cells left of the white line belong"


def _annotate(
    axes: Axes,
    record: Record,
    values: list[list[float]],
    pools: tuple[PoolInfo, ...],
    span: tuple[float, float],
) -> None:
    """Each number in its cell, light on dark and dark on light."""
    middle, crowded = (span[0] + span[1]) / 2, len(pools) > LEGIBLE
    for y, (t, row) in enumerate(zip(record.rounds, values, strict=True)):
        for x, (pool, value) in enumerate(zip(pools, row, strict=True)):
            if crowded or not math.isfinite(value):
                continue
            ink = "white" if value < middle else "black"
            axes.text(x, y, number(value), ha="center", va="center", color=ink, fontsize=7.5)
            if queries.has_come(pool, t):
                frame = Rectangle((x - 0.46, y - 0.44), 0.92, 0.88, fill=False)
                frame.set(edgecolor=ink, linewidth=0.8)
                axes.add_patch(frame)
    axes.grid(visible=False)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    if crowded:
        steps = [sum(queries.has_come(pool, t) for pool in pools) - 0.5 for t in record.rounds]
        edges = [y - 0.5 for y in range(len(steps) + 1)]
        axes.stairs(steps, edges, orientation="horizontal", baseline=None, color="white")
        axes.set_xlim(-0.5, len(pools) - 0.5)
        axes.set_ylim(len(steps) - 0.5, -0.5)
    every = 3 if crowded else 1
    names = [pool.name.removeprefix(queries.ROUND_POOL) for pool in pools]
    axes.set_xticks(range(0, len(pools), every), names[::every])
    axes.set_yticks(range(0, len(record.rounds), every), [str(t) for t in record.rounds[::every]])


def _mean(record: Record, method: str, round: int, pool: str) -> float:
    found = queries.score(record, method, round, pool)
    return math.nan if found is None else found.mean
