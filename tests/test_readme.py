"""The README's table comes from its record, and CONTRIBUTING names every part of the package."""

import re
from pathlib import Path

import pytest

from kedge.experiments.records import Record
from kedge.report.render import to_markdown
from kedge.report.tables import all_tables

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
TABLES = re.findall(r"<!-- table: (\S+) -->\n(.*?)<!-- end of table -->", README, re.S)


@pytest.mark.parametrize(("folder", "shown"), TABLES or [("no table", "")])
def test_table_is_rendered_from_its_record(folder: str, shown: str) -> None:
    table = to_markdown(all_tables(Record.load(ROOT / folder / "record.json"))[0])
    rendered = [line for line in table.splitlines() if line.startswith("|")]
    assert shown.strip().splitlines() == rendered


def test_tree_names_every_part_of_the_package() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    tree = text.split("src/kedge/\n")[1].split("reproduction/")[0]
    named = set(re.findall(r"^  ((?:\w+\.py|\w+/)(?: \w+\.py)*)", tree, re.M))
    package = ROOT / "src" / "kedge"
    parts = {p.name for p in package.glob("*.py") if not p.name.startswith("__")}
    parts |= {f"{p.parent.name}/" for p in package.glob("*/__init__.py")}
    assert {name for line in named for name in line.split()} == parts
