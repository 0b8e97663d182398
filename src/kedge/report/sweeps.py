"""Figures for sweeps: one method under many values of one option, as in the paper's appendix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from kedge.evaluation.results import Score
from kedge.experiments.records import PoolInfo, Record
from kedge.report import queries
from kedge.report.format import listing, shortened
from kedge.report.labels import (
    Level,
    Point,
    name_levels,
    place_names,
)
from kedge.report.style import (
    LONGEST,
    QUIET,
    WIDTH,
    Look,
    Sweep,
    head,
    house_style,
    looks,
    shown,
    sweeps,
    text_width,
)  # fmt: skip

LEAST = 6.0  # points that a panel shows, lest a small difference looks large
TEXTS = {  # of sweep-<option> and sweep-<option>-plane
    "sweep": (
        "Accuracy as {option} changes",
        (
            "A point is one value of {option}, with its 95% interval; the values stand evenly "
            "spaced.{default} The level lines are the methods whose option is not varied here"
            "{shade}. Every panel has its own scale, of 6 points at least."
        ),
    ),
    "sweep-plane": (
        "What is kept and learned as {option} changes",
        (
            "Joined points are one method, in rising order of {option}; the number beside a point "
            "is its value. Right: keeps the old classes. Up: learns the new ones. Bars are 95% "
            "intervals.{before}"
        ),
    ),
}
NAMES = {  # of options: on an axis, within a sentence
    "lambda": ("λ, the weight of the penalty", "λ"),
    "exemplars": ("images kept per class", "the number of images kept per class"),
    "anchors": ("anchors in each step", "the number of anchors in each step"),
}
BANDS = 3  # shaded intervals that can lie over each other and still be told apart
SHORT = 5  # letters of a name that fits beside its line; longer ones go to the legend
TICK = 8.0  # points


def curves(record: Record) -> dict[str, tuple[Sweep, ...]]:
    """Option → its curves, of the methods that got as far as the final round."""
    present = queries.methods_after(record, queries.final_round(record))
    found: dict[str, tuple[Sweep, ...]] = {}
    for sweep in sweeps(present):
        found[sweep.option] = (*found.get(sweep.option, ()), sweep)
    return found


def words(record: Record, drawn: Sequence[Sweep]) -> dict[str, str]:
    """What the texts of the two figures say about the option."""
    defaults = {queries.family(s.stem): s.default for s in drawn if s.default is not None}
    said = listing([f"{value:g} for {name}" for name, value in defaults.items()] or [""])
    shade = ", shaded by their interval" if len(_others(record, drawn)) <= BANDS else ""
    before = (
        " Left of NU’s dashed line, the old classes are known less well than before the first "
        "update."
    )
    return {
        "before": before if queries.BASE in queries.references(record) else "",
        "option": NAMES.get(drawn[0].option, ("", drawn[0].option))[1],
        "default": f" Where it is not asked for, it is {said}." if defaults else "",
        "shade": shade,
    }


def sweep_figure(record: Record, drawn: Sequence[Sweep]) -> Figure | None:
    """A panel per pool: the option's values stand evenly spaced, whatever their size."""
    last = queries.final_round(record)
    pools = queries.table_pools(record, last)
    if not pools:
        return None
    values = sorted({value for sweep in drawn for value, _ in sweep.points})
    others = _others(record, drawn)
    look, mine = looks(record.methods), looks([sweep.stem for sweep in drawn])
    with house_style():
        across = _columns([f"{v:g}" for v in values], len(pools))
        down = math.ceil(len(pools) / across)
        figure = Figure((WIDTH, 0.5 + 2.35 * down), layout="constrained")
        grid = figure.subplots(down, across, squeeze=False).flatten()
        for axes, pool in zip(grid, pools, strict=False):
            for method in others:
                found = queries.score(record, method, last, pool.name)
                _across(axes, found, look[method], banded=len(others) <= BANDS)
            for place, sweep in enumerate(drawn):
                aside = 0.12 * (place - (len(drawn) - 1) / 2)  # equal values stay visible
                _curve(axes, record, sweep, pool, values, mine[sweep.stem], aside)
            axes.set_title(pool.label)
            axes.set_xlabel(NAMES.get(drawn[0].option, (drawn[0].option,))[0])
            axes.set_xticks(range(len(values)), [f"{v:g}" for v in values], fontsize=TICK)
            axes.set_xlim(-0.4, len(values) - 0.6)
            axes.grid(axis="x", visible=False)
            axes.margins(y=0.07)
            low, high = axes.get_ylim()
            room = max(0.0, LEAST - (high - low)) / 2
            axes.set_ylim(low - room, high + room)
        for axes in grid[len(pools) :]:
            axes.set_visible(False)
        for axes in grid[: len(pools) : across]:
            axes.set_ylabel("accuracy (%)")
        handles = [_handle(sweep.stem, mine[sweep.stem], marked=True) for sweep in drawn]
        handles += [_handle(m, look[m], marked=False) for m in others if len(m) > SHORT]
        head(figure, handles)
        named = []
        for axes, pool in zip(grid, pools, strict=False):
            scores = {m: queries.score(record, m, last, pool.name) for m in others}
            near = {m: s.mean for m, s in scores.items() if s is not None and len(m) <= SHORT}
            named.append((axes, [Level(y, m, look[m].colour) for m, y in near.items()]))
        name_levels(figure, named)
    return figure


def plane_figure(record: Record, drawn: Sequence[Sweep]) -> Figure | None:
    """Old against new: the way a method takes through the plane as its option grows."""
    last = queries.final_round(record)
    look, mine = looks(record.methods), looks([sweep.stem for sweep in drawn])
    ways = [
        [
            _point(record, label, last, f"{value:g}", mine[sweep.stem])
            for value, label in sweep.points
        ]
        for sweep in drawn
    ]
    paths = [[p for p in way if p is not None] for way in ways]
    if not any(paths):
        return None
    named = [_point(record, m, last, m, look[m]) for m in _others(record, drawn)]
    others = [p for p in named if p is not None]
    with house_style():
        figure = Figure((5.4, 4.6), layout="constrained")
        axes = figure.add_subplot()
        for p in [p for p in others if queries.family(p.name) == queries.BASE][:1]:
            axes.axvline(p.x, color=QUIET, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
        for sweep, path in zip(drawn, paths, strict=True):
            style = mine[sweep.stem]
            axes.plot(
                [p.x for p in path], [p.y for p in path], color=style.colour,
                linestyle=style.line, linewidth=1.2, alpha=0.6, zorder=2,
            )  # fmt: skip
            for p in path:
                _mark(axes, p, style, 5.5)
        for p in others:
            _mark(axes, p, look[p.name], 7.5)
        axes.set_xlabel("accuracy on old classes (%)  →  keeps more")
        axes.set_ylabel("accuracy on new classes (%)  →  learns more")
        axes.margins(0.14)
        symbol = NAMES.get(drawn[0].option, (drawn[0].option,))[0].partition(",")[0]
        handles = [_handle(s.stem, mine[s.stem], marked=True) for s in drawn]
        for handle, sweep in zip(handles, drawn, strict=True):
            handle.set_label(f"{shortened(sweep.stem, LONGEST)} (beside a point: {symbol})")
        head(figure, handles)
        lines = [[(p.x, p.y) for p in path] for path in paths]
        place_names(figure, axes, [*others, *(p for path in paths for p in path)], lines, size=8.5)
    return figure


def _others(record: Record, drawn: Sequence[Sweep]) -> tuple[str, ...]:
    """All that is no point of these curves; of other sweeps the default alone."""
    present = queries.methods_after(record, queries.final_round(record))
    inside = {label for sweep in drawn for label in sweep.members}
    return tuple(m for m in shown(present) if m not in inside)


def _columns(ticks: Sequence[str], panels: int) -> int:
    """As many panels in a row as leave room for every tick's label."""
    half = [text_width(tick, TICK) / 2 for tick in ticks]
    step = max((a + b for a, b in pairwise(half)), default=0.0) + 0.04
    fits = (n for n in (3, 2) if WIDTH / n - 0.85 >= step * len(ticks))
    return min(panels, next(fits, 1))


def _across(axes: Axes, score: Score | None, look: Look, *, banded: bool) -> None:
    """A method that has no such option, or not in this sweep: the same at all of its values."""
    if score is None:
        return
    if banded:
        low, high = score.mean - _ci(score), score.mean + _ci(score)
        axes.axhspan(low, high, color=look.colour, alpha=0.10, linewidth=0, zorder=1)
    axes.axhline(score.mean, color=look.colour, linestyle=look.line, linewidth=1.2, zorder=2)


def _curve(
    axes: Axes, record: Record, sweep: Sweep, pool: PoolInfo, values: Sequence[float],
    look: Look, aside: float,
) -> None:  # fmt: skip
    last = queries.final_round(record)
    found = [(v, queries.score(record, label, last, pool.name)) for v, label in sweep.points]
    known = [(values.index(v), score) for v, score in found if score is not None]
    axes.errorbar(
        [x + aside for x, _ in known],
        [score.mean for _, score in known],
        yerr=[_ci(score) for _, score in known],
        color=look.colour, marker=look.marker, markerfacecolor=look.fill, markersize=5,
        linestyle=look.line, elinewidth=1.3, capsize=2.0, zorder=4,
    )  # fmt: skip


def _point(record: Record, label: str, round: int, name: str, look: Look) -> Point | None:
    old, new = (queries.score(record, label, round, pool) for pool in ("old", "new"))
    if old is None or new is None:
        return None
    return Point(old.mean, new.mean, _ci(old), _ci(new), name, look.colour)


def _mark(axes: Axes, p: Point, look: Look, size: float) -> None:
    axes.errorbar(
        p.x, p.y, xerr=p.ci_x, yerr=p.ci_y, color=look.colour, marker=look.marker,
        markerfacecolor=look.fill, markersize=size, elinewidth=1.0, zorder=3,
    )  # fmt: skip


def _handle(label: str, look: Look, *, marked: bool) -> Line2D:
    return Line2D(
        [], [], color=look.colour, linestyle=look.line, marker=look.marker if marked else "",
        markerfacecolor=look.fill, markersize=5, label=shortened(label, LONGEST),
    )  # fmt: skip


def _ci(score: Score) -> float:
    """One episode alone has no interval."""
    return score.ci if math.isfinite(score.ci) else 0.0
