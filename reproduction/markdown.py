"""Numbers and tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

MARK = "<!-- Written by 'python -m reproduction' from the records; do not edit. -->"
RECORDS_LINK = "../reproduction/records"  # from docs/


def signed(value: float, digits: int = 1) -> str:
    """'+1.2', '−0.3', '0.0'."""
    text = f"{value:+.{digits}f}"
    return text.lstrip("+-") if float(text) == 0 else text.replace("-", "−")


def grid(head: Sequence[str], rows: Iterable[Sequence[str]], align: str) -> str:
    """A Markdown table; `align` has 'l' or 'r' for each column."""
    rules = [":---" if side == "l" else "---:" for side in align]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rules, *rows))
