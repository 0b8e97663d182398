"""Sweeps: labels of one method that differ in the value of one option."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kedge.errors import KedgeError
from kedge.methods.registry import ALIGNMENTS
from kedge.report.queries import family
from kedge.utils.spec import Spec, field_names, parse_spec

MIN_VALUES = 3  # of an option, for a sweep


@dataclass(frozen=True)
class Sweep:
    option: str
    stem: str  # the label without the option: "IDA", "IDA anchors=all"
    points: tuple[tuple[float, str], ...]  # value and label, ascending
    members: frozenset[str]  # all labels, including a second one for the same value
    representative: str  # the label nearest to the default, for figures with one per method


def find_sweeps(labels: Sequence[str]) -> tuple[Sweep, ...]:
    """Every option in which at least three labels of one method differ, and in nothing else."""
    specs = {label: spec for label in labels if (spec := _parse(label)) is not None}
    plain = {_without(spec, ""): label for label, spec in reversed(specs.items())}
    groups: dict[tuple[str, str], list[tuple[float, str]]] = {}
    for label, spec in specs.items():
        for option, value in spec.options.items():
            if option.isidentifier() and not isinstance(value, str) and math.isfinite(value):
                key = (option, _without(spec, option))
                groups.setdefault(key, []).append((float(value), label))
    sweeps = []
    for (option, stem), members in groups.items():
        default = default_value(family(stem), option)
        if default is not None and stem in plain:
            members = [(default, plain[stem]), *members]
        values = dict(reversed(members))  # of equal values, the plain label
        if len(values) < MIN_VALUES:
            continue
        target = members[0][0] if default is None else default
        nearest = min(values, key=lambda value: (abs(value - target), value))
        points, names = tuple(sorted(values.items())), frozenset(label for _, label in members)
        sweeps.append(Sweep(option, stem, points, names, values[nearest]))
    return tuple(sweeps)


def without_sweeps(labels: Sequence[str]) -> tuple[str, ...]:
    """The labels with each sweep reduced to its representative."""
    sweeps = find_sweeps(labels)
    return tuple(m for m in labels if all(m == s.representative for s in sweeps if m in s.members))


def default_value(name: str, option: str) -> float | None:
    """The numeric default of a method's option; None if it has none or is unknown."""
    kind = ALIGNMENTS.get(name)
    if kind is None:
        return None
    if option == "lambda":
        return float(kind.default_weight)
    value = getattr(kind, option, None) if option in field_names(kind) else None
    return None if isinstance(value, bool) or not isinstance(value, int | float) else float(value)


def _parse(label: str) -> Spec | None:
    """Labels are free text; one that cannot be parsed is in no sweep."""
    try:
        return parse_spec(label, "Method")
    except KedgeError:
        return None


def _without(spec: Spec, option: str) -> str:
    """The label without an option, and with the others in a fixed order."""
    return Spec(spec.name, {k: v for k, v in sorted(spec.options.items()) if k != option}).label
