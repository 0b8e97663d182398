"""A table as plain data: what stands where, what is marked, and which rows are set apart.

The terminal, Markdown, LaTeX and the page all draw this one description, so a number cannot
differ between them. Nothing here knows how a table will look.
"""

from __future__ import annotations

from dataclasses import dataclass

AHEAD, BEHIND = "▲", "▼"
WIDE = 6  # columns with intervals, of which fewer fit into a terminal or a page as they are


@dataclass(frozen=True)
class Cell:
    value: str  # "79.7", "+3.4", "256 B"
    margin: str = ""  # "0.4": half of the 95% interval
    strong: bool = False  # best of its column, or not to be told apart from the best
    muted: bool = False
    mark: str = ""  # a difference whose interval is clear of zero
    note: str = ""  # "†‡": which footnotes belong to it

    @property
    def text(self) -> str:
        return f"{self.value} ± {self.margin}" if self.margin else self.value


@dataclass(frozen=True)
class Row:
    label: str
    cells: tuple[Cell, ...]
    muted: bool = False  # a reference that does not compete


@dataclass(frozen=True)
class Section:
    """Rows between two rules."""

    rows: tuple[Row, ...]
    title: str = ""


@dataclass(frozen=True)
class Column:
    label: str
    group: str = ""  # neighbours with the same group share a heading above theirs
    note: str = ""  # "64 classes"

    @property
    def heading(self) -> str:
        """For renderings that have one line of headings only."""
        if not self.group:
            return self.label
        return f"{self.group}{' ' if self.group.endswith(' of') else ', '}{self.label}"


@dataclass(frozen=True)
class Table:
    key: str  # for links and labels: "accuracy", "differences", …
    title: str
    stub: str  # heading of the column of labels
    columns: tuple[Column, ...]
    sections: tuple[Section, ...]
    caption: str
    notes: tuple[tuple[str, str], ...] = ()  # footnotes: mark and sentence

    @property
    def wide(self) -> bool:
        return len(self.columns) >= WIDE or bool(self.notes)

    @property
    def marked(self) -> bool:
        return any(cell.mark for section in self.sections for r in section.rows for cell in r.cells)

    def groups(self) -> tuple[tuple[str, int], ...]:
        """Headings above the headings with the number of columns each spans; empty if none."""
        spans: list[tuple[str, int]] = []
        for column in self.columns:
            if spans and column.group and spans[-1][0] == column.group:
                spans[-1] = (column.group, spans[-1][1] + 1)
            else:
                spans.append((column.group, 1))
        return tuple(spans) if any(name for name, _ in spans) else ()
