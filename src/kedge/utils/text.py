"""Names and numbers within a sentence."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence


def pluralize(n: int, one: str, several: str = "") -> str:
    """How many of what; `several` where that is more than an s behind `one`."""
    return f"{n} {one if n == 1 else several or f'{one}s'}"


def format_bytes(n_bytes: float) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= factor:
            return f"{n_bytes / factor:.1f} {unit}"
    return f"{n_bytes:.0f} B"


def display_name(name: str) -> str:
    """A name within a sentence: it stays on its line, and its end can be seen."""
    name = name if len(name) <= 200 else f"{name[:90]}…{name[-90:]}"
    return name if name.isprintable() and name == name.strip() else repr(name)


def skipped_remark(names: Sequence[str], noun: str, reason: str) -> tuple[str, ...]:
    """A remark such as "2 images skipped (no class), the first is a.png"; empty without names."""
    if not names:
        return ()
    plural = f"{noun}{'es' if noun.endswith('s') else 's'}"
    return (f"{pluralize(len(names), noun, plural)} skipped ({reason}){first_example(names)}",)


def first_example(names: Sequence[str]) -> str:
    """The end of a remark: the first of them, or the only one."""
    return f"{':' if len(names) == 1 else ', the first is'} {display_name(names[0])}"


def normalize_name(name: str) -> str:
    """Of a class: blanks at its ends do not count, nor does how a system writes an accent."""
    return unicodedata.normalize("NFC", name).strip() or name
