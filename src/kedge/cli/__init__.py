"""The command line: which command is meant, its help, and how errors are told.

Only this folder knows tyro. It is imported where it is used: until `main` runs, nothing catches
Ctrl-C.
"""

from __future__ import annotations

import errno
import inspect
import os
import re
import shutil
import signal
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from typing import Annotated, Any, NoReturn, Union

from kedge import __version__
from kedge.errors import KedgeError
from kedge.utils.process import escape_unencodable, keep_freed_memory

FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)  # a disk, or what one may have of it
SHARED = ("bench", "train", "update")  # commands that several processes can do together


def main() -> None:
    """Entry point: errors for the user are one sentence, a traceback means a bug."""
    # Threads that wait for each other shall go to sleep soon. By default they spin, and where
    # another program wants a core a training step takes 20 times as long. See LOG.md.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # read when torch is loaded
    keep_freed_memory()
    # A polite kill ends as Ctrl-C does: what is temporary is removed, and work can go on.
    signal.signal(signal.SIGTERM, _stop)
    escape_unencodable()
    try:
        with _one_voice():
            from rich.console import Console

            _parse(sys.argv[1:]).run(Console())
            sys.stdout.flush()
    except KedgeError as error:
        from kedge.utils.progress import printable

        _end(printable(str(error), one_line=True), 1)
    except KeyboardInterrupt:
        goes_on = " ".join(sys.argv[1:2]) in SHARED or sys.argv[2:3] == ["pack"]
        _end("stopped; the same command continues from here." if goes_on else "stopped.", 130)
    except BrokenPipeError:  # whoever read our output has enough of it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        # Files of our own say so themselves, and what cannot be opened has a name.
        if isinstance(error, OSError) and error.errno in FULL and error.filename is None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is left
            _end(f"standard output could not be written ({error.strerror}): it is not whole.", 1)
        _only_the_first(1)
        raise


@contextmanager
def _one_voice() -> Iterator[None]:
    """Of several processes that were started as one, only the first shows anything."""
    if "WORLD_SIZE" not in os.environ:  # asked before the engine is, which is slow to load
        yield
        return
    from kedge.utils import distributed

    distributed.init()
    command = " ".join(sys.argv[1:2])
    if distributed.world_size() > 1 and command not in SHARED:
        raise KedgeError(f"'kedge {command}' needs one process only: start it without torchrun.")
    if distributed.rank() == 0:
        yield
        return
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield


def _end(sentence: str, code: int) -> NoReturn:
    _only_the_first(code)
    print(f"kedge: {sentence}", file=sys.stderr, flush=True)
    if "WORLD_SIZE" in os.environ:
        sys.stdout.flush()
        os._exit(code)  # the engine would wait for processes that do not end
    sys.exit(code)


def _only_the_first(code: int) -> None:
    """Of several processes that give up, the others end here, in silence."""
    if "WORLD_SIZE" in os.environ:
        from kedge.utils import distributed

        if not distributed.is_first_to_fail():
            os._exit(code)


def _stop(*_: object) -> NoReturn:
    """Not by SIGINT, which a shell lets its background jobs ignore."""
    raise KeyboardInterrupt


def _parse(args: list[str]) -> Any:
    """A command's own help is long; in the list of commands each has its first line."""
    if args == ["--version"]:
        print(f"kedge {__version__}")
        sys.exit()
    _check_empty(args)
    import tyro
    from tyro.conf import OmitArgPrefixes, subcommand

    from kedge.cli.commands import COMMANDS

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
        if not group:
            about = f" {about}\n 'kedge --version' says which version this is."
    return tyro.cli(kind, prog=prog, description=about, args=args, config=(OmitArgPrefixes,))


def _check_empty(args: list[str]) -> None:
    """Of a variable that is not set; as a path it would be the folder that one is in."""
    for before, word in zip(["", *args], args, strict=False):
        name, equals, value = word.partition("=")
        option = name if equals else before
        if value or (name and not (equals and name.startswith("--"))):
            continue
        behind = f" behind {option}" if option.startswith("--") else ""
        raise KedgeError(
            f"There is an empty word{behind}: if it comes from a variable, that is not set."
        )


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
