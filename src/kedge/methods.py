"""The methods that are compared: where each starts, what it may see, and what holds it.

A method is written as its name and any options: `IDA`, `IDA lambda=5`, `IDA anchors=all`.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal

from kedge.alignment import ALIGNMENTS, Alignment
from kedge.errors import KedgeError


@dataclass(frozen=True)
class Method:
    label: str
    trains_on: Literal["nothing", "new", "everything"]
    alignment: Alignment | None = None
    weight: float = 1.0  # λ


PLAIN: dict[str, Literal["nothing", "new", "everything"]] = {
    "NU": "nothing",  # no update: the base model again in every round
    "FT": "new",  # fine-tuning: nothing holds it
    "PAR": "everything",  # paragon: from scratch on all images so far, the upper bound
}
NAMES = ("NU", "FT", *ALIGNMENTS, "PAR")


def parse_method(text: str) -> Method:
    """'IDA lambda=5 anchors=all' → a method. The label is the text, tidied."""
    name, *options = text.split() or [""]
    name = name.upper()
    if name not in NAMES:
        raise KedgeError(f"There is no method '{text}'; the known ones are {', '.join(NAMES)}.")
    given = dict(_option(name, option) for option in options)
    if len(given) < len(options):
        raise KedgeError(f"Method '{text}': an option (such as lambda) is given twice.")
    shown = (f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in given.items())
    label = " ".join([name, *shown])
    if name in PLAIN:
        if given:
            raise KedgeError(f"Method '{text}': {name} has no options.")
        return Method(label, PLAIN[name])
    weight = given.pop("lambda", 1.0)
    if not isinstance(weight, int | float) or not 0 <= weight < math.inf:
        raise KedgeError(f"Method '{text}': lambda must be a number that is not negative.")
    kind = ALIGNMENTS[name]
    known = [f.name for f in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for key in given:
        if key not in known:
            options_known = ", ".join(["lambda", *known])
            raise KedgeError(f"Method '{text}': {name} knows the options {options_known}.")
    return Method(label, "new", kind(**given), float(weight))


def _option(name: str, text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key or not value:
        raise KedgeError(f"Method '{name} {text}': write options as name=value.")
    for convert in (int, float):
        try:
            return key, convert(value)
        except ValueError:
            continue
    return key, value
