"""The figure of the anchors: where each was stored, and where its class has gone since."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kedge.experiments.records import Record, Run
from kedge.report import queries
from kedge.report.format import number
from kedge.report.labels import (
    NEAR,
    Point,
    place_names,
)
from kedge.report.style import (
    INK,
    QUIET,
    WIDTH,
    house_style,
    looks,
    panel_title,
    shown,
)

Way = tuple[tuple[float, float], ...]  # where the anchor was stored, then the class, round by round
IN_A_ROW = 3  # panels
NAMED = 6  # classes with their name beside them, where there is room
TEXTS = {
    "anchors": (
        "Where classes go once their anchor is stored",
        (
            "A ring is the stored anchor of an old class. The arrow leads to where that class is "
            "in the model’s feature space {when}: an oracle, for it takes the old images, which "
            "the methods do not see. The plane holds the two directions in which the base model’s "
            "anchors differ most{share}. All panels have the same axes.{seed}"
        ),
    ),
}


def anchors_figure(record: Record) -> Figure | None:
    """A panel per method, all on the same axes; a class starts at the same dot in each."""
    ways = class_ways(record)
    if not ways:
        return None
    look = looks(record.methods)
    across = min(len(ways), IN_A_ROW)
    down = math.ceil(len(ways) / across)
    (left, right), (low, high) = _frame(
        [xy for of in ways.values() for way in of.values() for xy in way]
    )
    width = {1: 4.4, 2: 5.4}.get(across, WIDTH)
    tall = (width - 0.6) / across * (high - low) / (right - left)
    names = _far_apart({name: way[0] for of in ways.values() for name, way in of.items()})
    with house_style():
        lines = 1 + max(panel_title(method).count("\n") for method in ways)
        figure = Figure((width, 0.55 + (tall + 0.1 + 0.15 * lines) * down), layout="constrained")
        grid = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).flatten()
        for axes, (method, of) in zip(grid, ways.items(), strict=False):
            for way in of.values():
                _draw(axes, way, look[method].colour)
            axes.set_title(panel_title(method))
            axes.set_xlim(left, right)
            axes.set_ylim(low, high)
            axes.set_aspect("equal")
        for axes in grid[len(ways) :]:
            axes.set_visible(False)
        for axes in grid[: len(ways)]:
            axes.locator_params(nbins=5)
            axes.tick_params(labelsize=7.5)
        for axes in grid[len(ways) - across : len(ways)]:
            axes.tick_params(labelbottom=True)
        figure.supxlabel("first direction of the plane", fontsize=9)
        figure.supylabel("second direction", fontsize=9)
        for axes, of in zip(grid, ways.values(), strict=False):
            marks = [Point(*of[name][0], 0.0, 0.0, name, INK) for name in names if name in of]
            place_names(
                figure, axes, marks, list(of.values()), size=7.0, distances=NEAR, only_if_free=True
            )
    return figure


def class_ways(record: Record) -> dict[str, dict[str, Way]]:
    """Method → class → its way."""
    runs = _drawn(record)
    found = {m: _ways([run for run in runs if run.method == m]) for m in _methods(record)}
    return {method: ways for method, ways in found.items() if ways}


def words(record: Record) -> dict[str, str]:
    """What the caption says about this record."""
    share = plane_share(record)
    rounds = sorted({run.round for run in _drawn(record)})
    several = len(rounds) > 1
    return {
        "when": "after each round (a dot for each on the way)" if several else "after the update",
        "share": ""
        if share is None
        else f" and shows {number(100 * share, digits=0)}% of their variance",
        "seed": f" Seed {_drawn(record)[0].seed}." if len(record.seeds) > 1 and rounds else "",
    }


def plane_share(record: Record) -> float | None:
    """Of the base anchors' variance, what the plane of the figure shows."""
    shares = [run.measures.get("anchor_plane", math.nan) for run in _drawn(record)]
    return next((share for share in shares if math.isfinite(share)), None)


def _methods(record: Record) -> tuple[str, ...]:
    """NU never moves; PAR is trained afresh, so that its features share no axes with anchors."""
    present = queries.methods_after(record, queries.final_round(record))
    return tuple(m for m in shown(present) if not queries.is_reference(m))


def _drawn(record: Record) -> list[Run]:
    """Runs of the first seed that has anchors: under another seed the plane is another."""
    methods = _methods(record)
    runs = [run for run in record.runs if run.method in methods and run.anchors]
    seed = min((run.seed for run in runs), default=None)
    return [run for run in runs if run.seed == seed]


def _ways(runs: Sequence[Run]) -> dict[str, Way]:
    ways: dict[str, Way] = {}
    for run in sorted(runs, key=lambda run: run.round):
        for move in run.anchors:
            if all(math.isfinite(x) for x in (*move.stored, *move.now)):
                ways[move.name] = (*ways.get(move.name, (move.stored,)), move.now)
    return ways


def _frame(
    places: Sequence[tuple[float, float]],
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Limits that hold all places with a margin and are neither very flat nor very tall."""
    xs, ys = zip(*places, strict=True)
    wide = max(max(xs) - min(xs), 1e-9) * 1.16
    tall = max(max(ys) - min(ys), 1e-9) * 1.16
    wide, tall = max(wide, tall / 1.2), max(tall, wide * 0.75)
    x, y = (max(xs) + min(xs)) / 2, (max(ys) + min(ys)) / 2
    return (x - wide / 2, x + wide / 2), (y - tall / 2, y + tall / 2)


def _far_apart(places: dict[str, tuple[float, float]]) -> list[str]:
    """A few names: each time the one that is farthest from those before it."""
    centre = [sum(p[i] for p in places.values()) / len(places) for i in (0, 1)]
    chosen = [max(places, key=lambda name: math.dist(places[name], centre))]
    while len(chosen) < min(NAMED, len(places)):
        gaps = {n: min(math.dist(p, places[c]) for c in chosen) for n, p in places.items()}
        chosen.append(max(gaps, key=lambda name: gaps[name]))
    return chosen


def _draw(axes: Axes, way: Way, colour: str) -> None:
    xs, ys = zip(*way, strict=True)
    axes.plot(xs, ys, color=colour, linewidth=1.1, zorder=2)
    axes.plot(xs[1:-1], ys[1:-1], color=colour, linestyle="", marker=".", markersize=4, zorder=3)
    dx, dy = xs[-1] - xs[-2], ys[-1] - ys[-2]
    turned = math.degrees(math.atan2(dy, dx)) - 90
    axes.plot(
        xs[-1], ys[-1], color=colour, linestyle="", markeredgewidth=0, markersize=6.5, zorder=3,
        marker=(3, 0, turned) if dx or dy else ".",
    )  # fmt: skip
    axes.plot(
        xs[0], ys[0], linestyle="", marker="o", markersize=4.5, markerfacecolor="white",
        markeredgecolor=QUIET, markeredgewidth=1.0, zorder=4,
    )  # fmt: skip
