"""A table as terminal output, Markdown or LaTeX. Labels are free text and are escaped."""

from __future__ import annotations

import re

from rich.box import Box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from kedge.report.table import AHEAD, BEHIND, Cell, Table
from kedge.utils.text import printable

RULES = Box("    \n    \n ── \n    \n ╌╌ \n    \n    \n    \n")  # below the head, between sections
LATEX_HEADER = "% Needs \\usepackage{booktabs,amssymb}\n"
LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#",
    "%": r"\%", "_": r"\_", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': "''",
    "±": r"$\pm$", "−": r"$-$", "–": "--", "·": r"$\cdot$", "×": r"$\times$", "λ": r"$\lambda$",
    "→": r"$\rightarrow$", "…": r"\ldots{}", "’": "'", "√": r"$\surd$",
    "†": r"\textdagger{}", "‡": r"\textdaggerdbl{}", "§": r"\S{}", "¶": r"\P{}", "‖": r"$\|$",
    AHEAD: r"$\blacktriangle$", BEHIND: r"$\blacktriangledown$",
}  # fmt: skip


def slug(text: str) -> str:
    """Letters, digits and hyphens only, for labels and links."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


# ── terminal ─────────────────────────────────────────────────────────────────────────────────


def to_rich(table: Table) -> RenderableType:
    """For a rich console. Bold cells also carry a star, because a pipe loses bold type."""
    starred = any(cell.strong for cell in table.cells)
    grid = RichTable(box=RULES, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    grid.add_column(_text(table.stub), overflow="fold")
    for column in table.columns:
        lines = [column.group, column.label] if table.groups() else [column.label]
        heading = _text("\n".join([*lines, column.note] if column.note else lines))
        # In a narrow terminal, the margin of a wide table goes below its mean.
        grid.add_column(heading, justify="right", no_wrap=not table.wide)
    for section in table.sections:
        if section.title:
            grid.add_row(_text(section.title, style="bold"))
        for row in section.rows:
            label = _text(("  " if section.title else "") + row.label)
            cells = [_rich_cell(cell, table, starred) for cell in row.cells]
            grid.add_row(label, *cells, style="dim" if row.muted else "")
        grid.add_section()
    lines = [table.caption + " (Bold cells also carry a *.)" * starred]
    lines += [f"{mark} {sentence}" for mark, sentence in table.notes]
    caption = Padding(_text("\n".join(lines), style="dim"), (1, 0, 1, 0))
    return Group(_text(table.title, style="bold"), Text(), grid, caption)


def _rich_cell(cell: Cell, table: Table, starred: bool) -> Text:
    style = "bold" if cell.strong else "dim" if cell.muted else ""
    tail = (cell.mark or " ") if table.marked else ("*" if cell.strong else " ") if starred else ""
    text = cell.text.replace("± ", "±") if table.wide else cell.text
    return _text(text + cell.note + tail, style=style)


def _text(text: str, style: str = "") -> Text:
    return Text(printable(text), style=style)


# ── Markdown ─────────────────────────────────────────────────────────────────────────────────


def to_markdown(table: Table) -> str:
    """A GitHub table with its title above and its caption below."""
    below = [table.caption, *(f"{mark} {sentence}" for mark, sentence in table.notes)]
    paragraphs = [f"## {markdown(table.title)}", markdown_grid(table), *map(markdown, below)]
    return "\n\n".join(paragraphs) + "\n"


def markdown_grid(table: Table) -> str:
    """Heading and rows alone, references in italics."""
    notes = [f" ({column.note})" if column.note else "" for column in table.columns]
    heads = [markdown(c.heading + note) for c, note in zip(table.columns, notes, strict=True)]
    lines = [[markdown(table.stub), *heads], [":---", *("---:" for _ in heads)]]
    for section in table.sections:
        if section.title:
            lines.append([f"**{markdown(section.title)}**", *("" for _ in heads)])
        for row in section.rows:
            label = f"*{markdown(row.label)}*" if row.muted else markdown(row.label)
            lines.append([label, *map(_markdown_cell, row.cells)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _markdown_cell(cell: Cell) -> str:
    text = f"**{cell.text}**" if cell.strong else cell.text
    text += markdown(cell.note)
    return f"{text} {cell.mark}" if cell.mark else text


def markdown(text: str) -> str:
    """Text escaped so that it is shown as written, and is neither HTML nor a new cell."""
    plain = printable(" ".join(text.split()))
    plain = plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|~$#])", r"\\\1", plain)


# ── LaTeX ────────────────────────────────────────────────────────────────────────────────────


def to_latex(table: Table, prefix: str) -> str:
    """A booktabs table; `prefix` makes its label unique among several reports."""
    width = len(table.columns)
    lines = [
        r"\begin{table}[tb]",
        r"\centering",
        rf"\caption{{\textbf{{{latex(table.title)}.}} {latex(table.caption)}}}",
        rf"\label{{tab:{slug(prefix)}-{slug(table.key)}}}",
        r"\smallskip",
        rf"\begin{{tabular}}{{@{{}}l{'r' * width}@{{}}}}",
        r"\toprule",
        *_latex_heads(table),
    ]
    for section in table.sections:
        lines.append(r"\midrule")
        if section.title:
            lines.append(rf"\multicolumn{{{width + 1}}}{{@{{}}l}}{{{latex(section.title)}}} \\")
        for row in section.rows:
            label = rf"\textit{{{latex(row.label)}}}" if row.muted else latex(row.label)
            indent = r"\quad " if section.title else ""
            cells = [_latex_cell(cell, table.marked) for cell in row.cells]
            lines.append(rf"{' & '.join([indent + label, *cells])} \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    for mark, sentence in table.notes:
        lines.append(rf"\par\smallskip\footnotesize {latex(mark)} {latex(sentence)}")
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def _latex_heads(table: Table) -> list[str]:
    lines, start = [], 2
    if table.groups():
        spans, rules = [], []
        for name, n in table.groups():
            spans.append(rf"\multicolumn{{{n}}}{{c}}{{{latex(name)}}}")
            rules += [rf"\cmidrule(lr){{{start}-{start + n - 1}}}"] if name else []
            start += n
        lines += [rf" & {' & '.join(spans)} \\", "".join(rules)]
    lines.append(rf"{' & '.join(map(latex, [table.stub, *(c.label for c in table.columns)]))} \\")
    if any(column.note for column in table.columns):
        notes = [rf"{{\scriptsize {latex(column.note)}}}" for column in table.columns]
        lines.append(rf" & {' & '.join(notes)} \\")
    return lines


def _latex_cell(cell: Cell, marked: bool) -> str:
    value = rf"\textbf{{{latex(cell.value)}}}" if cell.strong else latex(cell.value)
    margin = rf" {{\scriptsize$\pm$ {latex(cell.margin)}}}" if cell.margin else ""
    margin += rf"\textsuperscript{{{latex(cell.note)}}}" if cell.note else ""
    mark = rf"\,{LATEX[cell.mark]}" if cell.mark else rf"\,\phantom{{{LATEX[AHEAD]}}}"
    return value + margin + (mark if marked else "")


def latex(text: str) -> str:
    return "".join(LATEX.get(c, c) for c in printable(" ".join(text.split())))
