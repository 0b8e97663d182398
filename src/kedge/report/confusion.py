"""Which classes a model takes for which others: a matrix as a picture or as CSV.

Classes that are confused with each other stand side by side, so that groups of similar classes
show as blocks on the diagonal.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from jaxtyping import Float64, Int64
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font

from kedge.evaluation.by_class import Evaluation
from kedge.report import style
from kedge.report.format import number
from kedge.utils.text import csv_line, printable

MOST_NUMBERS = 12  # classes up to which every cell has its number
MOST_ORDERED = 1000  # classes: the time to order them grows with the third power
LARGEST, CELL, CELL_WITH_NUMBER = 14.0, 0.2, 0.42  # inches
LEAST_WRONG = 20.0  # % at the end of the scale of errors, so that few errors do not look like many
SMALLEST_TYPE, LONGEST_LABEL = 4.0, 32  # points; characters
RIGHT, WRONG = "#0072b2", "#d55e00"
UNDRAWABLE = "□"


@dataclass(frozen=True)
class ConfusionMatrix:
    """The share of the images of each class, in %, that was given each name."""

    classes: tuple[str, ...]  # rows: those that had images
    names: tuple[str, ...]  # columns: the same in the same order, then others that were given
    shares: Float64[np.ndarray, "classes names"]


def confusion_matrix(evaluation: Evaluation) -> ConfusionMatrix:
    """The matrix, with classes that are confused side by side."""
    classes = sorted(result.name for result in evaluation.per_class)
    others = sorted({c.predicted for c in evaluation.confusions} - set(classes))
    index = {name: i for i, name in enumerate((*classes, *others))}
    shares = np.zeros((len(classes), len(index)))
    for result in evaluation.per_class:
        shares[index[result.name], index[result.name]] = result.accuracy
    for each in evaluation.confusions:
        shares[index[each.true], index[each.predicted]] = 100 * each.count / each.of
    n = len(classes)
    order = neighbours_first(shares[:, :n] + shares[:, :n].T) if n <= MOST_ORDERED else np.arange(n)
    columns = np.concatenate([order, np.arange(n, len(index))])
    names = tuple((*classes, *others)[i] for i in columns)
    return ConfusionMatrix(names[:n], names, shares[np.ix_(order, columns)])


def neighbours_first(similarity: Float64[np.ndarray, "n n"]) -> Int64[np.ndarray, " n"]:
    """An order in which similar rows are neighbours: the leaves of a tree that joins the two most
    similar groups again and again (average linkage), turned so that similar ends meet."""
    between = similarity.astype(float)
    np.fill_diagonal(between, -np.inf)
    groups = {i: [i] for i in range(len(between))}
    sizes = np.ones(len(between))
    while len(groups) > 1:
        a, b = sorted(divmod(int(between.argmax()), len(between)))
        turned = itertools.product(*((groups[i], groups[i][::-1]) for i in (a, b)))
        left, right = max(turned, key=lambda pair: similarity[pair[0][-1], pair[1][0]])
        groups[a] = left + right
        del groups[b]
        joined = (sizes[a] * between[a] + sizes[b] * between[b]) / (sizes[a] + sizes[b])
        between[a], between[:, a] = joined, joined
        sizes[a] += sizes[b]
        between[b] = between[:, b] = between[a, a] = -np.inf
    return np.array(*groups.values())


def confusion_csv(matrix: ConfusionMatrix) -> str:
    """A row for each class, a column for each name, shares in %."""
    lines = [csv_line("class", *matrix.names)]
    for name, row in zip(matrix.classes, matrix.shares.tolist(), strict=True):
        lines.append(csv_line(name, *(f"{share:.4g}" for share in row)))
    return "".join(lines)


def confusion_picture(matrix: ConfusionMatrix, format: Literal["png", "svg"]) -> bytes:
    """The matrix as a picture. In SVG labels are text, for which a browser has every character."""
    figure = _draw(matrix, str if format == "svg" else drawable)
    return style.encode(figure, format, {"svg.fonttype": "none"}, bbox_inches="tight")


def drawable(text: str) -> str:
    """The text with a box in place of each character that the font of figures lacks."""
    return "".join(c if ord(c) in _drawn_characters() else UNDRAWABLE for c in text)


@cache
def _drawn_characters() -> frozenset[int]:
    return frozenset(get_font(findfont("DejaVu Sans")).get_charmap())


def _draw(matrix: ConfusionMatrix, label: Callable[[str], str]) -> Figure:
    """Cells have a fixed size; the figure is cut to what its labels need when it is saved."""
    n_rows, n_columns = matrix.shares.shape
    cell = CELL_WITH_NUMBER if n_columns <= MOST_NUMBERS else min(CELL, LARGEST / n_columns)
    width, height = cell * n_columns, cell * n_rows
    type_size = max(SMALLEST_TYPE, min(8.0, 60 * cell))
    every = math.ceil(type_size / (60 * cell))  # cells that a label takes
    labels = [label(_shortened(name)) for name in matrix.names]
    rows, columns = (_labelled(matrix, n, every) for n in (n_rows, n_columns))
    wrong = matrix.shares.copy()
    np.fill_diagonal(wrong, 0.0)
    highest = max(LEAST_WRONG, float(wrong.max()))
    diagonal = np.arange(n_rows)
    with style.house_style():
        figure = Figure((width, height))
        axes = figure.add_axes((0, 0, 1, 1))
        of_right, of_wrong = (
            ScalarMappable(Normalize(0, top), LinearSegmentedColormap.from_list("", ["white", end]))
            for top, end in ((100.0, RIGHT), (highest, WRONG))
        )
        colours = of_wrong.to_rgba(wrong, bytes=True)
        colours[diagonal, diagonal] = of_right.to_rgba(
            matrix.shares[diagonal, diagonal], bytes=True
        )
        axes.imshow(colours, interpolation="nearest", aspect="auto")
        axes.set_yticks(rows, [labels[i] for i in rows], fontsize=type_size)
        axes.set_xticks(columns, [labels[i] for i in columns], fontsize=type_size, rotation=90)
        axes.set_ylabel("class")
        axes.set_xlabel("name that it was given")
        axes.grid(visible=False)
        axes.spines[:].set(visible=True, color=style.RULE)
        axes.tick_params(length=0 if every == 1 else 2)
        if n_columns <= MOST_NUMBERS:
            _write_numbers(axes, matrix, highest)
        tall = max(0.35, min(1.2, height / 2 - 0.4))  # inches, of a scale
        for n, (scale, title) in enumerate(((of_right, "right (%)"), (of_wrong, "wrong (%)"))):
            bottom = height - 0.25 - tall - n * (tall + 0.4)
            place = ((width + 0.3) / width, bottom / height, 0.12 / width, tall / height)
            bar = figure.colorbar(scale, cax=figure.add_axes(place))
            bar.ax.set_title(title, fontsize=8, fontweight="normal")
            bar.ax.tick_params(labelsize=7)
            bar.outline.set_visible(False)
    return figure


def _shortened(name: str) -> str:
    """A long name without its middle, since similar names often differ at the end."""
    name, half = printable(name, one_line=True), LONGEST_LABEL // 2
    short = f"{name[: half - 1].rstrip()}…{name[-half:].lstrip()}"
    return name if len(name) <= LONGEST_LABEL else short


def _labelled(matrix: ConfusionMatrix, n: int, every: int) -> list[int]:
    """Rows or columns that get a label: all, or those with most errors that have room."""
    if every == 1:
        return list(range(n))
    errors = np.zeros(n)
    errors[: len(matrix.classes)] = 100 - np.diag(matrix.shares)
    chosen: list[int] = []
    free = np.ones(n, bool)
    for i in np.argsort(-errors, kind="stable").tolist():
        if free[i]:
            chosen.append(i)
            free[max(0, i - every + 1) : i + every] = False
    return sorted(chosen)


def _write_numbers(axes: Axes, matrix: ConfusionMatrix, highest: float) -> None:
    for (y, x), share in np.ndenumerate(matrix.shares):
        if share:
            dark = share > (60 if x == y else 0.6 * highest)
            ink = "white" if dark else style.INK
            text = number(share, digits=0 if share >= 9.95 else 1)
            axes.text(x, y, text, ha="center", va="center", fontsize=7, color=ink)
