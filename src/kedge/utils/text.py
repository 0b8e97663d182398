"""Names and numbers within a sentence."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence


def counted(n: int, one: str, several: str = "") -> str:
    """How many of what; `several` where that is more than an s behind `one`."""
    return f"{n} {one if n == 1 else several or f'{one}s'}"


def sized(n_bytes: float) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= factor:
            return f"{n_bytes / factor:.1f} {unit}"
    return f"{n_bytes:.0f} B"


def shown(name: str) -> str:
    """A name within a sentence: it stays on its line, and its end can be seen."""
    name = name if len(name) <= 200 else f"{name[:90]}…{name[-90:]}"
    return name if name.isprintable() and name == name.strip() else repr(name)


def left_out(names: Sequence[str], one: str, several: str) -> tuple[str, ...]:
    """One remark on them, or none where there are none: what one of them is, or several are."""
    if not names:
        return ()
    were = "was" if len(names) == 1 else "were"
    return (f"{counted(len(names), one, several)} and {were} left out{first_of(names)}",)


def first_of(names: Sequence[str]) -> str:
    """The end of a remark: the first of them, or the only one."""
    return f"{':' if len(names) == 1 else ', the first is'} {shown(names[0])}"


def plain_name(name: str) -> str:
    """Of a class: blanks at its ends do not count, nor does how a system writes an accent."""
    return unicodedata.normalize("NFC", name).strip() or name
