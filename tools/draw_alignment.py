"""Draw docs/figures/alignment.svg: how FT, DFA and IDA let the feature of a new image move.

    python tools/draw_alignment.py [FILE]

An illustration, not a measurement: the positions of the points and the strength of the spring are
chosen for clarity. Predictions and penalties are computed by kedge's head and alignments in a plane
with two anchors. The new task is a spring towards one point; the feature of each method lies where
spring and penalty balance.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from kedge.methods.base import Alignment, AlignmentInputs
from kedge.methods.dfa import DirectFeatureAlignment
from kedge.methods.ida import IndirectDiscriminantAlignment
from kedge.models.heads import PrototypeHead

OUT = Path(__file__).resolve().parents[1] / "docs" / "figures" / "alignment.svg"
ANCHORS = torch.tensor([[-1.6, -0.5], [1.4, -1.4]], dtype=torch.float64)
OLD = torch.tensor([-0.47, -0.7], dtype=torch.float64)  # the feature under the teacher
WANTED = torch.tensor([1.05, 1.25], dtype=torch.float64)  # the optimum of the new task
SPRING = 0.35  # strength of the pull towards the optimum
HEAD = PrototypeHead(2, temperature=2.0)
LEVELS = (0.4, 0.1, 0.02)  # of the penalty, at the edges of the shades
SIDE, GAP, UNIT = 280, 20, 60  # px: panel, gap between panels, unit of the plane
LEFT, TOP = 10, 52


@dataclass(frozen=True)
class Panel:
    name: str
    subtitle: str
    alignment: Alignment | None


PANELS = (
    Panel("FT", "nothing is kept", None),
    Panel("DFA", "the feature is kept", DirectFeatureAlignment()),
    Panel("IDA", "the prediction is kept", IndirectDiscriminantAlignment()),
)

STYLE = """
  text { font: 16px system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: #1f2328 }
  .card { fill: #ffffff } .plane { fill: #f4f5f8; stroke: #c9cdd6 }
  .title { font-weight: 700; font-size: 19px } .soft { fill: #57606a }
  .held { fill: #12936f; fill-opacity: 0.17 }
  .a { fill: #e69a1e } .b { fill: #2f6fd0 }
  .on { font-weight: 600 } .on.a { fill: #14161b } .on.b { fill: #ffffff }
  .old { fill: #f4f5f8; stroke: #1f2328; stroke-width: 2.5 } .new { fill: #1f2328 }
  .line { fill: none; stroke: #1f2328; stroke-width: 2.5 }
  .wish { fill: none; stroke: #57606a; stroke-width: 2; stroke-dasharray: 3 5 }
  .star { fill: none; stroke: #57606a; stroke-width: 2.5 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6e9ef } .card { fill: #1e2129 } .plane { fill: #262a34; stroke: #444b5a }
    .soft { fill: #a5adba } .held { fill: #3fd0a4; fill-opacity: 0.16 }
    .a { fill: #f2a33a } .b { fill: #6ea3f2 } .on.b { fill: #14161b }
    .old { fill: #262a34; stroke: #e6e9ef } .new { fill: #e6e9ef } .line { stroke: #e6e9ef }
    .wish, .star { stroke: #a5adba }
  }
"""


def penalty(alignment: Alignment | None, feature: Tensor) -> Tensor:
    if alignment is None:
        return feature.new_zeros(())
    return alignment.penalty(AlignmentInputs(feature[None], OLD[None], HEAD, ANCHORS))


def equilibrium(alignment: Alignment | None) -> Tensor:
    """Where spring and penalty balance, by gradient descent."""
    feature = OLD.clone().requires_grad_(True)
    for _ in range(800):
        loss = SPRING / 2 * (feature - WANTED).square().sum() + penalty(alignment, feature)
        (gradient,) = torch.autograd.grad(loss, feature)
        feature = (feature - 0.1 * gradient).detach().requires_grad_(True)
    return feature.detach()


def prediction(feature: Tensor) -> list[float]:
    return HEAD.logits(feature[None], ANCHORS).softmax(-1)[0].tolist()


@torch.no_grad()
def reach(alignment: Alignment, direction: Tensor, level: float) -> float:
    """Distance from the old feature at which the penalty reaches a level."""
    low, high = 0.0, 20.0
    for _ in range(25):
        middle = (low + high) / 2
        below = float(penalty(alignment, OLD + middle * direction)) < level
        low, high = (middle, high) if below else (low, middle)
    return high


def shades(panel: Panel, corner: float) -> list[str]:
    """Polygons of equal penalty."""
    if panel.alignment is None:
        return []
    dx, dy = along_anchors()
    # No ray lies in the free direction itself: the penalty would never reach the level.
    turn = torch.arange(1, 360, 2, dtype=torch.float64) * math.pi / 180 + math.atan2(dx, -dy)
    outline = torch.stack([turn.cos(), turn.sin()], 1)
    polygons = []
    for level in LEVELS:
        points = [OLD + reach(panel.alignment, d, level) * d for d in outline]
        path = " ".join("{:.1f},{:.1f}".format(*at(p, corner)) for p in points)
        polygons.append(f'<polygon class="held" points="{path}"/>')
    return polygons


def along_anchors() -> tuple[float, float]:
    dx, dy = (ANCHORS[1] - ANCHORS[0]).tolist()
    return dx, dy


def at(point: Tensor, corner: float) -> tuple[float, float]:
    """Pixel coordinates of a point in the panel that begins at `corner`."""
    x, y = point.tolist()
    return corner + SIDE / 2 + UNIT * x, TOP + SIDE / 2 - UNIT * y


def arrow(start: tuple[float, float], end: tuple[float, float], room: float) -> str:
    """An arrow between two dots that leaves `room` around both."""
    length = math.dist(start, end)
    ux, uy = ((e - s) / length for s, e in zip(start, end, strict=True))
    x0, y0, x1, y1 = (
        *(s + room * u for s, u in zip(start, (ux, uy), strict=True)),
        *(e - room * u for e, u in zip(end, (ux, uy), strict=True)),
    )
    wing = [(x1 - 9 * ux + s * 5 * uy, y1 - 9 * uy - s * 5 * ux) for s in (1, -1)]
    (ax, ay), (bx, by) = wing
    return (
        f'<path class="line" d="M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}'
        f'M{ax:.1f} {ay:.1f}L{x1:.1f} {y1:.1f}L{bx:.1f} {by:.1f}"/>'
    )


def free(corner: float) -> str:
    """The label of the direction that is orthogonal to the difference of the anchors."""
    dx, dy = along_anchors()
    along = torch.tensor([-dy, dx], dtype=torch.float64)
    x, y = at(OLD - 1.0 * along / along.norm(), corner)
    angle = math.degrees(math.atan2(-dx, -dy))
    turned = f"translate({x:.1f} {y:.1f}) rotate({angle:.1f})"
    return f'<text transform="{turned}" y="5" text-anchor="middle">free</text>'


def phi(name: str) -> str:
    small = f'<tspan dy="4" font-size="12">{name}</tspan>'
    return f'<tspan font-style="italic">φ</tspan>{small}<tspan dy="-4">(</tspan>x)'


def bar(corner: float, y: float, label: str, p: list[float]) -> list[str]:
    width = SIDE - 62
    first, x = width * p[0], corner + 62
    pieces = [f'<text x="{corner}" y="{y + 17}">{phi(label)}</text>']
    for name, start, length, share in (
        ("a", x, first, p[0]),
        ("b", x + first, width - first, p[1]),
    ):
        pieces.append(
            f'<rect class="{name}" x="{start:.1f}" y="{y}" width="{length:.1f}" height="24"/>'
        )
        label_text = f"{name.upper()} {100 * share:.0f}%" if length > 60 else f"{100 * share:.0f}%"
        pieces.append(
            f'<text class="on {name}" x="{start + length / 2:.1f}" y="{y + 17.5}" '
            f'text-anchor="middle">{label_text}</text>'
        )
    return pieces


def draw(number: int, panel: Panel) -> list[str]:
    corner = LEFT + number * (SIDE + GAP)
    new = equilibrium(panel.alignment)
    start, end, wish = (at(point, corner) for point in (OLD, new, WANTED))
    parts = [
        f'<text x="{corner}" y="32"><tspan class="title">{panel.name}</tspan>'
        f'<tspan dx="10">{panel.subtitle}</tspan></text>',
        f'<clipPath id="plane{number}"><rect x="{corner}" y="{TOP}" width="{SIDE}" '
        f'height="{SIDE}" rx="8"/></clipPath>',
        f'<rect class="plane" x="{corner}" y="{TOP}" width="{SIDE}" height="{SIDE}" rx="8"/>',
        f'<g clip-path="url(#plane{number})">',
        *shades(panel, corner),
        "</g>",
    ]
    if isinstance(panel.alignment, IndirectDiscriminantAlignment):
        parts.append(free(corner))
    for name, anchor in zip("ab", ANCHORS, strict=True):
        x, y = at(anchor, corner)
        parts.append(
            f'<rect class="{name}" x="{x - 8:.1f}" y="{y - 8:.1f}" width="16" height="16"/>'
        )
        parts.append(
            f'<text x="{x:.1f}" y="{y + 28:.1f}" text-anchor="middle">anchor {name.upper()}</text>'
        )
    parts.append('<path class="wish" d="M{:.1f} {:.1f}L{:.1f} {:.1f}"/>'.format(*start, *wish))
    if math.dist(start, end) > 40:
        parts.append(arrow(start, end, 10))
    x, y = wish
    parts.append(
        f'<path class="star" d="M{x - 8:.1f} {y - 8:.1f}l16 16m0-16l-16 16"/>'
        f'<text class="soft" x="{x + 14:.1f}" y="{y + 5:.1f}">target</text>'
    )
    parts.append('<circle class="old" cx="{:.1f}" cy="{:.1f}" r="7"/>'.format(*start))
    parts.append('<circle class="new" cx="{:.1f}" cy="{:.1f}" r="7"/>'.format(*end))
    parts.append(f'<text x="{start[0] + 12:.1f}" y="{start[1] + 16:.1f}">{phi("old")}</text>')
    parts.append(
        f'<text x="{end[0] - 12:.1f}" y="{end[1] - 2:.1f}" text-anchor="end">{phi("new")}</text>'
    )
    below = TOP + SIDE + 22
    parts += bar(corner, below, "old", prediction(OLD)) + bar(
        corner, below + 32, "new", prediction(new)
    )
    return parts


def figure() -> str:
    width, height = 2 * LEFT + 3 * SIDE + 2 * GAP, TOP + SIDE + 96
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        "<title>A new image’s feature under the old and the new backbone, and its prediction "
        "relative to two anchors</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="card" width="{width}" height="{height}" rx="10"/>',
    ]
    for number, panel in enumerate(PANELS):
        lines += draw(number, panel)
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    Path(sys.argv[1] if len(sys.argv) > 1 else OUT).write_text(figure(), encoding="utf-8")
