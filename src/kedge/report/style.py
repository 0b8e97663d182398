"""How figures look: one colour per method everywhere, and the same bytes every time.

The colours are those of Okabe and Ito, which people with any common colour blindness can tell
apart; markers differ as well, so that a grey print still works.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import matplotlib as mpl
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from kedge.report.reading import BASE, family

WIDTH = 6.2  # inches: narrow enough for its letters to be read on a phone
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


@dataclass(frozen=True)
class Look:
    colour: str
    fill: str  # of the marker: white for every second variant
    marker: str
    line: Line


def looks(methods: Sequence[str]) -> dict[str, Look]:
    """A look for each label. It depends on the name alone, save for methods nobody knows yet."""
    unknown = sorted({family(m) for m in methods} - COLOURS.keys())
    found: dict[str, Look] = {}
    seen: dict[str, int] = {}
    for method in methods:
        name = family(method)
        variant = seen[name] = seen.get(name, -1) + 1
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
    """The legend above a figure, in as many columns as its longest label leaves room for."""
    longest = max((len(str(handle.get_label())) for handle in handles), default=1)
    fit = max(1, int(figure.get_figwidth() / (0.55 + 0.085 * longest)))
    lines = math.ceil(len(handles) / fit)
    columns = math.ceil(len(handles) / max(lines, 1))  # no lonely last line
    figure.set_figheight(figure.get_figheight() + 0.19 * (lines - 1))
    figure.legend(handles=list(handles), loc="outside upper center", ncols=columns)


def encode(figure: Figure, format: Literal["svg", "png"]) -> bytes:
    """The file of a figure, without dates and versions, so that equal records give equal bytes."""
    metadata = {"Date": None, "Creator": None} if format == "svg" else {"Software": None}
    buffer = io.BytesIO()
    with house_style():
        figure.savefig(buffer, format=format, dpi=200, facecolor="white", metadata=metadata)
    figure.set_layout_engine("none")  # found once, it holds for the next format too
    return buffer.getvalue()
