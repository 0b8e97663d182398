"""Progress with the time left, for whoever is watching; silent when nobody is.

The library reports; only the commands (or a caller who asks) open a display. Where there is no
terminal, finished lines are printed and bars are not.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.progress import TimeRemainingColumn as TimeLeftColumn

LINE_EVERY = 30  # seconds
LOGGER = logging.getLogger("kedge")
Tick = Callable[[int], None]  # told how much has just been done
_shown: ContextVar[Progress | None] = ContextVar("kedge_progress", default=None)
_remarked: ContextVar[set[str] | None] = ContextVar("kedge_remarked", default=None)
_part: ContextVar[str] = ContextVar("kedge_part", default="")  # what every line begins with


@contextmanager
def display() -> Iterator[None]:
    """Show every task of the body on standard error, so that standard output stays clean."""
    from kedge.utils.distributed import rank  # here, since PyTorch is slow to load

    if _shown.get() is not None or rank() != 0:  # already on the screen, or another shows it
        yield
        return
    columns = (
        TextColumn("[progress.description]{task.description}"),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeLeftColumn(),
    )
    console = Console(stderr=True)
    # Without a terminal a bar would leave but an empty line.
    bars = console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=not bars) as progress:
        token, remarked = _shown.set(progress), _remarked.set(set())
        try:
            yield
        finally:
            _shown.reset(token)
            _remarked.reset(remarked)


@contextmanager
def part(words: str) -> Iterator[None]:
    """Begin every line and bar of the body with these words: what it does is done several times."""
    token = _part.set(printable(f"{words}: ", one_line=True))
    try:
        yield
    finally:
        _part.reset(token)


def silent(n: int) -> None:
    """A tick that nobody hears."""


@contextmanager
def task(description: str, total: int) -> Iterator[Tick]:
    """A bar for the body, which advances it by calling what it is given."""
    progress = _shown.get()
    if progress is None:
        yield silent
    elif progress.disable:
        yield _lines(description, total)
    else:
        bar = progress.add_task(f"{escape(_part.get())}{description}", total=total)
        try:
            yield lambda n: progress.advance(bar, n)
        finally:
            progress.remove_task(bar)


def _lines(description: str, total: int) -> Tick:
    """Where there is no terminal: a line every half minute, as a log wants it."""
    began = last = time.monotonic()
    done = 0

    def tick(n: int) -> None:
        nonlocal last, done
        done += n
        now = time.monotonic()
        if now - last >= LINE_EVERY:
            last = now
            left = (now - began) / done * (total - done)
            note(f"{description}: {done} of {total}, about {left:.0f} s left")

    return tick


def note(text: str) -> None:
    """A line that stays: something was finished, or noticed. From Python, where nothing is shown,
    it goes to the logger "kedge", at the level INFO."""
    progress, line = _shown.get(), printable(f"{_part.get()}{text}")
    if progress is None:
        LOGGER.info(line)
    else:
        progress.console.print(line, markup=False, highlight=False, soft_wrap=True)


def remark(text: str) -> None:
    """A note on images. A command may read the same ones several times, but says it once."""
    said, line = _remarked.get(), f"{_part.get()}{text}"
    if said is None or line not in said:
        note(text)
    if said is not None:
        said.add(line)


def printable(text: str, *, one_line: bool = False) -> str:
    """Without what would command the terminal: names may hold anything."""
    kept = "" if one_line else "\n"
    return "".join(c if c.isprintable() or c in kept else repr(c)[1:-1] for c in text)
