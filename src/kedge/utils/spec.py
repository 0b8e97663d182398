"""Methods and heads with options, written as one text: 'IDA lambda=5 anchors=all'."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kedge.errors import KedgeError


@dataclass(frozen=True)
class Spec:
    """A name and its options, in the order in which they were written."""

    name: str
    options: dict[str, int | float | str]

    @property
    def label(self) -> str:
        """The canonical text."""
        words = [self.name]
        for key, value in self.options.items():
            short = isinstance(value, float) and float(f"{value:g}") == value
            words.append(f"{key}={value:g}" if short else f"{key}={value}")
        return " ".join(words)


def parse_spec(text: str, what: str) -> Spec:
    """Parse a text. `what` ("Method", "Head") begins error messages."""
    if not isinstance(text, str):
        raise KedgeError(f"{what} {text!r}: give a name, followed by its options, as one text.")
    name, *options = text.split() or [""]
    parsed = dict(_parse_option(f"{what} '{name} {option}'", option) for option in options)
    if len(parsed) < len(options):
        raise KedgeError(f"{what} '{text}': an option is given twice.")
    return Spec(name, parsed)


def check_options(spec: Spec, known: Collection[str], what: str) -> None:
    """Refuse unknown options and, if `known` maps to defaults, text in place of numbers."""
    defaults = known if isinstance(known, Mapping) else {}
    for key, value in spec.options.items():
        if key not in known:
            knows = f"knows the options {', '.join(known)}" if known else "has no options"
            raise KedgeError(f"{what} '{spec.label}': {spec.name} {knows}.")
        if isinstance(value, str) and isinstance(defaults.get(key), int | float):
            raise KedgeError(f"{what} '{spec.label}': {key} must be a number.")


def field_names(kind: type) -> list[str]:
    """The options of a dataclass."""
    return [f.name for f in dataclasses.fields(kind)]


def keyword_defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """The options of a function or class: its keyword-only arguments with their defaults."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


def _parse_option(where: str, text: str) -> tuple[str, int | float | str]:
    key, _, value = text.partition("=")
    if not key or not value:
        raise KedgeError(f"{where}: write options as name=value.")
    for convert in (int, float):
        with suppress(ValueError):
            return key, convert(value)
    return key, value
