"""Names beside points and lines, placed so that they cover neither each other nor any mark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox, BboxBase

from kedge.report.notation import shortened
from kedge.report.style import darker

DISTANCES = (5.0, 10.0, 18.0, 28.0, 42.0, 60.0)  # points between marker and name
ANGLES = (0, 45, 315, 135, 225, 180, 90, 270)  # degrees: right of the point if possible
MARKER = 5.0  # half of a marker, in points
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


def place_names(
    figure: Figure, axes: Axes, points: Sequence[Point], paths: Sequence[Path] = (),
    *, size: float = 9, only_if_free: bool = False,
) -> None:  # fmt: skip
    """Try places around each point from near to far and take the first that is free.

    Greedy and in order, hence repeatable; with a dozen points that is enough. A name for which
    there is no free place goes where it covers least, or is left out.
    """
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw_without_rendering()  # the layout is final from here on
    scale = figure.dpi / 72
    frame = axes.get_window_extent()
    taken: list[BboxBase] = [box for point in points for box in _shape(axes, point, scale)]
    taken += [box for path in paths for box in _along(axes, path, scale)]
    for point in points:
        at = axes.transData.transform((point.x, point.y)).tolist()
        note = axes.annotate(
            shortened(point.name), (point.x, point.y), xytext=(0, 0), textcoords="offset points",
            ha="center", va="center", color=darker(point.colour, 0.2), fontweight="bold",
            fontsize=size, annotation_clip=False,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
        )  # fmt: skip
        note.set_in_layout(False)
        extent = note.get_window_extent(renderer)
        places = [
            _place(at, extent.width, extent.height, distance * scale, angle, scale)
            for distance, angle in product(DISTANCES, ANGLES)
        ]
        crowding = [_cover(box, taken, frame) for box in places]
        chosen = crowding.index(min(crowding))
        if only_if_free and crowding[chosen] > 0:
            note.remove()
            continue
        box = places[chosen]
        taken.append(box.padded(2 * scale))
        offset = (box.x0 + box.width / 2 - at[0], box.y0 + box.height / 2 - at[1])
        note.set_position((offset[0] / scale, offset[1] / scale))
        if DISTANCES[chosen // len(ANGLES)] > LINE_FROM:
            axes.annotate(
                "", (point.x, point.y), xytext=(offset[0] / scale, offset[1] / scale),
                textcoords="offset points", zorder=1,
                arrowprops={"arrowstyle": "-", "color": point.colour, "linewidth": 0.6},
            ).set_in_layout(False)  # fmt: skip


def name_levels(figure: Figure, axes: Axes, levels: Sequence[Level], *, size: float = 8) -> None:
    """Names to the right of the axes, moved up or down as little as leaves them all readable."""
    if not levels:
        return
    renderer = FigureCanvasAgg(figure).get_renderer()
    levels = sorted(levels, key=lambda level: level.y)
    notes = [
        axes.annotate(
            level.name, (1, level.y), xycoords=axes.get_yaxis_transform(), xytext=(9, 0),
            textcoords="offset points", ha="left", va="center", fontsize=size,
            color=darker(level.colour, 0.2), annotation_clip=False,
            arrowprops={
                "arrowstyle": "-", "color": level.colour, "linewidth": 0.6,
                "shrinkA": 1, "shrinkB": 0, "relpos": (0, 0.5),
            },
        )
        for level in levels
    ]  # fmt: skip
    figure.draw_without_rendering()  # the layout, names included, is final from here on
    scale = figure.dpi / 72
    tall = max(note.get_window_extent(renderer).height for note in notes) + 0.5 * scale
    wanted = [float(axes.transData.transform((0, level.y))[1]) for level in levels]
    for note, there, here in zip(notes, wanted, spread_out(wanted, tall), strict=True):
        note.set_position((9, (here - there) / scale))


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


def _along(axes: Axes, path: Path, scale: float) -> list[Bbox]:
    """A line in pixels, as small boxes."""
    corners = axes.transData.transform(list(path)).tolist()
    boxes = []
    for (x0, y0), (x1, y1) in pairwise(corners):
        steps = max(1, math.ceil(math.hypot(x1 - x0, y1 - y0) / (3 * scale)))
        for i in range(steps + 1):
            x, y = x0 + (x1 - x0) * i / steps, y0 + (y1 - y0) * i / steps
            boxes.append(Bbox.from_extents(x - scale, y - scale, x + scale, y + scale))
    return boxes


def _shape(axes: Axes, point: Point, scale: float) -> list[Bbox]:
    """Marker and error bars in pixels."""
    (left, low), (right, high), (x, y) = axes.transData.transform(
        [
            (point.x - point.ci_x, point.y - point.ci_y),
            (point.x + point.ci_x, point.y + point.ci_y),
            (point.x, point.y),
        ]
    )
    r, thin = MARKER * scale, scale
    return [
        Bbox.from_extents(x - r, y - r, x + r, y + r),
        Bbox.from_extents(left, y - thin, right, y + thin),
        Bbox.from_extents(x - thin, low, x + thin, high),
    ]


def _place(
    at: Sequence[float], width: float, height: float, distance: float, angle: int, scale: float
) -> Bbox:
    """A box of this size whose edge is so far from the marker's, in that direction."""
    away = distance + MARKER * scale
    cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    x = at[0] + cos * away + width / 2 * (round(cos, 6) > 0) - width / 2 * (round(cos, 6) < 0)
    y = at[1] + sin * away + height / 2 * (round(sin, 6) > 0) - height / 2 * (round(sin, 6) < 0)
    return Bbox.from_bounds(x - width / 2, y - height / 2, width, height)


def _cover(box: Bbox, taken: Sequence[BboxBase], frame: BboxBase) -> float:
    """Pixels of other things under this box, and of the box outside the frame."""
    area = box.width * box.height
    inside = Bbox.intersection(box, frame)
    outside = area - (inside.width * inside.height if inside is not None else 0.0)
    overlaps = (Bbox.intersection(box, other) for other in taken)
    return round(outside + sum(o.width * o.height for o in overlaps if o is not None), 3)
