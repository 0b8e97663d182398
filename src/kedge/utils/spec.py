"""A thing and its options, written as one text: 'IDA lambda=5 anchors=all', 'ecm training=inner'.

Methods and heads are named so in commands, recipes, records and figures.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Collection, Mapping
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
        """The text again, tidied: what the same thing is always called."""
        shown = (f"{key}={_shown(value)}" for key, value in self.options.items())
        return " ".join([self.name, *shown])


def _shown(value: int | float | str) -> str:
    """As short as it can be without becoming another value."""
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def parse_spec(text: str, what: str) -> Spec:
    """`what` is for people: "Method", "Head"."""
    if not isinstance(text, str):
        raise KedgeError(f"{what} {text!r}: give its name, with options behind it, as one text.")
    name, *options = text.split() or [""]
    given = dict(_option(f"{what} '{name} {option}'", option) for option in options)
    if len(given) < len(options):
        raise KedgeError(f"{what} '{text}': an option is given twice.")
    return Spec(name, given)


def check_options(named: Spec, known: Collection[str], what: str) -> None:
    """Where defaults are known too, what is usually a number must be one."""
    defaults = known if isinstance(known, Mapping) else {}
    for key, value in named.options.items():
        if key not in known:
            knows = f"knows the options {', '.join(known)}" if known else "has no options"
            raise KedgeError(f"{what} '{named.label}': {named.name} {knows}.")
        if isinstance(value, str) and isinstance(defaults.get(key), int | float):
            raise KedgeError(f"{what} '{named.label}': {key} must be a number.")


def fields_of(kind: type) -> list[str]:
    """The options of a dataclass."""
    return [f.name for f in dataclasses.fields(kind)]


def keywords_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The options of a function or class with their defaults: its keyword-only arguments."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


def _option(where: str, text: str) -> tuple[str, int | float | str]:
    key, equals, value = text.partition("=")
    if not equals or not key or not value:
        raise KedgeError(f"{where}: write options as name=value.")
    for convert in (int, float):
        try:
            return key, convert(value)
        except ValueError:
            continue
    return key, value
