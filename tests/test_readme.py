"""What the README says is what the records and the folders say."""

import re
from pathlib import Path

import pytest

from kedge.experiments.records import Record
from kedge.report.render import to_markdown
from kedge.report.tables import all_tables

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"<!-- table: (\S+) -->\n(.*?)<!-- end of table -->", README, re.S)


@pytest.mark.parametrize(("folder", "shown"), SHOWN)
def test_every_table_is_rendered_from_its_committed_record(folder: str, shown: str) -> None:
    record = Record.load(ROOT / folder / "record.json")
    table = to_markdown(all_tables(record)[0])
    rendered = [line for line in table.splitlines() if line.startswith("|")]
    assert shown.strip().splitlines() == rendered


def test_a_table_is_shown() -> None:
    assert SHOWN


def test_every_picture_and_linked_file_is_there() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    local = [link for link in links if "://" not in link]
    assert local
    assert [link for link in local if not (ROOT / link).exists()] == []


def test_the_file_map_names_every_module_and_nothing_else() -> None:
    block = README.split("## File map")[1].split("```")[1]
    named = set(re.findall(r"\b(\w+)(?:\.py|/)", block))
    named -= {"src", "kedge", "docs", "tools", "tests", "benchmarks", "pack_drawings"}
    named -= {"files", "readers", "given"}  # within images/, which is large
    package = ROOT / "src" / "kedge"
    there = {p.stem for p in package.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert named == there - {"__init__", "__main__", "errors"}
