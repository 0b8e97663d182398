"""The numbers that a field may have, as part of its type: `Annotated[int, Range(1, 10)]`."""

from __future__ import annotations

import typing
from dataclasses import dataclass
from typing import Annotated, Any


@dataclass(frozen=True)
class Range:
    """The numbers from `least` to `most`, without these themselves if `ends` has no bracket."""

    least: float
    most: float
    ends: str = "[]"  # as in mathematics: "(]" leaves out `least`

    def __contains__(self, value: float) -> bool:
        # NaN is in no range, and Python compares a long integer with a float exactly.
        above = self.least <= value if self.ends[0] == "[" else self.least < value
        return above and (value <= self.most if self.ends[1] == "]" else value < self.most)

    def __str__(self) -> str:
        """' from 1 to 10', ' above 0 and at most 1'; for people."""
        if self in (WHOLE, FINITE):
            return ""
        ends = (self.least, self.most)
        least, most = (f"{end:,}" if 1e-3 <= abs(end) < 1e9 else f"{end:g}" for end in ends)
        if self.ends == "[]":
            return f" from {least} to {most}"
        above = f"of at least {least}" if self.ends[0] == "[" else f"above {least}"
        return f" {above} and {'at most' if self.ends[1] == ']' else 'below'} {most}"


WHOLE = Range(-(2**63), 2**63 - 1)  # int64
FINITE = Range(-1e38, 1e38)  # about float32; squares and sums stay finite in float64

Round = Annotated[int, Range(0, 10**6)]
Total = Annotated[int, Range(0, 10**12)]  # of images, classes or episodes
Percent = Annotated[float, Range(0, 100)]
Amount = Annotated[float, Range(0, 1e18)]  # seconds, bytes


def number_type(hint: Any) -> tuple[type, Range | None]:
    """int or float with the range of its annotation, or the default one; no range if the hint is
    another type."""
    if typing.get_origin(hint) is Annotated:
        kind, *notes = typing.get_args(hint)
        ranges = [note for note in notes if isinstance(note, Range)]
        default = number_type(kind)[1]
        return kind, (ranges[0] if ranges and default is not None else default)
    return hint, {int: WHOLE, float: FINITE}.get(hint)
