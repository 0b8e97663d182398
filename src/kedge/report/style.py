"""How figures look: one colour per method everywhere, and the same bytes every time.

The colours are those of Okabe and Ito, which people with any common colour blindness can tell
apart; markers differ as well, so that a grey print still works.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import matplotlib as mpl
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.textpath import TextPath

from kedge.errors import KedgeError
from kedge.methods.registry import ALIGNMENTS
from kedge.report.format import shortened
from kedge.report.queries import BASE, family
from kedge.utils.spec import (
    Spec,
    fields_of,
    parse_spec,
)

WIDTH = 6.2  # inches: narrow enough for its letters to be read on a phone
LONGEST = 32  # letters of a label in a figure; what is longer ends in "…"
INK, QUIET, RULE = "#222222", "#666666", "#d9d9d9"

COLOURS = {
    "NU": "#767676",
    "FT": "#d55e00",
    "DFA": "#009e73",
    "IDA": "#0072b2",
    "EIML": "#cc79a7",
    "EWC": "#e69f00",
    "PAR": "#222222",
}
MARKERS = {"NU": "X", "FT": "s", "DFA": "^", "IDA": "o", "EIML": "v", "EWC": "D", "PAR": "P"}
SPARE_COLOURS = ("#56b4e9", "#882255", "#999933", "#44aa99", "#aa4499")
SPARE_MARKERS = ("p", "h", "<", ">", "d")
Line = Literal["-", "--", ":", "-."]
LINES: tuple[Line, ...] = ("-", "--", ":", "-.")  # the variants of a method
SWEEP = 3  # values of an option that make a curve


@dataclass(frozen=True)
class Look:
    colour: str
    fill: str  # of the marker: white for every second variant
    marker: str
    line: Line


@dataclass(frozen=True)
class Sweep:
    """Labels that differ in the value of one option alone: a curve, and one look for all."""

    option: str
    stem: str  # the label without the option: "IDA", "IDA anchors=all"
    points: tuple[tuple[float, str], ...]  # value and label, rising
    members: frozenset[str]  # all its labels, also a second one for the same value
    default: float | None  # what the option is where a label does not give it
    kept: str  # stands for the curve where each method is drawn once: nearest to the default


def sweeps(labels: Sequence[str]) -> tuple[Sweep, ...]:
    """Every option that at least three labels of one family differ in, and in nothing else."""
    named = {label: found for label in labels if (found := _parsed(label)) is not None}
    plain = {_without(found, ""): label for label, found in reversed(named.items())}
    groups: dict[tuple[str, str], list[tuple[float, str]]] = {}
    for label, found in named.items():
        for option, value in found.options.items():
            if option.isidentifier() and not isinstance(value, str) and math.isfinite(value):
                key = (option, _without(found, option))
                groups.setdefault(key, []).append((float(value), label))
    curves = []
    for (option, stem), given in groups.items():
        default = default_of(family(stem), option)
        if default is not None and stem in plain:
            given = [(default, plain[stem]), *given]
        values = dict(reversed(given))  # the plain label goes first
        if len(values) < SWEEP:
            continue
        near = (
            min(values, key=lambda v: (abs(v - default), v)) if default is not None else given[0][0]
        )
        members = frozenset(label for _, label in given)
        points = tuple(sorted(values.items()))
        curves.append(Sweep(option, stem, points, members, default, values[near]))
    return tuple(curves)


def shown(labels: Sequence[str]) -> tuple[str, ...]:
    """The labels to draw where each method is drawn once: of a sweep, the default alone."""
    curves = sweeps(labels)
    return tuple(m for m in labels if all(m == c.kept for c in curves if m in c.members))


def default_of(name: str, option: str) -> float | None:
    """The number that an option has where a label does not give it; None: none, or not known."""
    kind = ALIGNMENTS.get(name)
    if kind is None:
        return None
    if option == "lambda":
        return float(kind.default_weight)
    found = getattr(kind, option, None) if option in fields_of(kind) else None
    return None if isinstance(found, bool) or not isinstance(found, int | float) else float(found)


def _parsed(label: str) -> Spec | None:
    """Labels are free text; one that names no options is in no sweep."""
    try:
        return parse_spec(label, "Method")
    except KedgeError:
        return None


def _without(named: Spec, option: str) -> str:
    """The label without an option, and the others in one order however they were written."""
    rest = {k: v for k, v in sorted(named.options.items()) if k != option}
    return Spec(named.name, rest).label


def looks(methods: Sequence[str]) -> dict[str, Look]:
    """A look for each label. It depends on the name alone, save for methods nobody knows yet.

    A family's plain label has its first look; all labels of a sweep share one.
    """
    unknown = sorted({family(m) for m in methods} - COLOURS.keys())
    stems = {m: curve.stem for curve in reversed(sweeps(methods)) for m in curve.members}
    alike = {m: stems.get(m, m) for m in methods}
    found: dict[str, Look] = {}
    for method in methods:
        name = family(method)
        kin = dict.fromkeys(stem for m, stem in alike.items() if family(m) == name)
        variant = sorted(kin, key=lambda stem: stem != name).index(alike[method])
        if name in COLOURS:
            colour, marker = COLOURS[name], MARKERS[name]
        else:
            place = unknown.index(name) % len(SPARE_COLOURS)
            colour, marker = SPARE_COLOURS[place], SPARE_MARKERS[place]
        colour = lighter(colour, 0.3 * (variant // 2 % 3))
        fill = "white" if variant % 2 else colour
        first = 1 if name == BASE else 0  # doing nothing is dashed wherever it is drawn
        found[method] = Look(colour, fill, marker, LINES[(first + variant) % len(LINES)])
    return found


def lighter(colour: str, share: float) -> str:
    """Mixed with white: the same hue, and still no other method's."""
    red, green, blue = (part + (1 - part) * share for part in to_rgb(colour))
    return to_hex((red, green, blue))


def darker(colour: str, share: float) -> str:
    """Mixed with black: letters are thinner than markers and need it to be read."""
    red, green, blue = (part * (1 - share) for part in to_rgb(colour))
    return to_hex((red, green, blue))


@contextmanager
def house_style() -> Iterator[None]:
    """Matplotlib's settings for the body only; a caller's own figures stay as they are."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(
            {
                "font.family": "DejaVu Sans",  # comes with matplotlib, so it is always there
                "font.size": 9,
                "text.color": INK,
                "text.parse_math": False,  # a $ in a label is a $
                "axes.labelcolor": INK,
                "axes.edgecolor": QUIET,
                "axes.linewidth": 0.8,
                "axes.spines.top": False,
                "axes.spines.right": False,
                "axes.titlesize": 9.5,
                "axes.titleweight": "bold",
                "axes.titlelocation": "left",
                "axes.axisbelow": True,
                "axes.grid": True,
                "grid.color": RULE,
                "grid.linewidth": 0.6,
                "xtick.color": QUIET,
                "ytick.color": QUIET,
                "xtick.labelcolor": INK,
                "ytick.labelcolor": INK,
                "legend.frameon": False,
                "legend.handletextpad": 0.5,
                "legend.columnspacing": 1.6,
                "lines.linewidth": 1.6,
                "errorbar.capsize": 0,
                "svg.hashsalt": "kedge",  # else every drawing gets new random ids
                "svg.fonttype": "path",
            }
        )
        yield


def head(figure: Figure, handles: Sequence[Line2D]) -> None:
    """The legend above a figure, in as many columns as its labels leave room for."""
    widths = [0.52 + text_width(str(handle.get_label())) for handle in handles]
    lines = 1
    while lines < len(handles) and _legend_width(widths, lines) > figure.get_figwidth() - 0.2:
        lines += 1
    columns = math.ceil(len(handles) / lines)  # no lonely last line
    figure.set_figheight(figure.get_figheight() + 0.19 * (lines - 1))
    figure.legend(handles=list(handles), loc="outside upper center", ncols=columns)


def _legend_width(widths: Sequence[float], lines: int) -> float:
    """Columns are filled one after the other, and each is as wide as its widest label."""
    columns = math.ceil(len(widths) / lines)
    long, rest = divmod(len(widths), columns)
    sizes = [long + (n < rest) for n in range(columns)]
    starts = [sum(sizes[:n]) for n in range(columns)]
    return sum(max(widths[a : a + n]) + 0.2 for a, n in zip(starts, sizes, strict=True))


def text_width(text: str, size: float = 9.0) -> float:
    """In inches, before there is anything to draw on."""
    if not text.strip():
        return 0.0
    font = FontProperties(family="DejaVu Sans", size=size)
    return float(TextPath((0, 0), text, prop=font, usetex=False).get_extents().width) / 72


def panel_title(label: str) -> str:
    """On as many lines as a label takes in a panel of a third of the width."""
    return textwrap.fill(shortened(label, LONGEST), 18, break_long_words=True)


def encode(figure: Figure, format: Literal["svg", "png"]) -> bytes:
    """The file of a figure, without dates and versions, so that equal records give equal bytes."""
    metadata = {"Date": None, "Creator": None} if format == "svg" else {"Software": None}
    buffer = io.BytesIO()
    with house_style():
        figure.savefig(buffer, format=format, dpi=200, facecolor="white", metadata=metadata)
    figure.set_layout_engine("none")  # found once, it holds for the next format too
    return buffer.getvalue()
