"""Figures show the values of the record, and their texts are readable."""

from __future__ import annotations

import itertools
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.text import Text
from tests.report.made_up import (
    HOSTILE,
    LAMBDAS,
    MAIN,
    ROWS,
    SWEEP,
    make_record,
    make_runs,
    one_round,
    several_rounds,
    sweep,
)

from kedge.experiments.records import Record
from kedge.methods.registry import ALIGNMENTS
from kedge.report.record_report import all_figures
from kedge.report.style import encode, house_style, looks
from kedge.report.sweeps import default_value, find_sweeps, without_sweeps


def figure_of(record: Record, key: str) -> Figure:
    return next(f.figure for f in all_figures(record) if f.key == key)


def series(axes: Axes) -> list[list[tuple[float, float]]]:
    """The points of each series with error bars."""
    lines = (container.lines[0] for container in axes.containers)
    return [[(float(x), float(y)) for x, y in line.get_xydata()] for line in lines]


def legend_of(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def panels(figure: Figure) -> list[Axes]:
    return [axes for axes in figure.axes if axes.get_visible()]


def mean(record: Record, method: str, pool: str, round: int = 1) -> float:
    return record.score(method, round, pool).mean


def assert_readable(figure: Figure) -> None:
    """Titles, legend entries and numbers in cells lie in the figure and do not overlap."""
    with house_style():
        FigureCanvasAgg(figure).draw()
    texts = [t for axes in panels(figure) for t in (axes._left_title, *axes.texts)]  # type: ignore[attr-defined]
    texts += [t for legend in figure.legends for t in legend.findobj(Text)]
    boxes = {t: t.get_window_extent() for t in texts if t.get_text().strip()}
    for text, box in boxes.items():
        assert figure.bbox.padded(1).contains(*box.min), text
        assert figure.bbox.padded(1).contains(*box.max), text
    for (a, one), (b, other) in itertools.combinations(boxes.items(), 2):
        assert not one.padded(-2).overlaps(other.padded(-2)), (a, b)


# ── which figures, and how methods look ──────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("record", "keys"),
    [
        (one_round(), ["accuracy", "old-new", "anchors", "training"]),
        (sweep(), ["accuracy", "old-new", "sweep-lambda", "anchors", "training"]),
        (
            several_rounds(),
            ["accuracy", "old-new", "rounds", "matrix", "anchors", "drift", "training"],
        ),
        (sweep(pools=("unseen",)), ["accuracy", "sweep-lambda", "anchors", "training"]),
        (one_round(["NU"]), ["accuracy"]),
    ],
)
def test_a_record_has_the_figures_that_it_has_values_for(record: Record, keys: list[str]) -> None:
    figures = all_figures(record)
    assert [figure.key for figure in figures] == keys
    for figure in figures:
        assert figure.caption.endswith(".")
        assert_readable(figure.figure)


def test_a_method_keeps_its_look_and_its_variants_share_the_colour() -> None:
    few, more = looks(["IDA", "FT"]), looks(["NU", "X", "FT", "IDA anchors=all", "IDA"])
    assert (few["IDA"], few["FT"]) == (more["IDA"], more["FT"])
    assert more["IDA anchors=all"].colour == more["IDA"].colour
    assert more["IDA anchors=all"] != more["IDA"]
    assert len({look.colour for look in more.values()}) == 4
    assert {look for m, look in looks(SWEEP).items() if m.startswith("IDA")} == {few["IDA"]}


def test_a_sweep_is_three_labels_that_differ_in_one_number() -> None:
    (found,) = find_sweeps(SWEEP)
    assert (found.option, found.stem, found.representative) == ("lambda", "IDA", "IDA")
    assert [value for value, _ in found.points] == list(LAMBDAS)
    assert dict(found.points)[1.0] == "IDA", "λ of plain IDA is 1"
    for labels in (
        ["IDA lambda=2", "IDA lambda=5"],
        ["IDA lambda=2", "IDA lambda=5", "DFA lambda=7"],
        ["IDA", "IDA lambda=5", "IDA anchors=7"],
        ["IDA divergence=kl", "IDA divergence=js", "IDA divergence=l2"],
        ["X a/b=1", "X a/b=2", "X a/b=3", "X a=nan", "X a=1", "X a=2", "=", ""],
    ):
        assert find_sweeps(labels) == ()
    mixed = ["IDA a=1 lambda=2 b=x", "IDA b=x a=1 lambda=3", "IDA lambda=4 b=x a=1"]
    assert [len(s.points) for s in find_sweeps(mixed)] == [3], "in any order of options"


def test_elsewhere_a_sweep_is_represented_by_the_value_nearest_to_the_default() -> None:
    labels = ["FT", "IDA lambda=0", "IDA lambda=0.75", "IDA lambda=5"]
    assert without_sweeps(labels) == ("FT", "IDA lambda=0.75")
    assert without_sweeps(["X size=1", "X size=2", "X size=3", "X"]) == ("X size=1", "X")
    assert legend_of(figure_of(sweep(), "accuracy")) == ["NU", "FT", "IDA", "PAR"]
    for name, kind in ALIGNMENTS.items():
        assert default_value(name, "lambda") == kind.default_weight
    assert default_value("IDA", "anchors") is default_value("FT", "lambda") is None


# ── what they show ───────────────────────────────────────────────────────────────────────────


def test_accuracy_has_a_band_per_pool_with_points_intervals_and_reference_lines() -> None:
    record = one_round()
    (axes,) = figure_of(record, "accuracy").axes
    pools = list(record.runs[0].scores)
    competitors = ["FT", "DFA", "IDA"]
    expected = [
        [(mean(record, method, pool), 4 * p + 1 + n)]
        for p, pool in enumerate(pools)
        for n, method in enumerate(competitors)
    ]
    assert series(axes) == expected
    bar = axes.containers[0].lines[2][0].get_segments()[0]
    assert [float(x) for x in bar[:, 0]] == pytest.approx([66.2, 67.0])
    lines = [c.get_segments()[0] for c in axes.collections if isinstance(c, LineCollection)]
    upright = [float(line[0, 0]) for line in lines if line[0, 0] == line[1, 0]]
    assert upright == [mean(record, m, pool) for pool in pools for m in ("NU", "PAR")]


def test_old_new_has_a_point_per_method_and_joins_sweeps() -> None:
    (axes,) = figure_of(one_round(), "old-new").axes
    assert series(axes) == [[row[:2]] for row in ROWS.values()]
    record = sweep()
    figure = figure_of(record, "old-new")
    (axes,) = figure.axes
    assert legend_of(figure) == ["NU", "FT", "PAR", "IDA"]
    assert [text.get_text() for text in axes.texts] == [f"{value:g}" for value in LAMBDAS]
    path = next(line for line in axes.lines if len(line.get_xdata()) == len(LAMBDAS))
    (found,) = find_sweeps(SWEEP)
    assert list(path.get_xdata()) == [mean(record, label, "old") for _, label in found.points]


def test_a_sweep_has_a_panel_per_pool_with_every_value_and_the_other_methods() -> None:
    record = sweep()
    (found,) = find_sweeps(SWEEP)
    for axes, pool in zip(panels(figure_of(record, "sweep-lambda")), MAIN, strict=True):
        (points,) = series(axes)
        assert points == [(x, mean(record, m, pool)) for x, (_, m) in enumerate(found.points)]
        levels = {line.get_ydata()[0] for line in axes.lines if len(set(line.get_ydata())) == 1}
        assert levels >= {mean(record, m, pool) for m in ("NU", "FT", "PAR")}


def test_rounds_shows_every_round_of_every_pool() -> None:
    record = several_rounds(3, seeds=(0, 1, 2))
    for axes, pool in zip(panels(figure_of(record, "rounds")), MAIN, strict=True):
        for method, points in zip(("NU", "FT", "IDA", "PAR"), series(axes), strict=True):
            rounds = [round(x) for x, _ in points]
            assert rounds == ([1, 2, 3] if pool == "new" else [0, 1, 2, 3])
            values = [mean(record, method, pool, t) for t in rounds]
            assert [y for _, y in points] == pytest.approx(values)


def test_the_matrix_shows_a_number_per_cell_unless_there_are_too_many() -> None:
    record = several_rounds(3)
    for axes, method in zip(
        panels(figure_of(record, "matrix")), ("NU", "FT", "IDA", "PAR"), strict=False
    ):
        assert [text.get_text() for text in axes.texts] == [
            f"{mean(record, method, f'round_{i}', t):.1f}" for t in range(4) for i in range(4)
        ]
    long = figure_of(several_rounds(12), "matrix")
    assert not any(axes.texts for axes in panels(long))
    assert_readable(long)


def test_drift_is_relative_to_the_spread() -> None:
    figure = figure_of(several_rounds(3), "drift")
    assert legend_of(figure) == ["NU", "FT", "IDA"], "PAR's features are new in every round"
    for points in series(figure.axes[0]):
        assert [y for _, y in points] == pytest.approx([0.25, 0.5, 0.75])


def test_anchors_lead_from_where_they_were_stored_to_where_the_class_is() -> None:
    record = several_rounds(2, seeds=(3, 5))
    figure = next(figure for figure in all_figures(record) if figure.key == "anchors")
    assert "41%" in figure.caption
    assert "seed 3" in figure.caption
    assert [axes.get_title(loc="left") for axes in panels(figure.figure)] == ["FT", "IDA"]
    for axes, method in zip(panels(figure.figure), ("FT", "IDA"), strict=True):
        paths = [line.get_xydata().tolist() for line in axes.lines if len(line.get_xdata()) == 3]
        first, second = (record.select(method, t)[0].anchors for t in (1, 2))
        expected = [[a.stored, a.now, b.now] for a, b in zip(first, second, strict=True)]
        assert paths == [[list(xy) for xy in path] for path in expected]
    still = [
        replace(r, anchors=tuple(replace(a, now=a.stored) for a in r.anchors)) for r in record.runs
    ]
    assert figure_of(replace(record, runs=tuple(still)), "anchors")


def test_training_curves_follow_each_other_and_are_means_of_the_seeds() -> None:
    record = several_rounds(2, seeds=(0, 1))
    short = [
        replace(run, history=run.history[:4]) if (run.seed, run.round) == (1, 1) else run
        for run in record.runs
    ]
    figure = figure_of(replace(record, runs=tuple(short)), "training")
    axes = figure.axes[0]
    # Of FT in round 1: two thin lines and their mean, which goes as far as the longer one.
    lengths = [len(line.get_xdata()) for line in axes.lines[:3]]
    assert lengths == [6, 4, 6]
    assert list(axes.lines[2].get_ydata()) == [61.0 + e for e in range(6)]
    assert list(axes.lines[5].get_xdata()) == list(range(7, 13))
    assert list(axes.lines[-1].get_xdata()) == [6.5, 6.5], "between the rounds"


def test_a_label_is_never_read_as_mathematics() -> None:
    record = make_record(make_runs({**ROWS, HOSTILE: ROWS["FT"], "$\\frac$": ROWS["FT"]}))
    figure = figure_of(record, "accuracy")
    assert ElementTree.fromstring(encode(figure, "svg")).tag.endswith("svg")
