"""How numbers are written. In one place, so that all renderings agree to the last character."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kedge.evaluation.results import Score
from kedge.experiments.records import PoolInfo
from kedge.utils.text import sized

NONE = "–"  # a question to which the record has no answer


def number(value: float, *, signed: bool = False, digits: int = 1) -> str:
    """One decimal, with a true minus; what rounds to zero carries no sign."""
    if not math.isfinite(value):
        return NONE
    text = f"{value:{'+' if signed else ''}.{digits}f}"
    return text.lstrip("+-") if float(text) == 0 else text.replace("-", "−")


def margin(score: Score, *, digits: int = 1) -> str:
    """Half of the interval; one episode alone has none."""
    return number(score.ci, digits=digits) if math.isfinite(score.ci) else "?"


def signed(score: Score) -> tuple[str, str]:
    """A difference and its margin, with as many decimals as it takes to see which is larger.

    '+0.2 ± 0.2' could be either; '+0.24 ± 0.17' is clear of zero and looks it.
    """
    digits = next((d for d in (1, 2, 3) if _looks_right(score, d)), 1)
    return number(score.mean, signed=True, digits=digits), margin(score, digits=digits)


def _looks_right(score: Score, digits: int) -> bool:
    if not (math.isfinite(score.mean) and math.isfinite(score.ci)):
        return True
    shown = round(abs(score.mean), digits) > round(score.ci, digits)
    return shown == (abs(score.mean) > score.ci)


def shortened(text: str, most: int = 26) -> str:
    """For figures, where a long label would push the drawing aside."""
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


def duration(seconds: float) -> str:
    if not math.isfinite(seconds) or seconds <= 0:
        return NONE
    if seconds < 600:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"


def size(bytes: float) -> str:
    return sized(bytes) if math.isfinite(bytes) and bytes > 0 else NONE


def listing(parts: Sequence[str]) -> str:
    """'a', 'a and b', 'a, b and c'."""
    *head, last = parts
    return f"{', '.join(head)} and {last}" if head else last


def counted(n: int, noun: str) -> str:
    """'2,000 episodes', '1 episode', '1 class'."""
    if n != 1:
        return f"{n:,} {noun}"
    return f"1 {noun.removesuffix('es') if noun.endswith('sses') else noun.removesuffix('s')}"


def place(pool: PoolInfo) -> str:
    """A pool within a sentence, where the comma of its label would read as part of a list."""
    head, _, tail = pool.label.partition(", ")
    return f"{head} classes {_part(tail)}" if tail else f"{head} classes"


def _part(tail: str) -> str:
    if tail == "both":
        return "of both domains"
    return f"of the {tail}" if tail.endswith("domain") else f"({tail})"
