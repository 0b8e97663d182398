"""Figures from made-up records: which there are, that they show the record, and can be read."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.text import Text

from kedge.evaluation.results import (
    AnchorMove,
    Epoch,
    Score,
)
from kedge.experiments.records import (
    PoolInfo,
    Record,
    Run,
)
from kedge.methods.registry import ALIGNMENTS
from kedge.report import queries
from kedge.report.anchors import anchors_figure, class_ways
from kedge.report.figures import (
    accuracy_figure,
    all_drawings,
    old_new_figure,
    training_figure,
)
from kedge.report.labels import spread_out
from kedge.report.rounds import (
    drift,
    drift_figure,
    matrix_figure,
    rounds_figure,
)
from kedge.report.style import (
    default_of,
    encode,
    house_style,
    looks,
    shown,
    sweeps,
)
from kedge.report.sweeps import (
    curves,
    plane_figure,
    sweep_figure,
)

SEVEN = ("NU", "FT", "DFA", "EWC", "EIML", "IDA", "PAR")
LAMBDAS = (0, 0.25, 0.5, 0.75, 1, 2, 5, 10)
LAMBDA_SWEEP = ("NU", "FT", *(f"IDA lambda={v:g}" for v in LAMBDAS if v != 1), "IDA", "PAR")
EXEMPLARS = tuple(f"EIML exemplars={n}" for n in (15, 30, 60, 120))
MAIN = ("old", "new", "unseen")
DOMAINS = ("old", "new", "unseen_old_domain", "unseen_new_domain", "unseen_both")
CLASSES = ("cat", "sea turtle", "oak", "bee", "leaf", "cloud", "sun", "river", "owl", "snail",
           "strawberry", "whale")  # fmt: skip
KEEPS = {"NU": 1.0, "FT": 0.0, "DFA": 0.95, "EWC": 0.3, "EIML": 0.75, "IDA": 0.7, "PAR": 1.3}
LEARNS = {"NU": 0.0, "FT": 1.0, "DFA": 0.1, "EWC": 0.7, "EIML": 0.9, "IDA": 0.95, "PAR": 1.1}


def option(label: str, name: str) -> float | None:
    found = [word for word in label.split()[1:] if word.startswith(f"{name}=")]
    return float(found[0].partition("=")[2]) if found else None


def traits(label: str) -> tuple[float, float]:
    """How much a method keeps and learns: λ moves IDA from FT towards NU, exemplars help EIML."""
    family = label.split()[0]
    keeps, learns = KEEPS.get(family, 0.5), LEARNS.get(family, 0.5)
    weight, images = option(label, "lambda"), option(label, "exemplars")
    if weight is not None:
        keeps, learns = 1.1 * weight / (weight + 0.6), 1 - 0.05 * weight**0.9
    if images is not None:
        keeps += 0.1 * math.log2(images / 15)
    return keeps + 0.03 * ("anchors=all" in label), learns


def a_run(
    label: str, round: int, seed: int, rounds: int, pools: Sequence[str], *, moves: bool
) -> Run:
    """Numbers in the order of real ones, the same for the same arguments."""
    chance = random.Random(f"{label} {round} {seed}")
    keeps, learns = traits(label)
    level = {
        "old": 64.0 - 1.2 * round + 6.0 * keeps + 0.6 * round * keeps,
        "new": 68.0 + 11.0 * learns - 0.5 * round,
        **{
            f"round_{i}": 66.0 + (8.0 * learns if 0 < i <= round else 4.0 * keeps) for i in range(9)
        },
    }
    unseen = 66.0 + (3.0 * keeps + 5.0 * learns) * (0.6 + 0.2 * round)
    own = [f"round_{i}" for i in range(rounds + 1)] if rounds > 1 else []
    named = [p for p in pools if round or p != "new"] + own
    infos = tuple(PoolInfo(p, spoken(p), 36) for p in named)
    still = 0.0 if label.startswith("NU") else 1.2 - keeps
    return Run(
        seed=seed,
        method=label,
        round=round,
        pools=infos,
        scores={
            p: Score(level.get(p, unseen) + seed / 2 + chance.uniform(-0.4, 0.4), 0.4, 2000)
            for p in named
        },
        history=() if label == "NU" else a_history(unseen, chance),
        seconds=90.0,
        peak_memory_mb=812.0,
        kept_bytes_per_class=256.0,
        environment={"date": "2024-05-01T12:00:00+00:00"},
        measures={
            "anchor_drift": 4.0 * still * round + chance.uniform(0, 0.4),
            "anchor_spread": 16.0,
            "anchor_plane": 0.412,
        } if moves and round else {},
        anchors=some_moves(label, round, seed, still) if moves and round else (),
    )  # fmt: skip


def some_moves(label: str, round: int, seed: int, size: float) -> tuple[AnchorMove, ...]:
    """Every class starts where its anchor is, and walks in a direction of its own."""
    found = []
    for name in CLASSES:
        start = random.Random(f"{name} {seed}")
        x, y = start.gauss(0, 8), start.gauss(0, 6)
        walk = random.Random(f"{label} {name} {seed}")
        steps = [(walk.gauss(2.0 * size, size), walk.gauss(-size, size)) for _ in range(round)]
        now = (x + sum(dx for dx, _ in steps), y + sum(dy for _, dy in steps))
        found.append(AnchorMove(name, (x, y), now))
    return tuple(found)


def a_history(level: float, chance: random.Random) -> tuple[Epoch, ...]:
    return tuple(
        Epoch(e + 1, 1.5 * math.exp(-e / 4) + chance.uniform(0.4, 0.5), 0.5, 0.1,
              level - 9 * math.exp(-e / 3) + chance.uniform(-0.5, 0.5), 1e-3)
        for e in range(8)
    )  # fmt: skip


def spoken(pool: str) -> str:
    kind, _, rest = pool.partition("_")
    if kind == "round":
        return f"classes of round {rest}"
    return f"{kind}, {rest.replace('_', ' ')}" if rest else kind


def made_up(
    methods: Sequence[str],
    *,
    rounds: int = 1,
    seeds: Sequence[int] = (0,),
    pools: Sequence[str] = MAIN,
    moves: bool = True,
) -> Record:
    first = 0 if rounds > 1 else 1
    return Record(
        name="drawings",
        sentence="Drawings, from natural things to man-made ones.",
        config={},
        splits={},
        runs=tuple(
            a_run(label, t, seed, rounds, pools, moves=moves)
            for seed in seeds
            for label in methods
            for t in range(first, rounds + 1)
        ),
        pairs=(),
    )


def keys(record: Record) -> list[str]:
    return [drawing.key for drawing in all_drawings(record)]


def drawn(figure: Figure) -> FigureCanvasAgg:
    canvas = FigureCanvasAgg(figure)
    with house_style():
        canvas.draw()
    return canvas


def panels(figure: Figure) -> list[Axes]:
    return [axes for axes in figure.axes if axes.get_visible()]


def texts(figure: Figure) -> list[Text]:
    """All that a reader sees: titles, names, ticks, numbers and the legend."""
    found = [t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip()]
    hidden = [t for a in figure.axes if not a.get_visible() for t in a.findobj(Text)]
    ticks = [  # matplotlib keeps labels of ticks outside the limits, and does not draw them
        label
        for axes in figure.axes
        for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim()))
        for tick in axis.get_major_ticks()
        if not min(low, high) - 1e-9 <= tick.get_loc() <= max(low, high) + 1e-9
        for label in (tick.label1, tick.label2)
    ]
    out = {id(t) for t in (*hidden, *ticks)}
    return [t for t in found if id(t) not in out]


def assert_readable(figure: Figure) -> None:
    """Nothing is cut off and no two texts cover each other."""
    renderer = drawn(figure).get_renderer()
    wide, tall = figure.bbox.size
    boxes = {t: t.get_window_extent(renderer).extents.tolist() for t in texts(figure)}
    assert boxes
    for text, (x0, y0, x1, y1) in boxes.items():
        assert -0.5 <= x0 <= x1 <= wide + 0.5, text
        assert -0.5 <= y0 <= y1 <= tall + 0.5, text
    for (a, one), (b, other) in itertools.combinations(boxes.items(), 2):
        width = min(one[2], other[2]) - max(one[0], other[0])
        height = min(one[3], other[3]) - max(one[1], other[1])
        assert width <= 2 or height <= 2, (a, b)  # pixels: boxes reach beyond the letters


def errorbars(axes: Axes) -> list[tuple[list[float], list[float]]]:
    """The places of the points, one pair of lists for each series with error bars."""
    lines = (container.lines[0] for container in axes.containers)
    return [(list(map(float, x)), list(map(float, y))) for x, y in (i.get_data() for i in lines)]


def mean(record: Record, label: str, pool: str, round: int = 1) -> float:
    return record.score(label, round, pool).mean


def bars(axes: Axes, series: int, axis: int, kind: int = 0) -> list[tuple[float, float]]:
    """From where to where the error bars of a series reach along an axis."""
    segments = axes.containers[series].lines[2][kind].get_segments()
    return [(float(bar[0, axis]), float(bar[1, axis])) for bar in segments]


def interval(score: Score) -> object:
    return pytest.approx((score.mean - score.ci, score.mean + score.ci))


def uneven(record: Record) -> Record:
    """Every interval of a width of its own."""
    widths = itertools.count(1)
    runs = [
        replace(run, scores={p: replace(s, ci=next(widths) / 50) for p, s in run.scores.items()})
        for run in record.runs
    ]
    return replace(record, runs=tuple(runs))


# ── one round ────────────────────────────────────────────────────────────────────────────────


def test_accuracies_stand_in_the_band_of_their_pool_with_their_intervals() -> None:
    record, height = uneven(made_up(SEVEN)), 6
    (axes,) = accuracy_figure(record).axes
    rivals = SEVEN[1:-1]
    expected = [(pool, method) for pool in MAIN for method in rivals]
    for series, ((pool, method), place) in enumerate(zip(expected, errorbars(axes), strict=True)):
        score = record.score(method, 1, pool)
        y = height * MAIN.index(pool) + 1 + rivals.index(method)
        assert place == ([score.mean], [y])
        assert bars(axes, series, 0) == [interval(score)]
    assert axes.yaxis_inverted(), "the first is uppermost"
    ticks = zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)
    named = {round(y // height): text.get_text().split("\n")[0] for y, text in ticks}
    assert named == dict(enumerate(MAIN))
    bands = [c for c in axes.collections if isinstance(c, PolyCollection)]
    lines = [c.get_segments()[0] for c in axes.collections if isinstance(c, LineCollection)]
    upright = [line for line in lines if line[0, 0] == line[1, 0]]
    references = [(pool, method) for pool in MAIN for method in ("NU", "PAR")]
    for (pool, method), line, band in zip(references, upright, bands, strict=True):
        score, number = record.score(method, 1, pool), MAIN.index(pool)
        assert line[0, 0] == score.mean
        assert height * number < line[0, 1] < line[1, 1] < height * (number + 1)
        sides = band.get_paths()[0].vertices[:, 0]
        assert (sides.min(), sides.max()) == interval(score)


def test_old_is_to_the_right_and_new_is_up_each_with_its_interval() -> None:
    record = uneven(made_up(SEVEN))
    figure = old_new_figure(record)
    assert figure is not None
    (axes,) = figure.axes
    for series, (method, place) in enumerate(zip(SEVEN, errorbars(axes), strict=True)):
        old, new = (record.score(method, 1, pool) for pool in ("old", "new"))
        assert place == ([old.mean], [new.mean])
        assert bars(axes, series, 0, kind=0) == [interval(old)]
        assert bars(axes, series, 1, kind=1) == [interval(new)]
    before = [line.get_xdata() for line in axes.lines if list(line.get_ydata()) == [0, 1]]
    assert [list(x) for x in before] == [[mean(record, "NU", "old")] * 2]


def test_curves_follow_each_other_round_by_round_as_means_of_the_seeds() -> None:
    """A seed that stopped early counts as far as it went."""
    record = made_up(("NU", "FT", "IDA"), rounds=2, seeds=(0, 1))
    early = [
        replace(run, history=run.history[:5]) if (run.seed, run.round) == (1, 1) else run
        for run in record.runs
    ]
    record = replace(record, runs=tuple(early))
    figure = training_figure(record)
    assert figure is not None
    for axes, what in zip(figure.axes, ("val_accuracy", "loss"), strict=True):
        expected = []
        for method, t in itertools.product(("FT", "IDA"), (1, 2)):
            seeds = [
                [getattr(epoch, what) for epoch in run.history] for run in record.select(method, t)
            ]
            seen = itertools.zip_longest(*seeds)
            known = [[value for value in values if value is not None] for values in seen]
            start = 1 if t == 1 else 9
            for curve in (*seeds, [sum(values) / len(values) for values in known]):
                expected.append(list(enumerate(curve, start)))
        lines = [list(zip(*line.get_data(), strict=True)) for line in axes.lines]
        assert lines[:-1] == [[pytest.approx(point) for point in curve] for curve in expected]
        assert list(axes.lines[-1].get_xdata()) == [8.5, 8.5], "between the rounds"


# ── sweeps: what they are ────────────────────────────────────────────────────────────────────


def test_a_sweep_is_three_labels_that_differ_in_one_number() -> None:
    (found,) = sweeps(LAMBDA_SWEEP)
    assert (found.option, found.stem, found.default, found.kept) == ("lambda", "IDA", 1.0, "IDA")
    assert [value for value, _ in found.points] == list(LAMBDAS)
    assert dict(found.points)[1.0] == "IDA"
    assert sweeps(["IDA lambda=2", "IDA lambda=5"]) == ()
    assert sweeps(["IDA lambda=2", "IDA lambda=5", "DFA lambda=7"]) == ()
    assert sweeps(["IDA", "IDA lambda=5", "IDA anchors=7"]) == ()
    assert sweeps(["IDA divergence=kl", "IDA divergence=js", "IDA divergence=l2"]) == ()
    assert sweeps(["X a/b=1", "X a/b=2", "X a/b=3", "X a=nan", "X a=1", "X a=2", "=", ""]) == ()


def test_two_numbers_and_the_plain_label_are_a_sweep_whatever_the_order_of_options() -> None:
    (found,) = sweeps(["IDA lambda=2", "IDA", "IDA lambda=0"])
    assert [label for _, label in found.points] == ["IDA lambda=0", "IDA", "IDA lambda=2"]
    labels = ["IDA a=1 lambda=2 b=x", "IDA b=x a=1 lambda=3", "IDA lambda=4 b=x a=1"]
    assert [len(sweep.points) for sweep in sweeps(labels)] == [3]


def test_of_a_sweep_without_its_default_the_nearest_stands_for_it() -> None:
    labels = ["FT", "IDA lambda=0", "IDA lambda=0.75", "IDA lambda=5"]
    assert shown(labels) == ("FT", "IDA lambda=0.75")
    unknown = ["X size=1", "X size=2", "X size=3", "X"]
    assert shown(unknown) == ("X size=1", "X")  # nobody knows what plain X is


def test_the_default_is_that_of_the_method() -> None:
    for name, kind in ALIGNMENTS.items():
        assert default_of(name, "lambda") == kind.default_weight
    assert default_of("IDA", "anchors") is None
    assert default_of("FT", "lambda") is None


def test_a_sweep_has_one_look_and_the_plain_label_always_the_first() -> None:
    look = looks(LAMBDA_SWEEP)
    assert {look[m] for m in LAMBDA_SWEEP if m.startswith("IDA")} == {looks(["IDA"])["IDA"]}
    late = looks(["IDA anchors=all", "IDA lambda=7", "IDA"])
    assert late["IDA"] == looks(["IDA"])["IDA"]
    assert len(set(late.values())) == 3
    beside = looks([*LAMBDA_SWEEP, "IDA anchors=all"])
    assert beside["IDA anchors=all"] == looks(["IDA", "IDA anchors=all"])["IDA anchors=all"]


# ── sweeps: how they are drawn ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seeds", [(0,), (0, 1, 2)])
def test_a_sweep_shows_every_value_of_every_pool(seeds: tuple[int, ...]) -> None:
    record = made_up(LAMBDA_SWEEP, seeds=seeds, moves=False)
    (curve,) = curves(record)["lambda"]
    figure = sweep_figure(record, [curve])
    assert figure is not None
    for axes, pool in zip(panels(figure), MAIN, strict=True):
        ((places, values),) = errorbars(axes)
        assert places == list(range(8))
        assert values == pytest.approx([mean(record, label, pool) for _, label in curve.points])
        scores = [queries.score(record, label, 1, pool) for _, label in curve.points]
        assert bars(axes, 0, 1) == [interval(score) for score in scores if score is not None]
        assert [t.get_text() for t in axes.get_xticklabels()] == [f"{v:g}" for v in LAMBDAS]
        levels = {line.get_ydata()[0] for line in axes.lines if len(set(line.get_ydata())) == 1}
        assert levels >= {mean(record, m, pool) for m in ("NU", "FT", "PAR")}
        assert {t.get_text() for t in axes.texts} == {"NU", "FT", "PAR"}
    assert_readable(figure)


def test_a_plane_joins_the_values_in_order_and_names_the_others() -> None:
    record = made_up((*LAMBDA_SWEEP, "DFA", "EWC", "EIML"), moves=False)
    (curve,) = curves(record)["lambda"]
    figure = plane_figure(record, [curve])
    assert figure is not None
    (axes,) = figure.axes
    way = next(line for line in axes.lines if len(line.get_xdata()) == len(LAMBDAS))
    for pool, values in (("old", way.get_xdata()), ("new", way.get_ydata())):
        assert list(values) == pytest.approx([mean(record, m, pool) for _, m in curve.points])
    named = {t.get_text() for t in axes.texts} - {""}
    assert named == {*(f"{v:g}" for v in LAMBDAS), "NU", "FT", "DFA", "EWC", "EIML", "PAR"}
    assert_readable(figure)


def test_several_sweeps_of_one_option_share_a_figure_and_long_labels_fit() -> None:
    both = [f"IDA lambda={v:g}{rest}" for rest in ("", " anchors=all") for v in LAMBDAS]
    record = made_up(("FT", *both, "DFA lambda=0.25 mean=dimensions"), moves=False)
    found = curves(record)
    assert [sweep.stem for sweep in found["lambda"]] == ["IDA", "IDA anchors=all"]
    figure = sweep_figure(record, found["lambda"])
    assert figure is not None
    assert [len(errorbars(axes)) for axes in panels(figure)] == [2, 2, 2]
    assert_readable(figure)


def test_exemplars_are_swept_in_every_pool_of_a_domain_protocol() -> None:
    methods = ("NU", "FT", "DFA", "EWC", *EXEMPLARS, "IDA lambda=0.25 anchors=all", "IDA", "PAR")
    record = made_up(methods, pools=DOMAINS, moves=False)
    figure = sweep_figure(record, curves(record)["exemplars"])
    assert figure is not None
    assert len(panels(figure)) == len(DOMAINS)
    assert_readable(figure)


def test_in_a_sweep_record_other_figures_show_each_method_once() -> None:
    record = made_up(LAMBDA_SWEEP)
    assert keys(record) == [
        "accuracy", "sweep-lambda", "sweep-lambda-plane", "anchors", "training",
    ]  # fmt: skip
    legend = accuracy_figure(record).legends[0]
    assert [t.get_text() for t in legend.get_texts()] == ["NU", "FT", "IDA", "PAR"]
    training = training_figure(record)
    assert training is not None
    assert [t.get_text() for t in training.legends[0].get_texts()] == ["FT", "IDA", "PAR"]
    assert list(class_ways(record)) == ["FT", "IDA"]


def test_without_old_and_new_classes_a_sweep_has_no_plane() -> None:
    record = made_up(LAMBDA_SWEEP, pools=("unseen",), moves=False)
    assert keys(record) == ["accuracy", "sweep-lambda", "training"]


def test_values_that_are_missing_are_left_out() -> None:
    record = made_up(LAMBDA_SWEEP, moves=False)
    gone = "IDA lambda=0.5"
    runs = tuple(
        replace(r, scores={"new": Score(70.0, math.inf, 1)}) if r.method == gone else r
        for r in record.runs
        if r.method not in ("NU", "PAR")
    )
    record = replace(record, runs=runs)
    figure = sweep_figure(record, curves(record)["lambda"])
    assert figure is not None
    assert [len(errorbars(axes)[0][0]) for axes in panels(figure)] == [7, 8, 7]
    assert plane_figure(record, curves(record)["lambda"]) is not None


# ── rounds ───────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def rounds() -> Record:
    return made_up(SEVEN, rounds=4, seeds=(0, 1, 2))


def test_seven_methods_over_the_rounds_are_readable_and_the_paragon_is_named(
    rounds: Record,
) -> None:
    figure = rounds_figure(rounds)
    assert figure is not None
    (legend,) = figure.legends
    names = [t.get_text() for t in legend.get_texts()]
    assert names == ["NU (no update)", *SEVEN[1:-1], "PAR (paragon)"]
    lines = dict(zip(names, legend.get_lines(), strict=True))
    assert lines["PAR (paragon)"].get_linestyle() == "-"
    assert lines["PAR (paragon)"].get_linewidth() > lines["IDA"].get_linewidth()
    for axes, pool in zip(panels(figure), MAIN, strict=True):
        for method, (places, values) in zip(SEVEN, errorbars(axes), strict=True):
            times = [round(x) for x in places]
            assert times == ([1, 2, 3, 4] if pool == "new" else [0, 1, 2, 3, 4])
            assert values == pytest.approx([mean(rounds, method, pool, t) for t in times])
            there = bars(axes, SEVEN.index(method), 1)
            scores = [queries.score(rounds, method, t, pool) for t in times]
            assert there == [interval(score) for score in scores if score is not None]
    assert_readable(figure)


def test_the_matrix_of_seven_methods_and_five_rounds_is_readable(rounds: Record) -> None:
    figure = matrix_figure(rounds)
    assert figure is not None
    drawn(figure)
    for axes, method in zip(panels(figure), SEVEN, strict=False):
        shown_there = [t.get_text() for t in axes.texts]
        assert shown_there == [
            f"{mean(rounds, method, f'round_{i}', t):.1f}" for t in range(5) for i in range(5)
        ]
        frames = [(round(f.get_x() + 0.46), round(f.get_y() + 0.44)) for f in axes.patches]
        assert frames == [(i, t) for t in range(5) for i in range(t + 1)], "what had come by then"
        cell = abs(axes.transData.transform((1, 0))[0] - axes.transData.transform((0, 0))[0])
        assert all(t.get_window_extent().width < cell for t in axes.texts)
    assert_readable(figure)


def test_the_numbers_of_a_long_run_are_left_to_the_table() -> None:
    record = made_up(("FT", "IDA"), rounds=15, moves=False)
    figure = matrix_figure(record)
    assert figure is not None
    assert not any(axes.texts for axes in panels(figure))
    assert_readable(figure)


def test_drift_is_shown_over_the_rounds_with_the_range_of_the_seeds(rounds: Record) -> None:
    ratios = drift(rounds)
    assert list(ratios) == list(SEVEN[:-1])  # PAR's features are new in every round
    run = rounds.select("IDA", 2)[1]
    assert ratios["IDA"][2][1] == run.measures["anchor_drift"] / run.measures["anchor_spread"]
    figure = drift_figure(rounds)
    assert figure is not None
    for (places, values), method in zip(errorbars(figure.axes[0]), ratios, strict=True):
        assert [round(x) for x in places] == [1, 2, 3, 4]
        assert values == pytest.approx([sum(v) / 3 for v in ratios[method].values()])
    bars = figure.axes[0].containers[1].lines[2][0].get_segments()
    assert [tuple(bar[:, 1]) for bar in bars] == [
        pytest.approx((min(v), max(v))) for v in ratios["FT"].values()
    ]
    assert_readable(figure)


# ── anchors ──────────────────────────────────────────────────────────────────────────────────


def paths_in(axes: Axes, length: int) -> list[list[tuple[float, float]]]:
    lines = [line.get_xydata().tolist() for line in axes.lines]
    return [[(x, y) for x, y in line] for line in lines if len(line) == length]


@pytest.mark.parametrize("n_rounds", [1, 3])
def test_anchors_move_from_their_ring_to_where_the_class_is_now(n_rounds: int) -> None:
    record = made_up(SEVEN, rounds=n_rounds, seeds=(0, 1))
    figure = anchors_figure(record)
    assert figure is not None
    competing = ("FT", "DFA", "EWC", "EIML", "IDA")
    assert [axes.get_title(loc="left") for axes in panels(figure)] == list(competing)
    assert len({(axes.get_xlim(), axes.get_ylim()) for axes in panels(figure)}) == 1
    for axes, method in zip(panels(figure), competing, strict=True):
        runs = [record.select(method, t)[0] for t in range(1, n_rounds + 1)]
        expected = [
            [move.stored, *(run.anchors[i].now for run in runs)]
            for i, move in enumerate(runs[0].anchors)
        ]
        assert sorted(paths_in(axes, n_rounds + 1)) == sorted(expected)
        assert {t.get_text() for t in axes.texts} <= set(CLASSES)
    assert any(axes.texts for axes in panels(figure))
    assert_readable(figure)


def test_long_labels_fit_above_their_panels() -> None:
    record = made_up(("FT", "IDA", "IDA lambda=0.25 anchors=all"), rounds=2)
    for figure in (anchors_figure(record), matrix_figure(record)):
        assert figure is not None
        assert_readable(figure)


def test_a_class_that_has_not_moved_is_drawn_too() -> None:
    record = made_up(("IDA",))
    still = tuple(replace(move, now=move.stored) for move in record.runs[0].anchors)
    figure = anchors_figure(replace(record, runs=(replace(record.runs[0], anchors=still),)))
    assert figure is not None
    assert_readable(figure)


def test_the_caption_says_what_the_plane_is() -> None:
    record = made_up(("FT", "IDA"), seeds=(3, 5))
    (caption,) = (d.caption for d in all_drawings(record) if d.key == "anchors")
    assert "41% of their variance" in caption
    assert "an oracle" in caption
    assert "Seed 3." in caption


def test_without_anchors_or_with_references_only_there_is_no_such_figure() -> None:
    assert anchors_figure(made_up(("FT", "IDA"), moves=False)) is None
    assert anchors_figure(made_up(("NU", "PAR"))) is None
    assert drift_figure(made_up(("FT", "IDA"), rounds=3, moves=False)) is None
    assert drift_figure(made_up(("FT", "IDA"))) is None


# ── all of them ──────────────────────────────────────────────────────────────────────────────


def test_figures_come_in_reading_order_with_whole_captions(rounds: Record) -> None:
    drawings = all_drawings(rounds)
    assert [d.key for d in drawings] == [
        "accuracy", "old-new", "rounds", "matrix", "anchors", "drift", "training",
    ]  # fmt: skip
    for drawing in drawings:
        assert drawing.caption.endswith(".")
        assert not {"{", "}"} & set(drawing.title + drawing.caption)


def test_equal_records_give_equal_bytes() -> None:
    few = ("NU", "EIML exemplars=30", "EIML exemplars=60", "EIML exemplars=120")
    files = []
    for record in (made_up(few, rounds=2, pools=("old", "new")) for _ in range(2)):
        found = curves(record)["exemplars"]
        figures = (
            sweep_figure(record, found),
            plane_figure(record, found),
            anchors_figure(record),
            drift_figure(record),
        )
        files.append([encode(figure, "svg") for figure in figures if figure is not None])
    assert len(files[0]) == 4
    assert files[0] == files[1]


@pytest.mark.parametrize(
    ("wanted", "places"),
    [([0, 10], [0, 10]), ([0, 1], [-1.5, 2.5]), ([0, 0, 9], [-2, 2, 9]), ([0, 3, 3], [-2, 2, 6])],
)
def test_names_are_moved_apart_by_no_more_than_needed(
    wanted: list[int], places: list[float]
) -> None:
    assert spread_out([float(place) for place in wanted], 4.0) == pytest.approx(places)
