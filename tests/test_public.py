"""What `import kedge` promises: every name is there, and nothing heavy is loaded before its use."""

from __future__ import annotations

import inspect
import pkgutil
import subprocess
import sys
from importlib import import_module

import pytest

import kedge


def test_public_names_are_documented_and_not_hidden_by_modules() -> None:
    """A module with the name of a function would replace it once it is imported."""
    for module in pkgutil.walk_packages(kedge.__path__, "kedge."):
        import_module(module.name)
    for name in kedge.__all__:
        found = getattr(kedge, name)
        assert not inspect.ismodule(found), f"kedge.{name} is a module"
        assert inspect.getdoc(found), f"kedge.{name} has no docstring"


def test_star_import_and_dir_list_the_same_names() -> None:
    names: dict[str, object] = {}
    exec("from kedge import *", names)
    assert set(kedge.__all__) <= set(names)
    assert set(kedge.__all__) <= set(dir(kedge))


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="frobnicate"):
        _ = kedge.frobnicate


def test_imports_are_light() -> None:
    """The paper's tables, commands and help need neither PyTorch nor Matplotlib."""
    heavy = "{'torch', 'matplotlib', 'PIL'} & set(sys.modules)"
    code = f"import sys, kedge, kedge.cli, kedge.experiments.paper as p; p.tables(); print({heavy})"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ended.stdout, ended.stderr) == ("set()\n", "")
