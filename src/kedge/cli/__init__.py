"""The command line: dispatch to a command, its help, and error reporting.

tyro is used in this folder only. It is imported inside functions: before `main` runs, nothing
handles Ctrl-C.
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
from kedge.utils.process import (
    check_folder,
    keep_freed_memory,
    limit_threads,
    prepare_streams,
    shortage,
    shorten_warnings,
)
from kedge.utils.text import printable

DISK_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
DISTRIBUTED = ("bench", "train", "update")  # commands that torchrun may start
CONTINUES = {  # where a stopped command continues when it is given again
    **dict.fromkeys(DISTRIBUTED, "the last saved epoch, if there is one"),
    "data pack": "here",
}


def main() -> None:
    """Entry point: a user's errors are one sentence, a traceback means a bug."""
    keep_freed_memory()
    signal.signal(signal.SIGTERM, _interrupt)  # clean up as after Ctrl-C
    prepare_streams()
    shorten_warnings()
    try:
        check_folder()
        limit_threads()
        with _silence_other_ranks():
            from rich.console import Console

            _parse(sys.argv[1:]).run(Console())
            sys.stdout.flush()
    except KedgeError as error:
        _end(printable(str(error), one_line=True), 1)
    except KeyboardInterrupt:
        command = " ".join(sys.argv[1 : 3 if sys.argv[1:2] == ["data"] else 2])
        where = CONTINUES.get(command)
        _end(f"stopped; the same command continues from {where}." if where else "stopped.", 130)
    except BrokenPipeError:  # the reader of our output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        # Errors of other files have a file name, or were turned into a KedgeError.
        if isinstance(error, OSError) and error.errno in DISK_FULL and error.filename is None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for buffered output
            _end(f"standard output is incomplete: it could not be written ({error.strerror}).", 1)
        if lacking := shortage(error):
            _end(lacking, 1)
        _exit_unless_first(1)
        raise


@contextmanager
def _silence_other_ranks() -> Iterator[None]:
    """Let only rank 0 print, if torchrun started several processes."""
    if "WORLD_SIZE" not in os.environ:  # do not load torch for this
        yield
        return
    from kedge.utils import distributed

    distributed.init()
    command = " ".join(sys.argv[1:2])
    if distributed.world_size() > 1 and command not in DISTRIBUTED:
        raise KedgeError(f"'kedge {command}' runs in one process: start it without torchrun.")
    if distributed.rank() == 0:
        yield
        return
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield


def _end(message: str, code: int) -> NoReturn:
    _exit_unless_first(code)
    print(f"kedge: {message}", file=sys.stderr, flush=True)
    if "WORLD_SIZE" in os.environ:
        sys.stdout.flush()
        os._exit(code)  # torch.distributed would wait for the other ranks
    sys.exit(code)


def _exit_unless_first(code: int) -> None:
    """If several ranks fail, only the first reports it; the others exit here."""
    if "WORLD_SIZE" in os.environ:
        from kedge.utils import distributed

        if not distributed.is_first_to_fail():
            os._exit(code)


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _parse(args: list[str]) -> Any:
    """The command that the arguments name, with its options; prints help and exits if asked."""
    if args == ["--version"]:
        print(f"kedge {__version__}")
        sys.exit()
    _check_empty(args)
    if args[:1] == ["help"]:
        args = [*args[1:], "--help"]
    from kedge.cli.commands import COMMANDS, unknown_command, unknown_option

    if mistake := unknown_command(args):
        _end(mistake, 2)
    import tyro
    from tyro.conf import OmitArgPrefixes, subcommand

    words = 2 if " ".join(args[:2]) in COMMANDS else 1
    if (name := " ".join(args[:words])) in COMMANDS:
        kind: Any = COMMANDS[name]
        del args[:words]
        if mistake := unknown_option(name, args):
            _end(mistake, 2)
        prog, about = f"kedge {name}", _wrapped_doc(kind)
        if hasattr(kind, "default"):
            read = partial(
                tyro.cli, kind, prog=prog, description=about, args=args, config=(OmitArgPrefixes,)
            )
            start = kind.default(args)
            parsed = read(default=start)
            # A recipe named after options is only known now: parse again with its defaults.
            changed = parsed.name != start.name
            return read(default=kind.default([parsed.name])) if changed else parsed
    else:
        group = f"{name} " if any(known.startswith(f"{name} ") for known in COMMANDS) else ""
        del args[: bool(group)]
        members = {known: each for known, each in COMMANDS.items() if known.startswith(group)}
        kinds = tuple(
            Annotated[
                each,
                subcommand(known.removeprefix(group), description=str(each.__doc__).split("\n")[0]),
            ]
            for known, each in members.items()
        )
        kind = Union[kinds]  # noqa: UP007
        prog = f"kedge {group}".rstrip()
        about = "Few-shot image classifiers that keep getting better."
        if not group:
            about = f" {about}\n 'kedge --version' prints the version."
    return tyro.cli(kind, prog=prog, description=about, args=args, config=(OmitArgPrefixes,))


def _check_empty(args: list[str]) -> None:
    """Raise on an empty argument (an unset variable); as a path it would be the current folder."""
    for before, argument in zip(["", *args], args, strict=False):
        name, equals, value = argument.partition("=")
        option = name if equals else before
        if value or (name and not (equals and name.startswith("--"))):
            continue
        after = f" after {option}" if option.startswith("--") else ""
        raise KedgeError(
            f"There is an empty argument{after}: perhaps from a variable that is not set."
        )


def _wrapped_doc(kind: type) -> str:
    """A command's docstring, wrapped; the indent keeps tyro from joining lines."""
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
