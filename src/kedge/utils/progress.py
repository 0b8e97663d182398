"""Progress bars on standard error, or lines if it is no terminal; shown only within `display`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from rich import progress as bars
from rich.console import Console
from rich.markup import escape

LINE_EVERY = 30  # seconds
LOGGER = logging.getLogger("kedge")
Tick = Callable[[int], None]  # called with the number of items that were just done
_display: ContextVar[bars.Progress | None] = ContextVar("kedge_progress", default=None)
_noted: ContextVar[set[str] | None] = ContextVar("kedge_noted", default=None)
_prefix: ContextVar[str] = ContextVar("kedge_prefix", default="")  # of every line
_show_status: ContextVar[Callable[[str], object] | None] = ContextVar("kedge_status", default=None)


@contextmanager
def display() -> Iterator[None]:
    """Show tasks and notes of the body on standard error."""
    from kedge.utils.distributed import rank  # imported here since PyTorch is slow to load

    if _display.get() is not None or rank() != 0:
        yield
        return
    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(28),
        bars.MofNCompleteColumn(),
        bars.TimeElapsedColumn(),
        bars.TextColumn("left"),
        bars.TimeRemainingColumn(),
        bars.TextColumn("{task.fields[status]}", markup=False),
    )
    console = Console(stderr=True)
    disable = not console.is_terminal  # without a terminal, bars would leave empty lines
    with bars.Progress(*columns, console=console, transient=True, disable=disable) as progress:
        token, noted = _display.set(progress), _noted.set(set())
        try:
            yield
        finally:
            _display.reset(token)
            _noted.reset(noted)


@contextmanager
def line_prefix(text: str) -> Iterator[None]:
    """Begin every line and bar of the body with this text."""
    token = _prefix.set(printable(f"{text}: ", one_line=True))
    try:
        yield
    finally:
        _prefix.reset(token)


def no_tick(n: int) -> None:
    """A tick that does nothing."""


@contextmanager
def task(description: str, total: int) -> Iterator[Tick]:
    """A progress bar for the body, which advances it with the tick that it is given."""
    progress = _display.get()
    if progress is None:
        yield no_tick
    elif progress.disable:
        lines = _LineTick(description, total)
        with _status_shown_by(lines.set_status):
            yield lines
    else:
        name = f"{escape(_prefix.get())}{description}"
        bar = progress.add_task(name, total=total, status="")
        try:
            with _status_shown_by(lambda text: progress.update(bar, status=text)):
                yield lambda n: progress.advance(bar, n)
        finally:
            progress.remove_task(bar)


def status(text: str) -> None:
    """Show a text, such as the loss, beside the bar of the innermost task."""
    if (show := _show_status.get()) is not None:
        show(printable(text, one_line=True))


@contextmanager
def _status_shown_by(show: Callable[[str], object]) -> Iterator[None]:
    token = _show_status.set(show)
    try:
        yield
    finally:
        _show_status.reset(token)


class _LineTick:
    """A tick that prints a line every half minute, for logs."""

    def __init__(self, description: str, total: int) -> None:
        self.description, self.total, self.status = description, total, ""
        self.last, self.done = time.monotonic(), 0
        self.first: tuple[float, int] | None = None  # when, and how many items were done

    def set_status(self, text: str) -> None:
        self.status = text

    def __call__(self, n: int) -> None:
        self.done += n
        now = time.monotonic()
        # Speed is that after the first tick: before it something may have been prepared, or items
        # of a stopped run may count as done.
        since, before = self.first = self.first or (now, self.done)
        if now - self.last >= LINE_EVERY:
            self.last = now
            line = f"{self.description}: {self.done} of {self.total}"
            if self.done > before:
                left = (now - since) / (self.done - before) * (self.total - self.done)
                line += f", about {left:.0f} s left"
            note(line + (f"; {self.status}" if self.status else ""))


def note(text: str) -> None:
    """Print a line, or log it to the logger "kedge" (INFO) if there is no display."""
    progress, line = _display.get(), printable(f"{_prefix.get()}{text}")
    if progress is None:
        LOGGER.info(line)
    else:
        progress.console.print(line, markup=False, highlight=False, soft_wrap=True)


def note_once(text: str) -> None:
    """A note that is not repeated within a display, as when a command reads images twice."""
    if is_new(text):
        note(text)


def is_new(text: str) -> bool:
    """Whether this is asked for the first time within a display; always true without one."""
    noted, line = _noted.get(), f"{_prefix.get()}{text}"
    if noted is None:
        return True
    new = line not in noted
    noted.add(line)
    return new


def printable(text: str, *, one_line: bool = False) -> str:
    """The text with control characters escaped: names from files may hold any."""
    kept = "" if one_line else "\n"
    return "".join(c if c.isprintable() or c in kept else repr(c)[1:-1] for c in text)
