"""Names beside points and lines, placed so that they cover neither each other nor any mark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.text import Annotation

from kedge.report.format import shortened
from kedge.report.style import LONGEST, darker

DISTANCES = (5.0, 10.0, 18.0, 28.0, 42.0, 60.0)  # points between marker and name
ANGLES = (0, 45, 315, 135, 225, 180, 90, 270)  # degrees: right of the point if possible
MARKER = 5.0  # half of a marker, in points
NEAR = (0.0, 4.0)  # for names that are left out rather than put far away
LINE_FROM = 14.0  # beyond this distance a thin line says whose name it is


@dataclass(frozen=True)
class Point:
    x: float
    y: float
    ci_x: float
    ci_y: float
    name: str
    colour: str


@dataclass(frozen=True)
class Level:
    """A horizontal line across the axes."""

    y: float
    name: str
    colour: str


Path = Sequence[tuple[float, float]]  # a line through these places


class Box(NamedTuple):
    """In pixels."""

    x0: float
    y0: float
    x1: float
    y1: float


def place_names(
    figure: Figure, axes: Axes, points: Sequence[Point], paths: Sequence[Path] = (),
    *, size: float = 9.0, distances: Sequence[float] = DISTANCES, only_if_free: bool = False,
) -> None:  # fmt: skip
    """Try places around each point from near to far and take the first that is free.

    Greedy and in order, hence repeatable; with a dozen points that is enough. A name for which
    there is no free place goes where it covers least, or is left out.
    """
    renderer = FigureCanvasAgg(figure).get_renderer()
    _settle(figure)
    scale = figure.dpi / 72
    frame = Box(*(float(edge) for edge in axes.get_window_extent().extents))
    taken = [box for point in points for box in _shape(axes, point, scale)]
    taken += [box for path in paths for box in _along(axes, path, scale)]
    for point in points:
        at = axes.transData.transform((point.x, point.y)).tolist()
        note = axes.annotate(
            shortened(point.name, LONGEST), (point.x, point.y), xytext=(0, 0),
            textcoords="offset points", ha="center", va="center",
            color=darker(point.colour, 0.2), fontweight="bold", fontsize=size,
            annotation_clip=False, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
        )  # fmt: skip
        note.set_in_layout(False)
        extent = note.get_window_extent(renderer)
        around = [
            (distance, _place(at, extent.width, extent.height, distance * scale, angle, scale))
            for distance, angle in product(distances, ANGLES)
        ]
        crowding = [_cover(box, taken, frame) for _, box in around]
        if only_if_free and min(crowding) > 0:
            note.remove()
            continue
        distance, box = around[crowding.index(min(crowding))]
        pad = 2 * scale
        taken.append(Box(box.x0 - pad, box.y0 - pad, box.x1 + pad, box.y1 + pad))
        offset = ((box.x0 + box.x1) / 2 - at[0], (box.y0 + box.y1) / 2 - at[1])
        note.set_position((offset[0] / scale, offset[1] / scale))
        centre = ((box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2)
        unclear = not only_if_free and _doubtful(axes, centre, at, points)
        if distance > LINE_FROM or unclear:
            axes.annotate(
                "", (point.x, point.y), xytext=(offset[0] / scale, offset[1] / scale),
                textcoords="offset points", zorder=1,
                arrowprops={"arrowstyle": "-", "color": point.colour, "linewidth": 0.6},
            ).set_in_layout(False)  # fmt: skip


def name_levels(
    figure: Figure, panels: Sequence[tuple[Axes, Sequence[Level]]], *, size: float = 8.0
) -> None:
    """Names to the right of the axes, moved up or down as little as leaves them all readable."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    named = [
        (axes, level, _beside(axes, level, size))
        for axes, levels in panels
        for level in sorted(levels, key=lambda level: level.y)
    ]
    _settle(figure)  # with room for the names
    scale = figure.dpi / 72
    for panel, _ in panels:
        here = [(level, note) for axes, level, note in named if axes is panel]
        tall = max((note.get_window_extent(renderer).height for _, note in here), default=0.0)
        wanted = [float(panel.transData.transform((0, level.y))[1]) for level, _ in here]
        found = spread_out(wanted, tall + 0.5 * scale)
        for (_, note), old, new in zip(here, wanted, found, strict=True):
            note.set_position((9, (new - old) / scale))


def _beside(axes: Axes, level: Level, size: float) -> Annotation:
    return axes.annotate(
        level.name, (1, level.y), xycoords=axes.get_yaxis_transform(), xytext=(9, 0),
        textcoords="offset points", ha="left", va="center", fontsize=size,
        color=darker(level.colour, 0.2), annotation_clip=False,
        arrowprops={
            "arrowstyle": "-", "color": level.colour, "linewidth": 0.6,
            "shrinkA": 1, "shrinkB": 0, "relpos": (0, 0.5),
        },
    )  # fmt: skip


def _settle(figure: Figure) -> None:
    """Find the layout, which is final from here on: names are placed in it."""
    if isinstance(figure.get_layout_engine(), ConstrainedLayoutEngine):
        figure.draw_without_rendering()
        figure.set_layout_engine("none")


def spread_out(places: Sequence[float], apart: float) -> list[float]:
    """Rising places moved by the least squares that leaves neighbours so far apart."""
    groups: list[tuple[float, int]] = []  # mean and size, once the wanted gaps are taken off
    for number, place in enumerate(places):
        mean, size = place - number * apart, 1
        while groups and groups[-1][0] > mean:
            before, many = groups.pop()
            mean, size = (before * many + mean * size) / (many + size), many + size
        groups.append((mean, size))
    flat = [mean for mean, size in groups for _ in range(size)]
    return [mean + number * apart for number, mean in enumerate(flat)]


def _along(axes: Axes, path: Path, scale: float) -> list[Box]:
    """A line in pixels, as small boxes, and the head at its end."""
    corners = axes.transData.transform(list(path)).tolist()
    r = MARKER * scale
    boxes = [Box(x - r, y - r, x + r, y + r) for x, y in corners[-1:]]
    for (x0, y0), (x1, y1) in pairwise(corners):
        steps = max(1, math.ceil(math.hypot(x1 - x0, y1 - y0) / (3 * scale)))
        for i in range(steps + 1):
            x, y = x0 + (x1 - x0) * i / steps, y0 + (y1 - y0) * i / steps
            boxes.append(Box(x - scale, y - scale, x + scale, y + scale))
    return boxes


def _doubtful(
    axes: Axes, centre: tuple[float, float], own: Sequence[float], points: Sequence[Point]
) -> bool:
    """Whether a name stands about as near to another point as to its own."""
    far = 1.3 * math.dist(centre, own)
    places = (axes.transData.transform((p.x, p.y)).tolist() for p in points)
    return any(place != own and math.dist(centre, place) < far for place in places)


def _shape(axes: Axes, point: Point, scale: float) -> list[Box]:
    """Marker and error bars in pixels."""
    corners = [
        (point.x - point.ci_x, point.y - point.ci_y),
        (point.x + point.ci_x, point.y + point.ci_y),
        (point.x, point.y),
    ]
    (left, low), (right, high), (x, y) = axes.transData.transform(corners).tolist()
    r, thin = MARKER * scale, scale
    return [
        Box(x - r, y - r, x + r, y + r),
        Box(left, y - thin, right, y + thin),
        Box(x - thin, low, x + thin, high),
    ]


def _place(
    at: Sequence[float], width: float, height: float, distance: float, angle: int, scale: float
) -> Box:
    """A box of this size whose edge is so far from the marker's, in that direction."""
    away = distance + MARKER * scale
    cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    x = at[0] + cos * away + width / 2 * (round(cos, 6) > 0) - width / 2 * (round(cos, 6) < 0)
    y = at[1] + sin * away + height / 2 * (round(sin, 6) > 0) - height / 2 * (round(sin, 6) < 0)
    return Box(x - width / 2, y - height / 2, x + width / 2, y + height / 2)


def _cover(box: Box, taken: Sequence[Box], frame: Box) -> float:
    """Pixels of other things under this box, and of the box outside the frame."""
    outside = _shared(box, box) - _shared(box, frame)
    return round(outside + sum(_shared(box, other) for other in taken), 3)


def _shared(a: Box, b: Box) -> float:
    wide = min(a.x1, b.x1) - max(a.x0, b.x0)
    tall = min(a.y1, b.y1) - max(a.y0, b.y0)
    return wide * tall if wide > 0 and tall > 0 else 0.0
