"""What `import kedge` promises: every name is there, and nothing heavy is loaded before its use."""

from __future__ import annotations

import inspect
import pkgutil
import subprocess
import sys
from importlib import import_module

import pytest

import kedge


@pytest.mark.parametrize("name", kedge.__all__)
def test_every_public_name_is_there_and_says_what_it_is(name: str) -> None:
    assert inspect.getdoc(getattr(kedge, name)), f"kedge.{name} has no docstring"


def test_public_names_are_what_they_should_be_after_everything_is_imported() -> None:
    """A module of the same name would take the place of a function."""
    for module in pkgutil.walk_packages(kedge.__path__, "kedge."):
        import_module(module.name)
    for name in kedge.__all__:
        assert not inspect.ismodule(getattr(kedge, name)), f"kedge.{name} is a module"
    assert callable(kedge.evaluate)


def test_star_import_and_dir_list_the_same_names() -> None:
    names: dict[str, object] = {}
    exec("from kedge import *", names)
    assert set(kedge.__all__) <= set(names)
    assert set(kedge.__all__) <= set(dir(kedge))


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'kedge' has no attribute 'frobnicate'"):
        _ = kedge.frobnicate


@pytest.mark.parametrize("module", ["kedge", "kedge.cli"])
def test_import_is_light(module: str) -> None:
    code = f"import sys, {module}; print({{'torch', 'matplotlib', 'PIL'}} & set(sys.modules))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ended.stdout, ended.stderr) == ("set()\n", "")
