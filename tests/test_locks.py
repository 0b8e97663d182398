"""The locks cover what pyproject.toml asks for, in the versions of constraints.txt."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
ELSEWHERE = {"appnope"}  # of other systems only, so that it is not among the versions tested here


def key(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(file: str) -> dict[str, str]:
    text = (ROOT / file).read_text(encoding="utf-8")
    return {key(name): version for name, version in re.findall(r"^([\w.-]+)==(\S+)", text, re.M)}


def asked_for(*extras: str) -> set[str]:
    """Packages that these extras name, and those that kedge always needs."""
    project = PROJECT["project"]
    optional = project["optional-dependencies"]
    found = project["dependencies"] + [each for extra in extras for each in optional[extra]]
    names = {key(re.split(r"[^\w.-]", each)[0]) for each in found}
    inner = [each for each in found if each.startswith("kedge[")]
    for each in inner:
        names |= asked_for(*re.findall(r"[\w-]+", each)[1:])
    return names - {"kedge"}


@pytest.mark.parametrize(
    ("name", "extra"), [("install", "pretrained"), ("docs", "docs"), ("test", "test")]
)
def test_lock_has_the_tested_version_of_everything_that_is_needed(name: str, extra: str) -> None:
    locked = pins(f"locks/{name}.txt") | pins("locks/torch.txt")
    assert asked_for(extra) - locked.keys() == set(), "run 'make lock'"
    tested = pins("constraints.txt")
    assert locked.keys() - tested.keys() <= ELSEWHERE, "pin these in constraints.txt"
    assert {k: v for k, v in locked.items() if tested.get(k, v) != v} == {}, "run 'make lock'"


def test_every_version_that_is_pinned_is_locked() -> None:
    assert pins("constraints.txt").keys() == {
        *(pins("locks/test.txt").keys() - ELSEWHERE),
        *pins("locks/torch.txt"),
    }


@pytest.mark.parametrize("file", sorted((ROOT / "locks").glob("*.txt")), ids=lambda f: f.stem)
def test_every_file_has_a_hash_and_no_index_is_named(file: Path) -> None:
    text = re.sub(r"^#.*\n", "", file.read_text(encoding="utf-8"), flags=re.M)
    entries = re.split(r"\n(?=\S)", text.replace("\\\n", "").strip())
    lacking = [
        each for each in entries if not re.match(r"\S+==.* --hash=sha256:[0-9a-f]{64}", each)
    ]
    assert entries[0]
    assert lacking == []
    assert "://" not in text
