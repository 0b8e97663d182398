"""The look of figures: one colour and marker per method, and equal files for equal records.

The colours are those of Okabe and Ito, which are distinct under the common kinds of colour
blindness; markers differ too, for prints in grey.
"""

from __future__ import annotations

import io
import itertools
import math
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
import matplotlib.style as mpl_style
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from kedge.evaluation.results import Score
from kedge.report.format import shortened
from kedge.report.queries import BASE, family
from kedge.report.sweeps import find_sweeps
from kedge.utils.text import printable

WIDTH = 6.2  # inches: the text of a figure stays readable on a phone
INK, QUIET, RULE = "#222222", "#666666", "#d9d9d9"
LOOKS = {  # colour and marker
    "NU": ("#767676", "X"),
    "FT": ("#d55e00", "s"),
    "DFA": ("#009e73", "^"),
    "IDA": ("#0072b2", "o"),
    "IDA+": ("#56b4e9", "*"),
    "EIML": ("#cc79a7", "v"),
    "EWC": ("#e69f00", "D"),
    "PAR": ("#222222", "P"),
}
OTHER_LOOKS = tuple(zip(("#117733", "#882255", "#999933", "#44aa99"), "ph<>", strict=True))
LINES = ("-", "--", ":", "-.")  # of the variants of a method
STYLE = Path(__file__).with_name("report.mplstyle")


@dataclass(frozen=True)
class ReportFigure:
    key: str  # also the name of the file
    title: str
    caption: str
    figure: Figure


@dataclass(frozen=True)
class Look:
    colour: str
    fill: str  # of the marker: white for every second variant
    marker: str
    line: str


def looks(labels: Sequence[str]) -> dict[str, Look]:
    """A look for each method. It depends on the label alone, except for unknown methods.

    The plain label of a method has its first look; all labels of a sweep share one.
    """
    stems = {m: sweep.stem for sweep in reversed(find_sweeps(labels)) for m in sweep.members}
    unknown = sorted({family(m) for m in labels} - LOOKS.keys())
    families = LOOKS | dict(zip(unknown, itertools.cycle(OTHER_LOOKS), strict=False))
    result = {}
    for label in labels:
        name = family(label)
        variants = dict.fromkeys(stems.get(m, m) for m in labels if family(m) == name)
        variant = sorted(variants, key=lambda stem: stem != name).index(stems.get(label, label))
        colour, marker = families[name]
        white = 0.3 * (variant // 2 % 3)
        red, green, blue = (part + (1 - part) * white for part in to_rgb(colour))
        colour = to_hex((red, green, blue))
        line = LINES[(variant + (name == BASE)) % len(LINES)]  # NU is dashed
        result[label] = Look(colour, "white" if variant % 2 else colour, marker, line)
    return result


def house_style() -> AbstractContextManager[None]:
    """Matplotlib's settings within the context; the caller's settings do not matter."""
    return mpl_style.context(STYLE, after_reset=True)


def panels(
    count: int, across: int, height: float, *, width: float = WIDTH, **options: Any
) -> tuple[Figure, list[Axes]]:
    """A figure with `count` axes, at most `across` in a row; `height` is that of a row."""
    across = min(count, across)
    down = math.ceil(count / across)
    figure = Figure((width, 0.5 + height * down), layout="constrained")
    grid = list(figure.subplots(down, across, squeeze=False, **options).flatten())
    for axes in grid[count:]:
        axes.set_visible(False)
    return figure, grid[:count]


def half_width(score: Score) -> float:
    """Half-width of the interval; 0 for a single episode, which has none."""
    return score.ci if math.isfinite(score.ci) else 0.0


def draw_scores(
    axes: Axes, scores: Mapping[int, Score | None], look: Look, offset: float, **options: Any
) -> None:
    """Scores by x as a line with error bars; an offset keeps equal values of methods visible."""
    known = [(x + offset, score) for x, score in scores.items() if score is not None]
    xs, means = [x for x, _ in known], [score.mean for _, score in known]
    errors = [half_width(score) for _, score in known]
    errorbar(axes, xs, means, look, yerr=errors, linestyle=look.line, **options)


def errorbar(axes: Axes, x: Any, y: Any, look: Look, **options: Any) -> None:
    """Points with error bars; a line only if `linestyle` is given."""
    defaults = {"linestyle": "", "marker": look.marker, "markersize": 5.5, "elinewidth": 1.2}
    options = {**defaults, "zorder": 3, **options}
    axes.errorbar(x, y, color=look.colour, markerfacecolor=look.fill, **options)


def handle(label: str, look: Look, **options: Any) -> Line2D:
    """An entry of the legend."""
    options = {"linestyle": look.line, "marker": look.marker, "markersize": 5.5, **options}
    return Line2D(
        [], [], color=look.colour, markerfacecolor=look.fill, label=shortened(label), **options
    )


def add_legend(figure: Figure, handles: Sequence[Line2D]) -> None:
    """A legend above the figure, which grows by as many lines as the labels need."""
    longest = max(len(str(line.get_label())) for line in handles)
    fitting = max(1, int(figure.get_figwidth() / (0.6 + 0.075 * longest)))
    lines = math.ceil(len(handles) / fitting)
    figure.set_figheight(figure.get_figheight() + 0.19 * (lines - 1))
    columns = math.ceil(len(handles) / lines)
    figure.legend(handles=list(handles), loc="outside upper center", ncols=columns)


def encode(
    figure: Figure, format: Literal["svg", "png"], settings: Any = None, **options: Any
) -> bytes:
    """The file of a figure, without dates and versions, so equal records give equal bytes. May take
    further settings of Matplotlib and options of `savefig`."""
    metadata = {"Date": None, "Creator": None} if format == "svg" else {"Software": None}
    options = {"dpi": 200, "facecolor": "white", "metadata": metadata, **options}
    buffer = io.BytesIO()
    with house_style(), mpl.rc_context(settings), warnings.catch_warnings():
        # Of characters that the font lacks. They become boxes; where SVG has text, a browser has
        # those characters.
        warnings.filterwarnings("ignore", "Glyph", UserWarning)
        figure.savefig(buffer, format=format, **options)
    figure.set_layout_engine("none")  # the other format gets the same layout
    if format == "png":
        return buffer.getvalue()
    # Matplotlib writes labels as they are, in texts or comments; XML allows no control characters.
    return "\n".join(map(printable, buffer.getvalue().decode().split("\n"))).encode()
