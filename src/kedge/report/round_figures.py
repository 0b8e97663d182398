"""Figures over rounds: accuracy, the matrix of rounds, anchor drift, and where classes move."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from kedge.evaluation.results import Score
from kedge.experiments import metrics
from kedge.experiments.records import PoolInfo, Record, Run
from kedge.report import queries, style
from kedge.report.format import number, shortened
from kedge.report.style import ReportFigure
from kedge.report.sweeps import without_sweeps

MAX_NUMBERS = 10  # columns of a matrix with a number in each cell
Path = tuple[tuple[float, float], ...]  # the stored anchor, then its class after each round


def _methods(record: Record) -> tuple[str, ...]:
    return without_sweeps(queries.final_methods(record))


def _line_options(method: str) -> dict[str, object]:
    """References are lines without markers, PAR a thick one."""
    if not queries.is_reference(method):
        return {"linewidth": 1.3}
    return {"marker": "", "linewidth": 2.2 if queries.family(method) == queries.PARAGON else 1.3}


def rounds_figure(record: Record) -> ReportFigure | None:
    """A panel per pool: accuracy after each round."""
    pools, methods = queries.table_pools(record, record.rounds[-1]), _methods(record)
    if len(queries.incremental_rounds(record)) < 2 or not pools:
        return None
    scores = {
        p.label: {
            m: {t: queries.score(record, m, t, p.name) for t in record.rounds} for m in methods
        }
        for p in pools
    }
    caption = "Old: classes of earlier rounds. New: classes of the round. Bars: 95% intervals."
    caption += " Lines without markers: references." * any(map(queries.is_reference, methods))
    figure = _draw_rounds(record, scores, "accuracy (%)")
    return ReportFigure("rounds", "Accuracy after each round", caption, figure)


def drift_figure(record: Record) -> ReportFigure | None:
    """Anchor drift, relative to the distance between classes, after each round."""
    rounds = queries.incremental_rounds(record)
    methods = [m for m in _methods(record) if queries.family(m) != queries.PARAGON]
    drifts = {m: {t: metrics.relative_drift(record, m, t) for t in rounds} for m in methods}
    drifts = {m: by_round for m, by_round in drifts.items() if any(by_round.values())}
    if len(rounds) < 2 or not drifts:
        return None
    caption = (
        "Mean distance between a stored anchor and its class now, relative to the mean distance "
        "between two classes. Computed from the old images, which no method sees."
        + " Bars: 95% intervals over seeds."
        * queries.intervals_over_seeds(record)
    )
    figure = _draw_rounds(record, {"": drifts}, "anchor drift / distance between classes")
    figure.axes[0].set_ylim(bottom=min(0.0, figure.axes[0].get_ylim()[0]))
    return ReportFigure("drift", "Anchor drift", caption, figure)


def _draw_rounds(
    record: Record, scores: dict[str, dict[str, dict[int, Score | None]]], quantity: str
) -> Figure:
    """Scores over rounds, given by panel title, method and round."""
    looks = style.looks(record.methods)
    handles = {}
    with style.house_style():
        figure, grid = style.panels(len(scores), 3, 2.9, sharey=True)
        for axes, (title, by_method) in zip(grid, scores.items(), strict=True):
            for n, (method, by_round) in enumerate(by_method.items()):
                offset, options = 0.04 * (n - (len(by_method) - 1) / 2), _line_options(method)
                style.draw_scores(axes, by_round, looks[method], offset, **options)
                handles[method] = style.handle(method, looks[method], **options)
            axes.set_title(title)
            axes.set_xlabel("round")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        grid[0].set_ylabel(quantity)
        style.add_legend(figure, list(handles.values()))
    return figure


def matrix_figure(record: Record) -> ReportFigure | None:
    """A heat map per method: accuracy after each round on the classes of each round."""
    pools, methods = queries.round_pools(record), _methods(record)
    values: dict[str, list[list[float]]] = {}
    for method in methods:
        scores = [[queries.score(record, method, t, p.name) for p in pools] for t in record.rounds]
        values[method] = [[math.nan if s is None else s.mean for s in row] for row in scores]
    known = [v for rows in values.values() for row in rows for v in row if math.isfinite(v)]
    if not known or len(queries.incremental_rounds(record)) < 2:
        return None
    low, high = min(known), max(known)
    across = 2 if 5 < len(pools) <= MAX_NUMBERS else 3
    with style.house_style():
        height = min(0.9 + 0.24 * len(record.rounds), 2.6)
        figure, grid = style.panels(len(methods), across, max(1.8, height))
        for axes, method in zip(grid, methods, strict=True):
            matrix = values[method]
            image = axes.imshow(matrix, cmap="cividis", aspect="auto", vmin=low, vmax=high)
            _annotate_matrix(axes, record, matrix, pools, (low + high) / 2)
            axes.set_title(shortened(method, 24))
        figure.supxlabel("classes of round", fontsize=9)
        figure.supylabel("after round", fontsize=9)
        bar = figure.colorbar(image, ax=grid, shrink=0.8, pad=0.02, label="accuracy (%)")
        bar.outline.set_visible(False)
    caption = "Left of the white line: classes that had been delivered by then."
    return ReportFigure("matrix", "Classes of each round after each round", caption, figure)


def _annotate_matrix(
    axes: Axes, record: Record, values: list[list[float]], pools: Sequence[PoolInfo], middle: float
) -> None:
    """A step line around the delivered classes and, if there is room, numbers in the cells."""
    axes.spines[:].set_visible(False)
    axes.grid(visible=False)
    axes.tick_params(length=0)
    every = 1 if len(pools) <= MAX_NUMBERS else 3
    names = [pool.name.removeprefix(queries.ROUND_POOL) for pool in pools]
    axes.set_xticks(range(0, len(pools), every), names[::every])
    axes.set_yticks(range(0, len(record.rounds), every), list(map(str, record.rounds[::every])))
    steps = [sum(queries.is_delivered(p, t) for p in pools) - 0.5 for t in record.rounds]
    edges = [y - 0.5 for y in range(len(values) + 1)]
    line = axes.stairs(steps, edges, orientation="horizontal", baseline=None)
    line.set(edgecolor="white", linewidth=2.5)
    axes.set_xlim(-0.5, len(pools) - 0.5)
    axes.set_ylim(len(values) - 0.5, -0.5)
    for y, row in enumerate(values if every == 1 else ()):
        for x, value in enumerate(row):
            if math.isfinite(value):
                ink = "white" if value < middle else "black"
                axes.text(x, y, number(value), ha="center", va="center", fontsize=7.5, color=ink)


def anchors_figure(record: Record) -> ReportFigure | None:
    """A panel per method: from each stored anchor an arrow to where its class is now."""
    looks, runs = style.looks(record.methods), _runs_with_anchors(record)
    paths = {m: _anchor_paths([r for r in runs if r.method == m]) for m in _methods(record)}
    paths = {method: by_class for method, by_class in paths.items() if by_class}
    if not paths:
        return None
    points = [xy for by_class in paths.values() for path in by_class.values() for xy in path]
    (left, low), (right, high) = (tuple(map(end, zip(*points, strict=True))) for end in (min, max))
    ratio = max(0.6, min((high - low) / (right - left or 1), 1.2))
    with style.house_style():
        across = max(2, min(3, len(paths)))
        height = (style.WIDTH - 0.6) / across * ratio + 0.35
        figure, grid = style.panels(len(paths), across, height, sharex=True, sharey=True)
        for axes, (method, by_class) in zip(grid, paths.items(), strict=True):
            for path in by_class.values():
                _draw_path(axes, path, looks[method].colour)
            axes.set_title(shortened(method, 24))
            axes.set_aspect("equal")
            axes.locator_params(nbins=5)
            axes.tick_params(labelsize=7.5)
        figure.supxlabel("first principal component", fontsize=9)
        figure.supylabel("second", fontsize=9)
    share = number(100 * runs[0].measures.get("anchor_plane", math.nan), digits=0)
    caption = (
        "Ring: stored anchor of an old class. Arrow: to where the class is now, with a dot for "
        "each round on the way; computed from the old images, which no method sees. The plane "
        f"shows {share}% of the variance of the base anchors (seed {runs[0].seed})."
    )
    return ReportFigure("anchors", "Where classes move from their anchors", caption, figure)


def _runs_with_anchors(record: Record) -> list[Run]:
    """Runs of the first seed that has anchors; every seed has another plane.

    References are left out: NU does not move, and PAR's features are unrelated to the anchors.
    """
    methods = [m for m in _methods(record) if not queries.is_reference(m)]
    runs = [run for run in record.runs if run.method in methods and run.anchors]
    seed = min((run.seed for run in runs), default=None)
    return [run for run in runs if run.seed == seed]


def _anchor_paths(runs: Sequence[Run]) -> dict[str, Path]:
    """Class → stored anchor and the positions of the class, round by round."""
    paths: dict[str, Path] = {}
    for run in sorted(runs, key=lambda run: run.round):
        for move in run.anchors:
            if all(math.isfinite(x) for x in (*move.stored, *move.now)):
                paths[move.name] = (*paths.get(move.name, (move.stored,)), move.now)
    return paths


def _draw_path(axes: Axes, path: Path, colour: str) -> None:
    xs, ys = zip(*path, strict=True)
    axes.plot(xs, ys, color=colour, linewidth=1.1, marker=".", markersize=4)
    dx, dy = xs[-1] - xs[-2], ys[-1] - ys[-2]
    head = (3, 0, math.degrees(math.atan2(dy, dx)) - 90) if dx or dy else "."
    axes.plot(xs[-1], ys[-1], color=colour, marker=head, markersize=6.5, markeredgewidth=0)
    axes.plot(xs[0], ys[0], color="white", marker="o", markersize=4.5, markeredgecolor=style.QUIET)
