"""Progress and notes: bars in a terminal or notebook, lines elsewhere; shown within `display`.

Functions that users call from Python are decorated with `shown`: what they show can be turned off,
and what can spoil a model becomes a Python warning (`KedgeWarning`).
"""

from __future__ import annotations

import functools
import logging
import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import FrameType
from typing import Literal, ParamSpec, TypeVar, get_args

from rich import progress as bars
from rich.console import Console, RenderableType
from rich.markup import escape

from kedge.errors import KedgeWarning, require
from kedge.utils.text import format_seconds
from kedge.utils.text import printable as printable

P = ParamSpec("P")
T = TypeVar("T")
LINE_EVERY = 30  # seconds
LOGGER = logging.getLogger("kedge")
Verbosity = Literal["info", "warning"]
VERBOSITY_VARIABLE = "KEDGE_VERBOSITY"
Tick = Callable[[int], None]  # called with the number of items that were just done
Observer = Callable[[str, int, int], object]  # called with a task, items done, and their total


@dataclass(frozen=True)
class _Display:
    """Where tasks and notes are shown."""

    progress: bars.Progress | None  # None: nowhere; notes are logged
    python: bool = False  # within a function that was called from Python, not a command
    noted: set[str] = field(default_factory=set)


_display: ContextVar[_Display | None] = ContextVar("kedge_display", default=None)
_prefix: ContextVar[str] = ContextVar("kedge_prefix", default="")  # of every line
_show_status: ContextVar[Callable[[str], object] | None] = ContextVar("kedge_status", default=None)
_observer: ContextVar[Observer | None] = ContextVar("kedge_observer", default=None)
_verbosity: Verbosity | None = None  # None: as the environment says


def set_verbosity(level: Verbosity) -> None:
    """Choose what functions show when they are called from Python.

    Args:
        level: "info", progress, choices and remarks (the default); or "warning", nothing but
            warnings of the category `KedgeWarning`. The environment variable KEDGE_VERBOSITY
            chooses for programs that do not call this.

    Notes that are not shown are logged to the logger "kedge" with the level INFO.
    """
    global _verbosity
    _check_verbosity("level", level)
    _verbosity = level


def _check_verbosity(name: str, level: str) -> None:
    levels = " or ".join(get_args(Verbosity))
    require(level in get_args(Verbosity), f"{name} is '{level}': it must be {levels}.")


def _is_quiet() -> bool:
    if _verbosity is not None:
        return _verbosity == "warning"
    level = os.environ.get(VERBOSITY_VARIABLE) or "info"
    _check_verbosity(VERBOSITY_VARIABLE, level)
    # Several processes, such as those of scikit-learn's n_jobs, would write over each other.
    return level == "warning" or multiprocessing.parent_process() is not None


@contextmanager
def display(*, python: bool = False, hidden: bool = False) -> Iterator[None]:
    """Show tasks and notes of the body on standard error, or in the notebook that runs it.

    Within another display this does nothing.

    Args:
        python: for functions that users call from Python.
        hidden: show nothing after all.
    """
    if _display.get() is not None:
        yield
        return
    from kedge.utils.distributed import is_first_rank  # imported here since PyTorch is slow to load

    hidden = hidden or not is_first_rank() or (python and _is_quiet())
    progress = None if hidden else _progress(python)
    token = _display.set(_Display(progress, python))
    try:
        yield
    finally:
        _display.reset(token)
        if progress is not None:
            progress.stop()


def _progress(python: bool) -> bars.Progress:
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
    if python and console.is_jupyter:
        from kedge.utils.notebook import NotebookProgress

        return NotebookProgress(*columns)
    disable = not console.is_terminal  # without a terminal, bars would leave empty lines
    return bars.Progress(*columns, console=console, transient=True, disable=disable)


def shown(function: Callable[P, T]) -> Callable[P, T]:
    """A function that users call from Python, with its tasks and notes shown."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        with display(python=True):
            return function(*args, **kwargs)

    return call


@contextmanager
def loading(text: str, line: bool = False) -> Iterator[None]:
    """Show a text while something is loaded that takes seconds: on a terminal until it is loaded,
    elsewhere as a line if `line`."""
    console, shown = Console(stderr=True), printable(text, one_line=True)
    if line and not console.is_terminal:
        console.print(shown, markup=False, highlight=False, soft_wrap=True)
    with console.status(escape(shown)) if console.is_terminal else nullcontext():
        yield


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
def observed_by(observer: Observer) -> Iterator[None]:
    """Also tell a function how far the tasks of the body are, as for the page of a service."""
    token = _observer.set(observer)
    try:
        yield
    finally:
        _observer.reset(token)


@contextmanager
def task(description: str, total: int) -> Iterator[Tick]:
    """A progress bar for the body, which advances it with the tick that it is given; none for a
    single item, such as an image to classify."""
    with _shown_task(description, total) as tick:
        if (observer := _observer.get()) is None:
            yield tick
            return
        done = 0

        def tell(n: int) -> None:
            nonlocal done
            tick(n)
            done += n
            observer(description, done, total)

        observer(description, 0, total)
        yield tell


@contextmanager
def _shown_task(description: str, total: int) -> Iterator[Tick]:
    progress = _shown_by()
    if progress is None or total < 2:
        yield no_tick
    elif progress.disable:
        lines = _LineTick(description, total)
        with _status_shown_by(lines.set_status):
            yield lines
    else:
        progress.start()
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
                line += f", about {format_seconds(left)} left"
            note(line + (f"; {self.status}" if self.status else ""))


def note(text: str) -> None:
    """Print a line, or log it to the logger "kedge" (INFO) if there is no display."""
    progress, line = _shown_by(), printable(f"{_prefix.get()}{text}")
    if progress is None:
        LOGGER.info(line)
    else:
        progress.console.print(line, markup=False, highlight=False, soft_wrap=True)
        progress.refresh()


def show(renderable: RenderableType) -> None:
    """Print a table of rich's, if there is a display."""
    if (progress := _shown_by()) is not None:
        progress.console.print(renderable)
        progress.refresh()


def _shown_by() -> bars.Progress | None:
    shown = _display.get()
    return None if shown is None else shown.progress


def note_once(text: str) -> None:
    """A note that is not repeated within a display, as when a command reads images twice."""
    if is_new(text):
        note(text)


def is_new(text: str) -> bool:
    """Whether this is asked for the first time within a display; always true without one."""
    shown, line = _display.get(), f"{_prefix.get()}{text}"
    if shown is None:
        return True
    new = line not in shown.noted
    shown.noted.add(line)
    return new


def in_command() -> bool:
    """Whether a command runs the caller, so that no Python warning may be seen."""
    shown = _display.get()
    return shown is not None and not shown.python


def warn(text: str) -> None:
    """A `KedgeWarning` that points at the line which called kedge."""
    from kedge.utils.distributed import is_first_rank

    if not is_first_rank():
        return
    frame: FrameType | None = sys._getframe()
    depth = outermost = 0
    while frame is not None:
        depth += 1
        if frame.f_globals.get("__name__", "").partition(".")[0] == "kedge":
            outermost = depth
        frame = frame.f_back
    warnings.warn(printable(text), KedgeWarning, stacklevel=outermost + 1)
