"""All commands by their names, and what is said of a name that is none.

Each is a dataclass whose fields are its options. Heavy imports are inside `run`, so that help is
fast.
"""

import dataclasses
import typing
from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from kedge.cli.bench import Bench
from kedge.cli.compare import Compare
from kedge.cli.data import Inspect, Pack
from kedge.cli.evaluate import Evaluate
from kedge.cli.export import Export
from kedge.cli.paper import Paper
from kedge.cli.predict import Predict
from kedge.cli.recipes import Recipes
from kedge.cli.report import Report
from kedge.cli.serve import Serve
from kedge.cli.show import Show
from kedge.cli.sign import Sign
from kedge.cli.speed import Speed
from kedge.cli.train import Train
from kedge.cli.update import Update
from kedge.utils.config_io import option_name
from kedge.utils.progress import printable

COMMANDS = {  # in the order of `kedge --help`
    "train": Train,
    "update": Update,
    "predict": Predict,
    "evaluate": Evaluate,
    "show": Show,
    "report": Report,
    "serve": Serve,
    "export": Export,
    "sign": Sign,
    "data inspect": Inspect,
    "data pack": Pack,
    "data compare": Compare,
    "bench": Bench,
    "recipes": Recipes,
    "paper": Paper,
    "speed": Speed,
}


def unknown_command(args: Sequence[str]) -> str:
    """What is wrong with the name of the command, and which one may be meant; "" if it exists."""
    first, second = (*args, "", "")[:2]
    groups = {name.partition(" ")[0] for name in COMMANDS} - {*COMMANDS}
    options_only = not second or second.startswith("-")
    if not first or first.startswith("-") or first in COMMANDS:
        return ""
    if first in groups and (options_only or f"{first} {second}" in COMMANDS):
        return ""
    close = get_close_matches(f"{first} {second}", COMMANDS, 1, 0.8)
    if first not in groups:
        names = {name.rpartition(" ")[2]: name for name in COMMANDS}  # 'inspect' for 'data inspect'
        names |= {name: name for name in (*COMMANDS, *groups)}
        close += [names[name] for name in get_close_matches(first, names, 1)]
    typed, helped = (f"{first} {second}", f"{first} ") if first in groups else (first, "")
    hint = f"did you mean '{close[0]}'?" if close else f"'kedge {helped}--help' lists the commands."
    return f"There is no command '{printable(typed, one_line=True)}'; {hint}"


def unknown_option(name: str, args: Sequence[str]) -> str:
    """What is wrong with the first option that the command does not have; "" if there is none.

    tyro takes the argument after it for its value, and then misses that argument.
    """
    options = {"--help", *_options(COMMANDS[name])}
    for argument in args:
        typed = argument.partition("=")[0]
        if not typed.startswith("--") or typed == "--" or typed.replace("_", "-") in options:
            continue
        close = get_close_matches(typed, sorted(options), 1)
        hint = f"did you mean '{close[0]}'?" if close else f"'kedge {name} --help' lists them."
        shown = printable(typed, one_line=True)
        return f"'kedge {name}' has no option '{shown}'; {hint}"
    return ""


def _options(command: type) -> Iterator[str]:
    hints = typing.get_type_hints(command)
    for field in dataclasses.fields(typing.cast(typing.Any, command)):
        if dataclasses.is_dataclass(kind := hints[field.name]):
            yield from _options(typing.cast(type, kind))
        else:
            yield option_name(field.name)
            if kind is bool:
                yield option_name(f"no_{field.name}")
