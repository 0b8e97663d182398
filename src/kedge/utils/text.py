"""Numbers and names in messages."""

from __future__ import annotations

import os
import re
import shlex
import sys
import unicodedata
from collections.abc import Sequence

FORMULA_STARTS = ("=", "+", "-", "@", "＝", "＋", "－", "＠", "'")


def pluralize(n: int, singular: str, plural: str = "") -> str:
    """'1 image', '3 images'; the plural is the singular with an s by default."""
    return f"{n} {singular if n == 1 else plural or f'{singular}s'}"


def list_some(names: Sequence[str], most: int, longest: int = 120) -> str:
    """'ant, bat, cat, …': the first names, each of so many characters at most."""
    shown = [display_name(name, longest) for name in names[:most]]
    return ", ".join([*shown, *(["…"] if names[most:] else [])])


def format_bytes(n_bytes: float) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= factor:
            return f"{n_bytes / factor:.1f} {unit}"
    return f"{n_bytes:.0f} B"


def format_seconds(seconds: float) -> str:
    """'40 s', '3 min', '2 h 05 min'."""
    if seconds < 600:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"


def printable(text: str, *, one_line: bool = False) -> str:
    """The text with control characters and those that change the direction of writing escaped:
    names from files may hold any."""
    if text.isprintable():
        return text
    kept = "" if one_line else "\n"
    return "".join(c if _is_visible(c) or c in kept else repr(c)[1:-1] for c in text)


def _is_visible(c: str) -> bool:
    return c.isprintable() or unicodedata.category(c) == "Zs"  # blanks of other widths


def csv_line(*cells: str | int) -> str:
    """A line of CSV that spreadsheet programs show as it is.

    A text that begins like a formula, or with ', gets a ' before it (OWASP, "CSV injection"), so
    that a program which removes one ' at the beginning has the text itself. Control characters are
    escaped as in `printable`.
    """
    return f"{','.join(map(_csv_cell, map(str, cells)))}\n"


def _csv_cell(text: str) -> str:
    # Bytes of file names that are not UTF-8 are written as they are.
    text = "".join(c if "\udc80" <= c <= "\udcff" else printable(c, one_line=True) for c in text)
    text = f"'{text}" if text.startswith(FORMULA_STARTS) else text
    # Not csv.writer: some spreadsheet programs split at semicolons, which it does not quote.
    return '"{}"'.format(text.replace('"', '""')) if set(text) & set(',;"') else text


def display_name(name: str, most: int = 200) -> str:
    """A name for a message: odd ones are quoted, long ones are shortened to so many characters."""
    text = name if name.isprintable() and name == name.strip() else repr(name)
    half = most // 2 - 1
    return text if len(text) <= most else f"{text[:half]}…{text[-half:]}"


def pip_install(extra: str) -> str:
    """The command that installs what an extra of kedge needs, for the Python that is running."""
    inside = os.path.relpath(sys.executable)
    python = sys.executable if inside.startswith("..") else inside
    return f"{shlex.quote(python)} -m pip install 'kedge[{extra}]'"


def folder_name(label: str, filler: str = "_") -> str:
    """A label as the name of a folder: letters, digits and . = + - _ stay as they are."""
    return re.sub(r"[^\w.=+-]+", filler, label)


def skipped_remark(names: Sequence[str], noun: str, reason: str) -> tuple[str, ...]:
    """A remark such as "2 images skipped (no class), the first is a.png"; empty without names."""
    plural = f"{noun}{'es' if noun.endswith('s') else 's'}"
    skipped = f"{pluralize(len(names), noun, plural)} skipped ({reason})"
    return (f"{skipped}{first_example(names)}",) if names else ()


def first_example(names: Sequence[str]) -> str:
    """The end of a remark that names its first example: ': a.png' or ', the first is a.png'."""
    return f"{':' if len(names) == 1 else ', the first is'} {display_name(names[0])}"


def normalize_name(name: str) -> str:
    """A class name without blanks around it and with composed accents (NFC)."""
    return unicodedata.normalize("NFC", name).strip() or name
