"""Write docs/reference from the code: the help of every command, and every public Python name.

    python tools/write_reference.py [FOLDER]

`make docs` runs this first, and a test checks that the committed pages are current. Python sources
are parsed, not imported: annotations stay as they are written. (mkdocstrings would import kedge and
render annotations in full.)
"""

from __future__ import annotations

import ast
import copy
import inspect
import io
import os
import re
import sys
import tokenize
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import kedge
from kedge import cli
from kedge.cli.commands import COMMANDS

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "reference"
HEAD = "<!-- Written by tools/write_reference.py ('make docs'): change the code, not this page. -->"
HELP_WIDTH = 80  # characters, for any terminal
SIGNATURE_WIDTH = 84  # longer signatures have one line per parameter
OPTIONS = ("EpisodeOptions", "RoundOptions", "TrainOptions")  # keyword arguments of kedge.train
Node = ast.FunctionDef | ast.ClassDef


# ── commands ─────────────────────────────────────────────────────────────────────────────────


def commands() -> str:
    """The page of commands: what each prints with --help."""
    parts = [
        HEAD,
        "# Commands",
        "The output of `kedge --help` and `kedge COMMAND --help`. `kedge bench NAME --help` shows "
        "the settings of a recipe.",
    ]
    for name in ("", *COMMANDS):
        title = f"kedge {name}".rstrip()
        parts.append(f"## {title}\n\n```text\n{help_of(title.split())}\n```")
    return "\n\n".join(parts) + "\n"


def help_of(words: list[str]) -> str:
    os.environ |= {"COLUMNS": str(HELP_WIDTH), "NO_COLOR": "1"}
    sys.argv = [*words, "--help"]
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")  # can print box characters
    with redirect_stdout(terminal), suppress(SystemExit):
        cli.main()
    terminal.seek(0)
    return "\n".join(line.rstrip() for line in terminal.read().strip("\n").splitlines())


# ── Python ───────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Source:
    """A parsed module."""

    name: str
    top: dict[str, ast.stmt]  # functions, classes and constants by name
    imported: dict[str, tuple[str, str]]  # from kedge: module and name in that module
    comments: dict[int, str]  # by line

    def find(self, name: str) -> tuple[Source, ast.stmt] | None:
        """The definition of a name, here or in the module that it is imported from."""
        if name in self.top:
            return self, self.top[name]
        if name in self.imported:
            module, original = self.imported[name]
            return source(module).find(original)
        return None


@cache
def source(module: str) -> Source:
    spec = find_spec(module)
    assert spec is not None
    text = Path(spec.origin or "").read_text(encoding="utf-8")
    top: dict[str, ast.stmt] = {}
    imported: dict[str, tuple[str, str]] = {}
    for node in ast.parse(text).body:
        if isinstance(node, Node):
            top[node.name] = node
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            top[node.targets[0].id] = node
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
            assert isinstance(node.value, ast.Tuple)
            for target, value in zip(node.targets[0].elts, node.value.elts, strict=True):
                if isinstance(target, ast.Name):
                    top[target.id] = ast.Assign([target], value, lineno=0, end_lineno=0)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kedge"):
            for alias in node.names:
                imported[alias.asname or alias.name] = (node.module or "", alias.name)
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokens
        if token.type == tokenize.COMMENT and "noqa" not in token.string
    }
    return Source(module, top, imported, comments)


def python() -> str:
    """The page of Python names: those of kedge in their order, options, and types in signatures."""
    sections, types = [], dict[str, tuple[Source, ast.Assign]]()
    for name in kedge._HOME:
        home = source(kedge._HOME[name])
        node = home.top[name]
        assert isinstance(node, Node)
        sections.append(section(home, node, name))
        types |= aliases(home, node)
    parts = [
        HEAD,
        "# Python",
        "The names that `import kedge` provides. `train`, `update` and `evaluate` do what the "
        "commands of the [tutorial](../tutorial.md) do; [In Python](../python.md) shows their use.",
        ", ".join(f"[`{name}`](#{name.lower()})" for name in kedge._HOME),
        *sections,
        "# Options",
        "Keyword arguments of `train`, `update` and `evaluate`. What is None is inferred from the "
        "data.",
        *(options(name) for name in OPTIONS),
        "# Types",
        "Type aliases in the signatures above.",
        "\n".join(described(name, *where) for name, where in sorted(types.items())),
    ]
    for name, (home, node) in sorted(classes_behind(types).items()):
        parts.append(section(home, node, f"{home.name}.{name}"))
    return "\n\n".join(parts) + "\n"


def options(name: str) -> str:
    """The fields of a class of options, with those of its bases; other options are linked."""
    home = source("kedge.config")
    fields: list[str] = []
    more = ""

    def collect(node: ast.stmt) -> None:
        nonlocal more
        assert isinstance(node, ast.ClassDef)
        for base in map(ast.unparse, reversed(node.bases)):
            if base in OPTIONS:
                more += f" Also the fields of `{base}`."
            else:
                collect(home.top[base])
        fields.extend(field(home, node, f) for f in node.body if isinstance(f, ast.AnnAssign))

    node = home.top[name]
    assert isinstance(node, ast.ClassDef)
    collect(node)
    return "\n\n".join([f"## {name}", doc(node) + linked(more), "\n".join(fields)])


def section(home: Source, node: Node, title: str) -> str:
    """A function, or a class with its fields and methods."""
    parts = [f"## {title}", f"```python\n{head(home, node, full_name(title))}\n```", doc(node)]
    if isinstance(node, ast.ClassDef):
        methods = [
            each
            for each in node.body
            if isinstance(each, ast.FunctionDef) and not each.name.startswith("_")
        ]
        computed = [each for each in methods if is_property(each)]
        fields = [field(home, node, each) for each in node.body if isinstance(each, ast.AnnAssign)]
        parts.append("\n".join([*fields, *map(computed_field, computed)]))
        for method in (each for each in methods if each not in computed):
            full = f"{title.rsplit('.', 1)[-1]}.{method.name}"
            parts += [f"### {full}", f"```python\n{head(home, method, full)}\n```", doc(method)]
    return "\n\n".join(part for part in parts if part)


def full_name(title: str) -> str:
    return title if "." in title else f"kedge.{title}"


def head(home: Source, node: Node, title: str) -> str:
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(map(ast.unparse, node.bases))
        return f"class {title}({bases})" if bases else f"class {title}"
    arguments = parameters(home, node.args)
    if arguments[:1] in (["self"], ["cls"]):
        del arguments[0]
    decorator = "@classmethod\n" if "classmethod" in marks(node) else ""
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    line = f"{title}({', '.join(arguments)}){returns}"
    if len(line) > SIGNATURE_WIDTH:
        line = "\n".join([f"{title}(", *(f"    {each}," for each in arguments), f"){returns}"])
    return decorator + line


def marks(node: ast.FunctionDef) -> list[str]:
    return [ast.unparse(mark) for mark in node.decorator_list]


def is_property(node: ast.FunctionDef) -> bool:
    return any(mark in ("property", "cached_property") for mark in marks(node))


def computed_field(node: ast.FunctionDef) -> str:
    line = f"- `{node.name}: {ast.unparse(node.returns) if node.returns else 'Any'}`"
    text = " ".join(doc(node).split())
    return f"{line}: {text}" if text else line


def parameters(home: Source, args: ast.arguments) -> list[str]:
    plain = [*args.posonlyargs, *args.args]
    missing: list[ast.expr | None] = [None] * (len(plain) - len(args.defaults))
    shown = [parameter(home, *each) for each in zip(plain, [*missing, *args.defaults], strict=True)]
    if args.vararg or args.kwonlyargs:
        shown.append(f"*{args.vararg.arg}" if args.vararg else "*")
    shown += [
        parameter(home, *each) for each in zip(args.kwonlyargs, args.kw_defaults, strict=True)
    ]
    return [*shown, *([f"**{args.kwarg.arg}"] if args.kwarg else [])]


def parameter(home: Source, arg: ast.arg, default: ast.expr | None) -> str:
    kind = f": {ast.unparse(arg.annotation)}" if arg.annotation else ""
    value = "" if default is None else f"{' = ' if kind else '='}{default_value(home, default)}"
    return f"{arg.arg}{kind}{value}"


def default_value(home: Source, default: ast.expr) -> str:
    """A default value as it is written; constants of kedge are replaced by their values."""

    class Values(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            found = home.find(node.id)
            return found[1].value if found and isinstance(found[1], ast.Assign) else node

    value = Values().visit(copy.deepcopy(default))
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "field":
        return next(
            ast.unparse(word.value) + "()" * (word.arg == "default_factory")
            for word in value.keywords
        )
    return ast.unparse(value)


def field(home: Source, node: ast.ClassDef, of: ast.AnnAssign) -> str:
    """A field; its text is a comment after it or a string below it."""
    default = f" = {default_value(home, of.value)}" if of.value is not None else ""
    line = f"- `{ast.unparse(of.target)}: {ast.unparse(of.annotation)}{default}`"
    text = home.comments.get(of.end_lineno or 0, "")
    below = node.body[node.body.index(of) + 1 :][:1]
    if below and isinstance(below[0], ast.Expr) and isinstance(below[0].value, ast.Constant):
        text = inspect.cleandoc(str(below[0].value.value))
    return f"{line}: {linked(text)}" if text else line


ARGUMENT = re.compile(r"^    (\w+(?:, \w+)*): (.*(?:\n {8}.*)*)$", re.M)


def doc(node: Node) -> str:
    """The docstring; its arguments become a list."""
    text = ast.get_docstring(node) or ""
    items = ARGUMENT.sub(lambda m: f"- `{m[1]}`: {' '.join(m[2].split())}", text)
    return linked(items.replace("Args:\n", "Arguments:\n\n"))


def linked(text: str) -> str:
    """The text with links from public names in backticks to their sections."""
    names = "|".join((*kedge._HOME, *OPTIONS))
    return re.sub(rf"`({names})`", lambda found: f"[{found[0]}](#{found[1].lower()})", text)


def aliases(home: Source, node: Node) -> dict[str, tuple[Source, ast.Assign]]:
    """The type aliases in the annotations of a function or class."""
    hints = [
        each
        for inner in ast.walk(node)
        for each in (getattr(inner, "annotation", None), getattr(inner, "returns", None))
        if each is not None and not hidden(node, inner)
    ]
    found = {}
    names = {n.id for hint in hints for n in ast.walk(hint) if isinstance(n, ast.Name)}
    for name in names:
        where = home.find(name)
        if where and isinstance(where[1], ast.Assign):
            found[name] = (where[0], where[1])
    return found


def hidden(node: Node, inner: ast.AST) -> bool:
    """Whether an annotation is in a private method, which is not shown."""
    methods = [m for m in ast.walk(node) if isinstance(m, ast.FunctionDef) and m is not node]
    return any(m.name.startswith("_") and inner in ast.walk(m) for m in methods)


def described(name: str, home: Source, of: ast.Assign) -> str:
    text = home.comments.get(of.end_lineno or 0, "")
    return f"- `{name}` = `{ast.unparse(of.value)}`{f': {linked(text)}' if text else ''}"


def classes_behind(
    types: dict[str, tuple[Source, ast.Assign]],
) -> dict[str, tuple[Source, ast.ClassDef]]:
    """Classes of kedge that the aliases refer to and that are not public themselves."""
    found = {}
    for home, node in types.values():
        for name in (each.id for each in ast.walk(node.value) if isinstance(each, ast.Name)):
            where = home.find(name)
            if name not in kedge._HOME and where and isinstance(where[1], ast.ClassDef):
                found[name] = (where[0], where[1])
    return found


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in (("commands.md", commands()), ("python.md", python())):
        (folder / file).write_text(text, encoding="utf-8")
