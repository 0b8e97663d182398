"""The figures of a report, one function each. Matplotlib's object API: no global state."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from kedge.evaluation.results import Epoch
from kedge.experiments.records import Record
from kedge.report import (
    anchors,
    queries,
    rounds,
    sweeps,
)
from kedge.report.format import shortened
from kedge.report.labels import Point, place_names
from kedge.report.style import (
    LONGEST,
    QUIET,
    WIDTH,
    Look,
    head,
    house_style,
    looks,
    shown,
)

TEXTS = {  # key, which also names the files: title, caption; {…} comes from the record
    "accuracy": (
        "Accuracy by method and pool",
        (
            "Points are means, bars 95% intervals; where no bar shows, it is narrower than the "
            "point.{references}{left_out}"
        ),
    ),
    "old-new": (
        "What is kept against what is learned",
        (
            "Right: keeps the old classes. Up: learns the new ones. Upper right is better. Bars "
            "are 95% intervals.{before}"
        ),
    ),
    "training": (
        "Training",
        (
            "Validation accuracy and training loss after each epoch; with several seeds their "
            "mean, and each seed as a thin line. Dotted lines part the rounds. The loss holds "
            "each method’s own penalty, so its level does not compare across methods.{left_out}"
        ),
    ),
    **sweeps.TEXTS,
    **rounds.TEXTS,
    **anchors.TEXTS,
}


@dataclass(frozen=True)
class Drawing:
    key: str
    title: str
    caption: str
    figure: Figure


def all_drawings(record: Record) -> tuple[Drawing, ...]:
    """Those that the record has numbers for, in reading order."""
    several = len(queries.incremental_rounds(record)) > 1
    curves = sweeps.curves(record)
    planes = {option: sweeps.plane_figure(record, drawn) for option, drawn in curves.items()}
    crossed = any(plane is not None for plane in planes.values())  # each holds all of old-new
    drawings = [
        _drawing(
            "accuracy",
            accuracy_figure(record),
            references=_references(record),
            left_out=_left_out(record),
        ),
        _drawing("old-new", None if crossed else old_new_figure(record), before=_before(record)),
    ]
    for option, drawn in curves.items():
        said = sweeps.words(record, drawn)
        key = f"sweep-{option}"
        drawings += [
            _drawing("sweep", sweeps.sweep_figure(record, drawn), key, **said),
            _drawing("sweep-plane", planes[option], f"{key}-plane", **said),
        ]
    framed = {"framed": rounds.framed(record)}
    drawings += [
        _drawing(
            "rounds",
            rounds.rounds_figure(record) if several else None,
            references=rounds.references(record),
        ),
        _drawing("matrix", rounds.matrix_figure(record) if several else None, **framed),
        _drawing("anchors", anchors.anchors_figure(record), **anchors.words(record)),
        _drawing("drift", rounds.drift_figure(record), bars=_seed_bars(record)),
        _drawing("training", training_figure(record), left_out=_left_out(record)),
    ]
    return tuple(drawing for drawing in drawings if drawing is not None)


def _drawing(text: str, figure: Figure | None, key: str = "", **facts: str) -> Drawing | None:
    if figure is None:
        return None
    title, caption = (part.format(**facts) for part in TEXTS[text])
    return Drawing(key or text, title, caption, figure)


def named(key: str) -> str:
    """The title of a figure that is known by the name of its file alone."""
    if not key.startswith("sweep-"):
        return TEXTS[key][0]
    option = key.removeprefix("sweep-").removesuffix("-plane")
    text = "sweep-plane" if key.endswith("-plane") else "sweep"
    return TEXTS[text][0].format(option=sweeps.NAMES.get(option, ("", option))[1])


def _references(record: Record) -> str:
    """Those that are drawn, and what they are."""
    words = {
        queries.BASE: "NU (dashed) was never updated",
        queries.PARAGON: "PAR was trained on everything",
    }
    said = [words[name] for name in queries.references(record)]
    if not said:
        return ""
    return f" Lines down a band, shaded by their interval, are references: {', '.join(said)}."


def _before(record: Record) -> str:
    if queries.BASE not in queries.references(record):
        return ""
    return (
        " Left of NU’s dashed line, a method knows the old classes less well than the model did "
        "before its first update."
    )


def _left_out(record: Record) -> str:
    several = sweeps.curves(record)
    return " Of a method in many variants, one is drawn here; see the curves." if several else ""


def _seed_bars(record: Record) -> str:
    if len(record.seeds) < 2:
        return ""
    return " Points are means over the seeds, bars reach from the least seed to the greatest."


def accuracy_figure(record: Record) -> Figure:
    """A dot plot: a band per pool, a line per method, so that intervals never overlap."""
    last = queries.final_round(record)
    pools = queries.table_pools(record, last)
    methods = shown(queries.methods_after(record, last))
    look = looks(record.methods)
    rivals = [m for m in methods if not queries.is_reference(m)]
    height = max(len(rivals), 1) + 1  # of a band, in lines
    with house_style():
        figure = Figure((WIDTH, 0.75 + len(pools) * height * 0.21 + 0.5), layout="constrained")
        axes = figure.add_subplot()
        for number, pool in enumerate(pools):
            top = number * height
            if number % 2 == 0:
                axes.axhspan(top, top + height, color="#f5f5f3", linewidth=0, zorder=0)
            for method in methods:
                found = queries.score(record, method, last, pool.name)
                if found is None:
                    continue
                if method in rivals:
                    _dot(axes, found.mean, top + 1 + rivals.index(method), found.ci, look[method])
                    continue
                edges = (top + 0.12, top + height - 0.12)
                ci = found.ci if math.isfinite(found.ci) else 0.0
                axes.fill_betweenx(
                    edges, found.mean - ci, found.mean + ci,
                    color=look[method].colour, alpha=0.18, linewidth=0,
                )  # fmt: skip
                axes.vlines(
                    found.mean, *edges, color=look[method].colour, linestyle=look[method].line
                )
        axes.set_ylim(len(pools) * height, 0)
        axes.set_yticks([(n + 0.5) * height for n in range(len(pools))])
        axes.set_yticklabels([f"{p.label}\n({p.n_classes} classes)" for p in pools])
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="y", visible=False)
        axes.spines["left"].set_visible(False)
        axes.set_xlabel("accuracy (%)")
        axes.margins(x=0.04)
        handles = [_handle(method, look[method]) for method in methods]
        head(figure, handles)
    return figure


def old_new_figure(record: Record) -> Figure | None:
    """Forgetting against learning, one point a method."""
    last = queries.final_round(record)
    look = looks(record.methods)
    points = []
    for method in queries.methods_after(record, last):
        old = queries.score(record, method, last, "old")
        new = queries.score(record, method, last, "new")
        if old is not None and new is not None:
            ci_old, ci_new = (s.ci if math.isfinite(s.ci) else 0.0 for s in (old, new))
            points.append(Point(old.mean, new.mean, ci_old, ci_new, method, look[method].colour))
    if len(points) < 2:
        return None
    with house_style():
        figure = Figure((5.4, 4.2), layout="constrained")
        axes = figure.add_subplot()
        before = [p.x for p in points if queries.family(p.name) == queries.BASE]
        for x in before[:1]:
            axes.axvline(x, color=QUIET, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
        for p in points:
            style = look[p.name]
            axes.errorbar(
                p.x, p.y, xerr=p.ci_x, yerr=p.ci_y, color=style.colour, marker=style.marker,
                markerfacecolor=style.fill, markersize=7.5, elinewidth=1.2, zorder=3,
            )  # fmt: skip
        axes.set_xlabel("accuracy on old classes (%)  →  keeps more")
        axes.set_ylabel("accuracy on new classes (%)  →  learns more")
        axes.margins(0.16)
        place_names(figure, axes, points)
    return figure


def training_figure(record: Record) -> Figure | None:
    """Validation and loss by epoch; the rounds follow each other, with a line between them."""
    chosen = queries.incremental_rounds(record)
    order = shown(queries.methods_after(record, chosen[-1]))
    runs = [r for r in record.runs if r.round in chosen and r.history and r.method in order]
    if not runs:
        return None
    look = looks(record.methods)
    lengths = {t: max((len(r.history) for r in runs if r.round == t), default=0) for t in chosen}
    starts = {t: sum(n for u, n in lengths.items() if u < t) for t in chosen}
    methods = [m for m in order if any(run.method == m for run in runs)]
    with house_style():
        figure = Figure((WIDTH, 3.3), layout="constrained")
        left, right = figure.subplots(1, 2)
        for method in methods:
            for t in chosen:
                curves = [run.history for run in runs if (run.method, run.round) == (method, t)]
                _curves(left, [_line(h, "val_accuracy") for h in curves], starts[t], look[method])
                _curves(right, [_line(h, "loss") for h in curves], starts[t], look[method])
        for axes, name in ((left, "validation accuracy (%)"), (right, "training loss (nats)")):
            axes.set_title(name)
            axes.set_xlabel("epoch")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            _name_rounds(axes, starts)
        handles = [
            Line2D([], [], color=look[m].colour, linestyle=look[m].line, label=_name(m))
            for m in methods
        ]
        head(figure, handles)
    return figure


def _name_rounds(axes: Axes, starts: dict[int, int]) -> None:
    """A dotted line before each round but the first, and the name of each above its part."""
    if len(starts) < 2:
        return
    axes.set_title(axes.get_title(loc="left"), pad=18)
    for number, (t, start) in enumerate(starts.items()):
        if number:
            axes.axvline(start + 0.5, color=QUIET, linewidth=0.8, linestyle=":")
        axes.text(
            start + 1, 1.01, f"round {t}", transform=axes.get_xaxis_transform(),
            ha="left", va="bottom", fontsize=7.5, color=QUIET,
        )  # fmt: skip


def _line(history: Iterable[Epoch], what: str) -> list[float]:
    return [float(getattr(epoch, what)) for epoch in history]


def _curves(axes: Axes, curves: list[list[float]], start: int, look: Look) -> None:
    """The mean of the seeds; a seed that stopped early counts as far as it went."""
    if not curves:
        return
    if len(curves) > 1:
        for curve in curves:
            steps = range(start + 1, start + 1 + len(curve))
            axes.plot(steps, curve, color=look.colour, linewidth=0.5, alpha=0.45)
    longest = max(len(curve) for curve in curves)
    mean = [statistics.fmean(c[i] for c in curves if i < len(c)) for i in range(longest)]
    dot = "." if longest == 1 else ""
    steps = range(start + 1, start + 1 + longest)
    axes.plot(steps, mean, color=look.colour, linestyle=look.line, marker=dot)


def _dot(axes: Axes, x: float, y: int, ci: float, look: Look) -> None:
    axes.errorbar(
        x, y, xerr=ci if math.isfinite(ci) else None, color=look.colour, marker=look.marker,
        markerfacecolor=look.fill, markersize=6, elinewidth=1.6, zorder=3,
    )  # fmt: skip


def _handle(method: str, look: Look) -> Line2D:
    """A line for a reference, a marker for whoever competes: as they are drawn."""
    if queries.is_reference(method):
        return Line2D([], [], color=look.colour, linestyle=look.line, label=_name(method))
    return Line2D(
        [], [], color=look.colour, marker=look.marker, markerfacecolor=look.fill,
        linestyle="", markersize=6, label=_name(method),
    )  # fmt: skip


def _name(method: str) -> str:
    return shortened(method, LONGEST)
