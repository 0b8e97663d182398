"""Figures of a result: accuracy, old against new classes, sweeps and training curves."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from kedge.evaluation.results import Score
from kedge.experiments.records import Record
from kedge.report import queries, style
from kedge.report.style import Look, ReportFigure
from kedge.report.sweeps import Sweep, find_sweeps, without_sweeps

OPTIONS = {"lambda": "λ", "exemplars": "images kept per class", "anchors": "anchors per step"}
MIN_SPAN = 6.0  # points on the y axis of a sweep, so that small differences do not look large


def accuracy_figure(record: Record) -> ReportFigure:
    """A dot plot: a band per pool, a line per method, so that intervals never overlap."""
    final, looks = queries.final_round(record), style.looks(record.methods)
    pools = queries.table_pools(record, final)
    methods = without_sweeps(queries.methods_after(record, final))
    competitors = [m for m in methods if not queries.is_reference(m)]
    height = max(len(competitors), 1) + 1  # of a band, in lines
    with style.house_style():
        figure, (axes,) = style.panels(1, 1, 0.75 + len(pools) * height * 0.21)
        for n, pool in enumerate(pools):
            top = n * height
            if n % 2 == 0:
                axes.axhspan(top, top + height, color="#f5f5f3", linewidth=0, zorder=0)
            for method in methods:
                score, look = queries.score(record, method, final, pool.name), looks[method]
                if score is None:
                    continue
                ci = style.half_width(score)
                if method in competitors:
                    y = top + 1 + competitors.index(method)
                    style.errorbar(axes, score.mean, y, look, xerr=ci, elinewidth=1.6)
                    continue
                ends, sides = (top + 0.12, top + height - 0.12), (score.mean - ci, score.mean + ci)
                axes.fill_betweenx(ends, *sides, color=look.colour, alpha=0.18, linewidth=0)
                axes.vlines(score.mean, *ends, color=look.colour, linestyle=look.line)
        axes.set_ylim(len(pools) * height, 0)
        axes.set_yticks([(n + 0.5) * height for n in range(len(pools))])
        axes.set_yticklabels([f"{p.label}\n({p.n_classes} classes)" for p in pools])
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="y", visible=False)
        axes.spines["left"].set_visible(False)
        axes.set_xlabel("accuracy (%)")
        handles = [
            style.handle(m, looks[m], **({"linestyle": ""} if m in competitors else {"marker": ""}))
            for m in methods
        ]
        style.add_legend(figure, handles)
    caption = "Points: means. Bars: 95% intervals, hidden where narrower than the point."
    if len(methods) > len(competitors):
        caption += " Vertical lines: references (NU dashed, PAR solid) with intervals."
    return ReportFigure("accuracy", "Accuracy by method and pool", caption, figure)


def old_new_figure(record: Record) -> ReportFigure | None:
    """Accuracy on old against new classes, one point per method; the points of a sweep joined."""
    final, looks = queries.final_round(record), style.looks(record.methods)
    points: dict[str, tuple[Score, Score]] = {}
    for method in queries.methods_after(record, final):
        old, new = (queries.score(record, method, final, pool) for pool in ("old", "new"))
        if old is not None and new is not None:
            points[method] = old, new
    if len(points) < 2:
        return None
    means = {method: (old.mean, new.mean) for method, (old, new) in points.items()}
    sweeps = find_sweeps(list(points))
    handles = {}
    with style.house_style():
        figure, (axes,) = style.panels(1, 1, 4.0, width=5.4)
        for method, (old, new) in points.items():
            errors = {"xerr": style.half_width(old), "yerr": style.half_width(new)}
            style.errorbar(axes, old.mean, new.mean, looks[method], markersize=7, **errors)
            handles[method] = style.handle(method, looks[method], linestyle="", markersize=7)
        for sweep in sweeps:
            xs, ys = zip(*(means[label] for _, label in sweep.points), strict=True)
            axes.plot(xs, ys, color=looks[sweep.representative].colour, linewidth=1.2, alpha=0.6)
            for value, label in sweep.points:
                text = axes.annotate(f"{value:g}", means[label], (4, 4), fontsize=8)
                text.set_anncoords("offset points")
            handles = {m: line for m, line in handles.items() if m not in sweep.members}
            handles[sweep.stem] = style.handle(sweep.stem, looks[sweep.representative])
        axes.set_xlabel("accuracy on old classes (%)  →  keeps more")
        axes.set_ylabel("accuracy on new classes (%)  →  learns more")
        axes.margins(0.08)
        caption = "Upper right is better. Bars: 95% intervals."
        if queries.BASE in means:
            axes.axvline(means[queries.BASE][0], color=style.QUIET, linewidth=0.9, linestyle="--")
            caption += " Dashed line: accuracy on old classes before the first update."
        style.add_legend(figure, list(handles.values()))
    if sweeps:
        options = " or ".join(dict.fromkeys(OPTIONS.get(s.option, s.option) for s in sweeps))
        caption += f" Numbers beside joined points: {options}."
    return ReportFigure("old-new", "Old against new classes", caption, figure)


def sweep_figures(record: Record) -> list[ReportFigure]:
    """One figure per option that is varied."""
    sweeps = find_sweeps(queries.final_methods(record))
    options = dict.fromkeys(sweep.option for sweep in sweeps)
    return [_sweep_figure(record, [s for s in sweeps if s.option == o]) for o in options]


def _sweep_figure(record: Record, sweeps: Sequence[Sweep]) -> ReportFigure:
    """A panel per pool: accuracy by the value of an option, with values evenly spaced."""
    final, looks = queries.final_round(record), style.looks(record.methods)
    pools = queries.table_pools(record, final)
    values = sorted({value for sweep in sweeps for value, _ in sweep.points})
    members = {label for sweep in sweeps for label in sweep.members}
    others = [m for m in without_sweeps(queries.final_methods(record)) if m not in members]
    option = OPTIONS.get(sweeps[0].option, sweeps[0].option)
    across = min(2 if len(values) > 5 else 3, len(pools))  # with room for the tick labels
    with style.house_style():
        figure, grid = style.panels(len(pools), across, 2.35)
        for axes, pool in zip(grid, pools, strict=True):
            for method in others:
                score = queries.score(record, method, final, pool.name)
                if score is not None:
                    look = looks[method]
                    axes.axhline(score.mean, color=look.colour, linestyle=look.line, linewidth=1.2)
            for n, sweep in enumerate(sweeps):
                scores = {
                    values.index(value): queries.score(record, label, final, pool.name)
                    for value, label in sweep.points
                }
                offset = 0.12 * (n - (len(sweeps) - 1) / 2)
                style.draw_scores(axes, scores, looks[sweep.representative], offset, capsize=2)
            axes.set_title(pool.label)
            axes.set_xlabel(option)
            axes.set_xticks(range(len(values)), [f"{value:g}" for value in values], fontsize=8)
            axes.grid(axis="x", visible=False)
            low, high = axes.get_ylim()
            extra = max(0.0, MIN_SPAN - (high - low)) / 2
            axes.set_ylim(low - extra, high + extra)
        for axes in grid[::across]:
            axes.set_ylabel("accuracy (%)")
        handles = [style.handle(sweep.stem, looks[sweep.representative]) for sweep in sweeps]
        handles += [style.handle(m, looks[m], marker="") for m in others]
        style.add_legend(figure, handles)
    return ReportFigure(
        f"sweep-{sweeps[0].option}",
        f"Accuracy by {option}",
        "Bars: 95% intervals. Horizontal lines: methods without this option. Panels have their own "
        "scales; values are evenly spaced.",
        figure,
    )


def training_figure(record: Record) -> ReportFigure | None:
    """Validation accuracy and loss by epoch of the updates, one round after the other."""
    rounds, looks = queries.incremental_rounds(record), style.looks(record.methods)
    order = without_sweeps(queries.methods_after(record, rounds[-1]))
    runs = [r for r in record.runs if r.round in rounds and r.history and r.method in order]
    if not runs:
        return None
    lengths = {t: max((len(r.history) for r in runs if r.round == t), default=0) for t in rounds}
    starts = {t: 1 + sum(n for u, n in lengths.items() if u < t) for t in rounds}
    methods = [m for m in order if any(run.method == m for run in runs)]
    with style.house_style():
        figure, grid = style.panels(2, 2, 2.8)
        quantities = {"val_accuracy": "validation accuracy (%)", "loss": "training loss (nats)"}
        for axes, (name, title) in zip(grid, quantities.items(), strict=True):
            for method in methods:
                for t in rounds:
                    histories = [r.history for r in runs if (r.method, r.round) == (method, t)]
                    curves = [[float(getattr(e, name)) for e in history] for history in histories]
                    _draw_curves(axes, curves, starts[t], looks[method])
            axes.set_title(title)
            axes.set_xlabel("epoch")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            for start in list(starts.values())[1:]:
                axes.axvline(start - 0.5, color=style.QUIET, linewidth=0.8, linestyle=":")
        style.add_legend(figure, [style.handle(m, looks[m], marker="") for m in methods])
    caption = (
        "Updates only: all methods share the base round. The loss includes each method’s penalty, "
        "so its level differs between methods."
        + " Thin lines: seeds; thick lines: their mean." * (len(record.seeds) > 1)
        + " Dotted lines separate the rounds." * (len(rounds) > 1)
    )
    return ReportFigure("training", "Training curves", caption, figure)


def _draw_curves(axes: Axes, curves: Sequence[Sequence[float]], start: int, look: Look) -> None:
    """Each seed and the mean; a seed that stopped early counts as far as it went."""
    for curve in curves if len(curves) > 1 else []:
        epochs = range(start, start + len(curve))
        axes.plot(epochs, curve, color=look.colour, linewidth=0.5, alpha=0.45)
    length = max(map(len, curves), default=0)
    mean = [statistics.fmean(c[i] for c in curves if i < len(c)) for i in range(length)]
    (line,) = axes.plot(range(start, start + length), mean, color=look.colour)
    line.set(linestyle=look.line, marker="." if length == 1 else "")
