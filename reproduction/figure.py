"""Forest plot of the effects: IDA against each method on old, new and unseen classes."""

from __future__ import annotations

import io
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from reproduction.claims import RIVALS
from reproduction.markdown import signed
from reproduction.pooling import Pooled
from reproduction.studies import POOLS, SOURCES

COLOURS = {"tiny": "#0072b2", "drawings": "#d55e00", "paper": "#777777"}
OFFSETS = {"tiny": -0.25, "drawings": 0.0, "paper": 0.25}
STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "svg.fonttype": "none",
    "svg.hashsalt": "kedge",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
}


def forest_plot(effects: dict[tuple[str, str, str], Pooled]) -> Figure:
    """One row per method and pool; in it the tables as dots and their pooled mean per source."""
    with matplotlib.rc_context(STYLE):
        figure = Figure((7.6, 6.6), layout="constrained")
        axes = figure.add_subplot()
        axes.axvline(0.0, color="#222222", linewidth=0.9, zorder=1)
        ticks, labels = [], []
        for group, rival in enumerate(RIVALS):
            for i, kind in enumerate(POOLS):
                row = group * (len(POOLS) + 0.6) + i
                ticks.append(row)
                labels.append(f"IDA − {rival},  {kind}" if i == 0 else kind)
                for source, colour in COLOURS.items():
                    if pooled := effects.get((rival, source, kind)):
                        y = row + OFFSETS[source]
                        means = [effect.mean for effect in pooled.effects]
                        axes.plot(
                            means, [y] * len(means), "o", color=colour, markersize=2.6,
                            alpha=0.45, markeredgewidth=0, zorder=2,
                        )  # fmt: skip
                        diamond, *_ = axes.errorbar(
                            pooled.mean, y, xerr=pooled.ci, color=colour, marker="D",
                            markersize=4.2, elinewidth=1.4, zorder=3,
                        )  # fmt: skip
                        diamond.set_gid(mark(rival, source, kind, pooled))
        axes.set_yticks(ticks, labels)
        axes.set_ylim(max(ticks) + 0.7, -0.7)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x", color="#e4e4e0", linewidth=0.7)
        axes.set_axisbelow(True)
        axes.set_xlabel("percentage points:  IDA behind  ←  0  →  IDA ahead")
        handles = [
            Line2D([], [], color=colour, marker="D", markersize=4.2, label=SOURCES[source])
            for source, colour in COLOURS.items()
        ]
        figure.legend(handles=handles, loc="outside upper center", ncols=3, frameon=False)
    return figure


def mark(rival: str, source: str, kind: str, pooled: Pooled) -> str:
    """Identifies a diamond in the SVG, with its value."""
    return f"IDA-{rival}/{source}/{kind}: {signed(pooled.mean)} ± {pooled.ci:.1f}"


def to_svg(figure: Figure) -> bytes:
    """The same bytes for the same figure."""
    file = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()
