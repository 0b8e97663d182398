"""Write the measured parts of docs/privacy.md from docs/privacy.json.

    python tools/write_privacy.py

`tools/measure_privacy.py` measures them. A part lies between two comments with its name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1] / "docs"
RESULT, PAGE = DOCS / "privacy.json", DOCS / "privacy.md"
PART = re.compile(r"(<!-- privacy: (\w+) begin -->\n).*?(<!-- privacy: \w+ end -->)", re.S)
NETWORKS = {"drawings": "drawings, Conv-4", "flowers": "flowers, EfficientNet-lite0"}


def interval(value: dict[str, Any], digits: int = 2) -> str:
    """'0.41 (0.38 to 0.44)'."""
    low, high = (f"{value[key]:.{digits}f}" for key in ("low", "high"))
    return f"{value['mean']:.{digits}f} ({low} to {high})"


def table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    aligned = [":---", *["---:"] * (len(names) - 1)]
    return "".join(f"| {' | '.join(row)} |\n" for row in (names, aligned, *rows))


def inversion(result: dict[str, Any]) -> Iterator[str]:
    names = (
        "images",
        "attack",
        "with an image of the mean",
        "with another of the class",
        "difference",
        "nearest is one of the mean, %",
        "means",
    )
    attacks = {"gradient": "gradient descent", "decoder": "decoder", "average": "*no model file*"}
    for network, title in NETWORKS.items():
        rows = []
        for each in result["inversion"][network]:
            for attack, name in attacks.items():
                of = each[attack]
                cells = [interval(of[column]) for column in ("used", "unused", "difference")]
                cells.append(interval(of["nearest is used"], 0))
                if attack == "average":  # the other images are a part of it
                    cells[1:] = ["–"] * 3
                rows.append((str(each["images"]), name, *cells, str(of["used"]["n"])))
        yield f"{title[0].upper()}{title[1:]}:\n\n{table(names, rows)}"


def membership(result: dict[str, Any]) -> Iterator[str]:
    shares = "found at 1% false alarms, %"
    names = ("network", "images", "further images", "distance", "likelihood", shares)
    rows = []
    for network, title in NETWORKS.items():
        for each in result["membership"][network]:
            n = f"{each['images']}{', joined classes' if each.get('joined') else ''}"
            areas = [interval(each[attack]) for attack in ("distance", "likelihood")]
            rows.append((title, n, str(each["reference"]), *areas, f"{each['found at 1%']:.1f}"))
    yield table(names, rows)


def weights(result: dict[str, Any]) -> Iterator[str]:
    names = ("network", "images", "weights: loss", "anchor: distance", "anchor: likelihood")
    rows = []
    for network, title in NETWORKS.items():
        each = result["weights"][network]
        kinds = ("weights, loss", "anchor, distance", "anchor, likelihood")
        rows.append((title, str(each["images"]), *(interval(each[kind]) for kind in kinds)))
    yield table(names, rows)


def noise(result: dict[str, Any]) -> Iterator[str]:
    names = ("noise", "named, %", "member or not: 20 images", "100 images")
    more = ("named, frozen, %", "ε: 20 images", "100 images")
    for network, title in NETWORKS.items():
        rows, unit = [], network == "flowers"
        for each in result["noise"][network]:
            areas = [interval(each["likelihood"][n]) for n in ("20", "100")]
            row = [f"{each['noise']:g}", _named(each["trained"]), *areas]
            if unit:
                row.insert(2, _named(each["frozen"]))
                row += [_epsilon(each["epsilon"][n]) for n in ("20", "100")]
            rows.append(row)
        columns = (*names[:2], more[0], *names[2:], *more[1:]) if unit else names
        yield f"{title[0].upper()}{title[1:]}:\n\n{table(columns, rows)}"


def _named(value: dict[str, Any]) -> str:
    """Accuracy with the half-width of its 95% interval."""
    p = value["accuracy"]
    return f"{p:.1f} ± {1.96 * (p * (100 - p) / value['tested']) ** 0.5:.1f}"


def _epsilon(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}" if value < 10 else f"{value:,.0f}"


PARTS = {"inversion": inversion, "membership": membership, "weights": weights, "noise": noise}


def rendered(page: str, result: dict[str, Any]) -> str:
    """The page with its measured parts written anew."""

    def part(match: re.Match[str]) -> str:
        return match[1] + "\n".join(PARTS[match[2]](result)) + match[3]

    return PART.sub(part, page)


if __name__ == "__main__":
    result = json.loads(RESULT.read_text(encoding="utf-8"))
    PAGE.write_text(rendered(PAGE.read_text(encoding="utf-8"), result), encoding="utf-8")
