"""A table as data: cells, marks, sections and footnotes, without any layout.

The terminal, Markdown, LaTeX and HTML renderings all draw this description, so they cannot show
different numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

AHEAD, BEHIND = "▲", "▼"  # marks of a difference whose interval excludes zero
WIDE = 6  # columns from which on a table is set in smaller type


@dataclass(frozen=True)
class Cell:
    """One value, formatted."""

    value: str  # "79.7", "+3.4", "256 B"
    margin: str = ""  # half-width of the 95% interval: "0.4"
    strong: bool = False  # best of its column, or not clearly worse than the best
    muted: bool = False
    mark: str = ""  # AHEAD or BEHIND
    note: str = ""  # footnote marks: "†‡"

    @property
    def text(self) -> str:
        return f"{self.value} ± {self.margin}" if self.margin else self.value


@dataclass(frozen=True)
class Row:
    label: str
    cells: tuple[Cell, ...]
    muted: bool = False  # a reference method, which does not compete


@dataclass(frozen=True)
class Section:
    """Rows between two rules."""

    rows: tuple[Row, ...]
    title: str = ""


@dataclass(frozen=True)
class Column:
    label: str
    group: str = ""  # adjacent columns of one group share a heading above their own
    note: str = ""  # small print below the label: "64 classes"

    @property
    def heading(self) -> str:
        """Group and label on one line."""
        if not self.group:
            return self.label
        return f"{self.group}{' ' if self.group.endswith(' of') else ', '}{self.label}"


@dataclass(frozen=True)
class Table:
    key: str  # for links and labels: "accuracy", "differences", …
    title: str
    columns: tuple[Column, ...]
    sections: tuple[Section, ...]
    caption: str
    stub: str = "method"  # heading of the column of row labels
    notes: tuple[tuple[str, str], ...] = ()  # footnotes: mark and sentence

    @property
    def cells(self) -> list[Cell]:
        return [cell for section in self.sections for row in section.rows for cell in row.cells]

    @property
    def wide(self) -> bool:
        return len(self.columns) >= WIDE or bool(self.notes)

    @property
    def marked(self) -> bool:
        return any(cell.mark for cell in self.cells)

    def groups(self) -> tuple[tuple[str, int], ...]:
        """Group headings with the number of columns each spans; empty without groups."""
        spans: list[tuple[str, int]] = []
        for column in self.columns:
            if spans and column.group and spans[-1][0] == column.group:
                spans[-1] = (column.group, spans[-1][1] + 1)
            else:
                spans.append((column.group, 1))
        return tuple(spans) if any(name for name, _ in spans) else ()
