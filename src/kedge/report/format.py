"""How numbers and lists are written, the same in every rendering."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kedge.evaluation.results import Score
from kedge.experiments.records import PoolInfo
from kedge.utils.text import format_bytes, format_seconds, printable

NONE = "–"  # shown where the record has no value


def number(value: float, *, signed: bool = False, digits: int = 1) -> str:
    """A number with a true minus sign; a value that rounds to zero has no sign."""
    if not math.isfinite(value):
        return NONE
    text = f"{value:{'+' if signed else ''}.{digits}f}"
    return text.lstrip("+-") if float(text) == 0 else text.replace("-", "−")


def margin(score: Score, *, digits: int = 1) -> str:
    """Half-width of the interval; "?" for a single episode, which has none."""
    return number(score.ci, digits=digits) if math.isfinite(score.ci) else "?"


def signed(score: Score) -> tuple[str, str]:
    """A difference and its margin, with enough decimals to show which of the two is larger.

    '+0.2 ± 0.2' leaves open whether the interval includes zero; '+0.24 ± 0.17' does not.
    """
    digits = next((d for d in (1, 2, 3) if _rounds_clearly(score, d)), 1)
    return number(score.mean, signed=True, digits=digits), margin(score, digits=digits)


def _rounds_clearly(score: Score, digits: int) -> bool:
    if not (math.isfinite(score.mean) and math.isfinite(score.ci)):
        return True
    rounded = round(abs(score.mean), digits) > round(score.ci, digits)
    return rounded == (abs(score.mean) > score.ci)


def shortened(text: str, max_length: int = 32) -> str:
    """A label cut to a length that fits in a figure, without control characters."""
    text = printable(text, one_line=True)
    return text if len(text) <= max_length else f"{text[: max_length - 1].rstrip()}…"


def duration(seconds: float) -> str:
    return format_seconds(seconds) if math.isfinite(seconds) and seconds > 0 else NONE


def byte_size(n_bytes: float) -> str:
    return format_bytes(n_bytes) if math.isfinite(n_bytes) and n_bytes > 0 else NONE


def listing(items: Sequence[str]) -> str:
    """'a', 'a and b', 'a, b and c'."""
    *head, last = items
    return f"{', '.join(head)} and {last}" if head else last


def counted(n: int, plural: str) -> str:
    """'2,000 episodes', '1 episode', '1 class'."""
    if n != 1:
        return f"{n:,} {plural}"
    return f"1 {plural.removesuffix('es' if plural.endswith('sses') else 's')}"


def pool_phrase(pool: PoolInfo) -> str:
    """A pool within a sentence: 'unseen classes of the old domain'."""
    kind, _, part = pool.label.partition(", ")
    if not part:
        return f"{kind} classes"
    if part == "both":
        return f"{kind} classes of both domains"
    return f"{kind} classes {f'of the {part}' if part.endswith('domain') else f'({part})'}"
