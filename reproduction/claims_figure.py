"""All comparisons that decide the paper's claims, in one picture: how far, and how sure."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from kedge.experiments.metrics import ENOUGH_SEEDS
from reproduction.evidence import (
    ONE_SEED,
    Comparison,
    Finding,
    Outcome,
)
from kedge.report.style import (
    INK,
    QUIET,
    RULE,
    WIDTH,
    head,
    house_style,
)

COLOURS = {Outcome.HELD: "#0072b2", Outcome.OPEN: QUIET, Outcome.FAILED: "#d55e00"}
MARKERS = {Outcome.HELD: "o", Outcome.OPEN: "s", Outcome.FAILED: "D"}
LINEAR = 3.0  # points; beyond them the scale is logarithmic
CAPTION = (
    "Each mark is a comparison that decides a claim: by how many points it goes beyond what the "
    "claim needs, with its 95% interval. Filled: over three seeds or more. Hollow: one seed, which "
    "decides only where all of its interval is outside the shaded area. Beyond 3 points the scale "
    "is logarithmic."
)
TICKS = (-20, -10, -5, -2, -1, 0, 1, 2, 5, 10, 20)
LETTERS = 40  # in a line of a claim


def judged(findings: Sequence[Finding]) -> list[Finding]:
    """Those of which some record decides."""
    return [finding for finding in findings if finding.deciding]


def overview_figure(findings: Sequence[Finding]) -> Figure | None:
    """A row for each claim that has been put to the test, a mark for each comparison."""
    rows = judged(findings)
    if not rows:
        return None
    texts = [textwrap.wrap(finding.claim.sentence, LETTERS) for finding in rows]
    heights = [
        max(len(text) + 0.9, 1.2 + 0.22 * len(finding.deciding))
        for text, finding in zip(texts, rows, strict=True)
    ]
    tops = [sum(heights[:n]) for n in range(len(heights))]
    with house_style():
        figure = Figure((WIDTH * 1.35, 0.8 + 0.172 * sum(heights)), layout="constrained")
        axes = figure.add_subplot()
        axes.axvspan(-ONE_SEED, ONE_SEED, color="#efefec", linewidth=0, zorder=0)
        axes.axvline(0.0, color=INK, linewidth=0.9, zorder=1)
        for finding, top, height in zip(rows, tops, heights, strict=True):
            axes.axhline(top, color=RULE, linewidth=0.8, zorder=0)
            some = sorted(finding.deciding, key=lambda one: one.bound - one.score.mean)
            for place, one in enumerate(some):
                y = top + height * (place + 1) / (len(some) + 1)
                x = one.score.mean - one.bound
                ci = one.score.ci if math.isfinite(one.score.ci) else 0.0
                colour, sure = COLOURS[one.outcome], one.where.seeds >= ENOUGH_SEEDS
                dot, *_ = axes.errorbar(
                    x, y, xerr=ci, color=colour, marker=MARKERS[one.outcome], markersize=4.2,
                    markerfacecolor=colour if sure else "white", elinewidth=0.9, zorder=3,
                )  # fmt: skip
                dot.set_gid(mark(one))
        axes.set_xscale("symlog", linthresh=LINEAR, linscale=1.4)
        axes.xaxis.set_major_locator(FixedLocator(TICKS))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FixedFormatter([_signed(x) for x in TICKS]))
        axes.set_ylim(sum(heights), 0)
        axes.set_yticks([top + height / 2 for top, height in zip(tops, heights, strict=True)])
        axes.set_yticklabels(["\n".join(text) for text in texts], fontsize=8.5)
        for tick, finding in zip(axes.get_yticklabels(), rows, strict=True):
            tick.set_color(COLOURS[finding.outcome])
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="y", visible=False)
        axes.spines["left"].set_visible(False)
        axes.set_xlabel("points beyond what the claim needs: against it  ←  0  →  for it")
        head(figure, [_handle(outcome) for outcome in COLOURS])
    return figure


def mark(one: Comparison) -> str:
    """What a mark stands for."""
    return f"{one.where}: {one.what}, {one.on}: {one.value}: {one.outcome}"


def _signed(x: int) -> str:
    return f"{x:+d}".replace("-", "−") if x else "0"


def _handle(outcome: Outcome) -> Line2D:
    return Line2D(
        [], [], color=COLOURS[outcome], marker=MARKERS[outcome], linestyle="", markersize=5,
        label=str(outcome),
    )  # fmt: skip
