"""Figures for several rounds: how each method fares as the rounds go by."""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from kedge.records import PoolInfo, Record
from kedge.report import reading
from kedge.report.notation import number, shortened
from kedge.report.style import WIDTH, Look, head, house_style, looks

IN_A_ROW = 3  # panels


def rounds_figure(record: Record) -> Figure | None:
    """A panel per pool: old, new, unseen, each over the rounds."""
    pools = reading.table_pools(record, reading.final_round(record))
    methods = reading.methods_after(record, reading.final_round(record))
    look = looks(record.methods)
    if not pools:
        return None
    across = min(len(pools), IN_A_ROW)
    down = math.ceil(len(pools) / across)
    with house_style():
        figure = Figure((WIDTH, 0.6 + 2.7 * down), layout="constrained")
        grid = figure.subplots(down, across, sharey=True, squeeze=False).flatten()
        for axes, pool in zip(grid, pools, strict=False):
            for place, method in enumerate(methods):
                aside = 0.04 * (place - (len(methods) - 1) / 2)  # equal values stay visible
                _over_rounds(axes, record, method, pool, look[method], aside)
            axes.set_title(pool.label)
            axes.set_xlabel("round")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.set_xlim(record.rounds[0] - 0.3, record.rounds[-1] + 0.3)
        for axes in grid[len(pools) :]:
            axes.set_visible(False)
        for axes in grid[::across]:
            axes.set_ylabel("accuracy (%)")
        handles = [_handle(method, look[method]) for method in methods]
        head(figure, handles)
    return figure


def _over_rounds(
    axes: Axes, record: Record, method: str, pool: PoolInfo, look: Look, aside: float
) -> None:
    found = [(t, reading.score(record, method, t, pool.name)) for t in record.rounds]
    known = [(t, score) for t, score in found if score is not None]
    axes.errorbar(
        [t + aside for t, _ in known],
        [score.mean for _, score in known],
        yerr=[score.ci if math.isfinite(score.ci) else 0.0 for _, score in known],
        color=look.colour, linestyle=look.line, elinewidth=1.0,
        marker="" if reading.is_reference(method) else look.marker,
        markerfacecolor=look.fill, markersize=5,
    )  # fmt: skip


def _handle(method: str, look: Look) -> Line2D:
    marker = "" if reading.is_reference(method) else look.marker
    return Line2D(
        [], [], color=look.colour, linestyle=look.line, marker=marker,
        markerfacecolor=look.fill, markersize=5, label=shortened(method),
    )  # fmt: skip


def matrix_figure(record: Record) -> Figure | None:
    """A heat map per method on one common scale; cells of rounds yet to come are unframed."""
    pools = reading.matrix_pools(record)
    methods = reading.methods_after(record, reading.final_round(record))
    values = {
        method: [[_mean(record, method, t, pool.name) for pool in pools] for t in record.rounds]
        for method in methods
    }
    known = [v for rows in values.values() for row in rows for v in row if math.isfinite(v)]
    if not known:
        return None
    across = min(len(methods), IN_A_ROW if len(pools) <= 5 else IN_A_ROW - 1)
    down = math.ceil(len(methods) / across)
    panel = 1.9 if len(record.rounds) <= 4 else 2.2
    with house_style():
        figure = Figure((WIDTH, 0.4 + panel * down), layout="constrained")
        grid = figure.subplots(down, across, squeeze=False).flatten()
        image: AxesImage | None = None
        for axes, method in zip(grid, methods, strict=False):
            image = axes.imshow(
                values[method], cmap="cividis", vmin=min(known), vmax=max(known), aspect="auto"
            )
            _annotate(axes, record, values[method], pools, (min(known), max(known)))
            axes.set_title(shortened(method))
        for axes in grid[len(methods) :]:
            axes.set_visible(False)
        for axes in grid[::across]:
            axes.set_ylabel("after round")
        for axes in grid[max(0, len(methods) - across) : len(methods)]:
            axes.set_xlabel("classes of round")
        if image is not None:
            bar = figure.colorbar(image, ax=list(grid), shrink=0.8, pad=0.02)
            bar.set_label("accuracy (%)")
            bar.outline.set_visible(False)
    return figure


def _annotate(
    axes: Axes,
    record: Record,
    values: list[list[float]],
    pools: tuple[PoolInfo, ...],
    span: tuple[float, float],
) -> None:
    """Each number in its cell, light on dark and dark on light."""
    middle = (span[0] + span[1]) / 2
    for y, (t, row) in enumerate(zip(record.rounds, values, strict=True)):
        for x, (pool, value) in enumerate(zip(pools, row, strict=True)):
            if not math.isfinite(value):
                continue
            ink = "white" if value < middle else "black"
            axes.text(x, y, number(value), ha="center", va="center", color=ink, fontsize=7.5)
            if reading.has_come(pool, t):
                frame = Rectangle((x - 0.46, y - 0.44), 0.92, 0.88, fill=False)
                frame.set(edgecolor=ink, linewidth=0.8)
                axes.add_patch(frame)
    axes.grid(visible=False)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_xticks(range(len(pools)))
    axes.set_xticklabels([p.name.removeprefix(reading.ROUND_POOL) for p in pools])
    axes.set_yticks(range(len(record.rounds)))
    axes.set_yticklabels([str(t) for t in record.rounds])


def _mean(record: Record, method: str, round: int, pool: str) -> float:
    found = reading.score(record, method, round, pool)
    return math.nan if found is None else found.mean
