"""JSON from files that may be damaged or hostile."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

MAX_DEPTH = 30  # lists and objects within each other


def parse_json(text: str) -> Any:
    """The value of a JSON text: no NaN, no repeated keys, limited nesting.

    Raises ValueError or RecursionError for anything else.
    """
    value = json.loads(text, parse_constant=_reject_constant, object_pairs_hook=_unique_keys)
    check_depth(value)
    if re.search(r"\\u[dD][89a-fA-F]", text):  # a lone surrogate parses, but cannot be printed
        json.dumps(value, ensure_ascii=False).encode()
    return value


def check_depth(value: Any) -> None:
    """Raise ValueError if lists and objects are nested too deeply."""
    level = [value]
    for _ in range(MAX_DEPTH):
        containers = (each for each in level if isinstance(each, list | dict))
        level = [
            inner
            for each in containers
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return
    raise ValueError(f"lists and objects are nested more than {MAX_DEPTH} times")


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is repeated")
    return found
