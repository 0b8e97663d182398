"""The layers of the package: a folder imports only from those above it; no import cycles.

Imports inside functions and for type checkers count too.
"""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "kedge"
LAYERS = (
    "errors",
    "utils",
    "config",
    "defaults",
    "data",
    "benchmarks",
    "episodes",
    "kernels",
    "models",
    "methods",
    "evaluation",
    "training",
    "experiments",
    "report",
    "api",
    "estimator",
    "serve",
    "cli",
)
ENTRY_POINTS = {"kedge", "kedge.__main__"}  # __init__ names the public functions of all layers


def module_files() -> dict[str, Path]:
    files = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        files[".".join(parts).removesuffix(".__init__")] = path
    return files


def imported_modules(path: Path, known: dict[str, Path]) -> set[str]:
    """Modules of kedge that a file imports; an imported name that is a module counts as one."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (inner & known.keys()) or {node.module}
            if not inner <= known.keys():
                found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & known.keys()


FILES = module_files()
IMPORTS = {
    name: imported_modules(path, FILES) - {name, "kedge"}
    for name, path in FILES.items()
    if name not in ENTRY_POINTS
}


def layer(module: str) -> str:
    return module.split(".")[1]


def test_every_folder_is_a_layer() -> None:
    assert {layer(name) for name in IMPORTS} == set(LAYERS)


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_imports_only_from_those_above_it(name: str) -> None:
    allowed = LAYERS[: LAYERS.index(name) + 1]
    below = [
        f"{module} imports {imported}"
        for module in IMPORTS
        if layer(module) == name
        for imported in IMPORTS[module]
        if layer(imported) not in allowed
    ]
    assert below == []


def test_no_module_imports_in_a_circle() -> None:
    try:
        list(TopologicalSorter(IMPORTS).static_order())
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]))


def builds_a_collection(node: ast.expr) -> bool:
    names = ("set", "frozenset", "dict", "list", "tuple", "sorted")
    return isinstance(node, ast.Set | ast.SetComp | ast.DictComp | ast.ListComp) or (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names
    )


def test_no_condition_builds_a_collection_for_each_item() -> None:
    """As `[x for x in a if x in set(b)]` does, which takes quadratic time."""
    slow = [
        f"{path}:{condition.lineno}"
        for path in FILES.values()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.comprehension)
        for condition in node.ifs
        for compared in ast.walk(condition)
        if isinstance(compared, ast.Compare)
        and any(isinstance(op, ast.In | ast.NotIn) for op in compared.ops)
        and any(map(builds_a_collection, compared.comparators))
    ]
    assert slow == []


def test_no_module_is_too_long() -> None:
    long = {n: len(p.read_text("utf-8").splitlines()) for n, p in FILES.items()}
    assert {n: lines for n, lines in long.items() if lines > 350} == {}


def test_reading_a_record_does_not_load_the_training_step() -> None:
    """The closure of imports of `experiments.records`, module-level and lazy alike."""
    seen, todo = set(), ["kedge.experiments.records"]
    while todo:
        module = todo.pop()
        if module not in seen:
            seen.add(module)
            todo += IMPORTS[module]
    assert not any(name.startswith("kedge.training") for name in seen)
