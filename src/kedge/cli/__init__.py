"""The command line: which command is meant, its help, and how errors are told.

Only this folder knows tyro.
"""

from __future__ import annotations

import ctypes
import inspect
import os
import re
import shutil
import sys
import textwrap
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Union

import tyro
from rich.console import Console
from tyro.conf import OmitArgPrefixes, subcommand

from kedge import __version__
from kedge.cli.commands import COMMANDS
from kedge.errors import KedgeError
from kedge.progress import printable

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # names of glibc's malloc.h


def main() -> None:
    """Entry point: errors for the user are one sentence, a traceback means a bug."""
    # Threads that wait for each other shall go to sleep soon. By default they spin, and where
    # another program wants a core a training step takes 20 times as long. See LOG.md.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # read when torch is loaded
    _keep_memory()
    try:
        _parse(sys.argv[1:]).run(Console())
    except KedgeError as error:
        sys.exit(f"kedge: {printable(str(error), one_line=True)}")
    except KeyboardInterrupt:
        goes_on = sys.argv[1:2] in (["bench"], ["train"], ["update"]) or sys.argv[2:3] == ["pack"]
        said = "stopped; the same command continues from here" if goes_on else "stopped"
        print(f"kedge: {said}.", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # whoever read our output has enough of it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


def _keep_memory() -> None:
    """Let glibc keep large blocks that are freed, for the next step needs them again.

    By default each goes back to the system and comes again as empty pages: on 2 cores that took
    half of a training step and two thirds of evaluation. See LOG.md.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, 1 << 30)):
            mallopt(parameter, value)


def _parse(args: list[str]) -> Any:
    """A command's own help is long; in the list of commands each has its first line."""
    if args == ["--version"]:
        print(f"kedge {__version__}")
        sys.exit()
    words = 2 if " ".join(args[:2]) in COMMANDS else 1
    if (name := " ".join(args[:words])) in COMMANDS:
        kind: Any = COMMANDS[name]
        del args[:words]
        prog, about = f"kedge {name}", _filled(kind)
        if hasattr(kind, "default"):
            read = partial(
                tyro.cli, kind, prog=prog, description=about, args=args, config=(OmitArgPrefixes,)
            )
            start = kind.default(args)
            parsed = read(default=start)
            # A name that stands behind options is only known now: start again from what it says.
            again = parsed.name != start.name
            return read(default=kind.default([parsed.name])) if again else parsed
    else:
        group = f"{name} " if any(known.startswith(f"{name} ") for known in COMMANDS) else ""
        del args[: bool(group)]
        lines = {
            known.removeprefix(group): (kind, (kind.__doc__ or "").split("\n")[0])
            for known, kind in COMMANDS.items()
            if known.startswith(group)
        }
        kind = Union[  # noqa: UP007
            tuple(
                Annotated[kind, subcommand(known, description=line)]
                for known, (kind, line) in lines.items()
            )
        ]
        prog = f"kedge {group}".rstrip()
        about = "Few-shot image classifiers that keep getting better."
    return tyro.cli(kind, prog=prog, description=about, args=args, config=(OmitArgPrefixes,))


def _filled(kind: type) -> str:
    """A command's help in lines that fit; the indent keeps tyro from joining them again."""
    width = min(80, shutil.get_terminal_size().columns)
    lines: list[str] = []
    for paragraph in inspect.cleandoc(kind.__doc__ or "").split("\n\n"):
        for item in re.split(r"\n(?=- )", paragraph):
            hang = "   " if item.startswith("- ") else " "
            lines += textwrap.wrap(
                " ".join(item.split()), width, initial_indent=" ", subsequent_indent=hang
            )
        lines.append("")
    return "\n".join(lines)
