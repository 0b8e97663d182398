"""Docs: links exist, generated files are current, the site works offline, the tutorial runs."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

Ready = Any  # of conftest.py, which cannot be imported
ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
FOLDERS = ("docs", "perf", "reproduction", "src")
PAGES = sorted([*ROOT.glob("*.md"), *(p for f in FOLDERS for p in (ROOT / f).rglob("*.md"))])


def load_tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look for their module
    spec.loader.exec_module(module)
    return module


# ── links ────────────────────────────────────────────────────────────────────────────────────


@cache
def tokens(page: Path) -> list[Token]:
    parsed = MarkdownIt().enable("table").parse(page.read_text(encoding="utf-8"))
    return [inner for token in parsed for inner in (token, *(token.children or ()))]


@cache
def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of headings, and those written as HTML."""
    found: set[str] = set()
    for i, token in enumerate(tokens(page)):
        if token.type == "heading_open":
            title = "".join(t.content for t in tokens(page)[i + 1].children or ())
            found.add(re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-"))
        if token.type.startswith("html"):
            found |= set(re.findall(r"id=\"([^\"]+)\"", token.content))
    return found


def broken_links(page: Path) -> list[str]:
    links = [str(t.attrGet("href") or t.attrGet("src") or "") for t in tokens(page)]
    broken = []
    for link in filter(None, links):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        exists = target.exists() and target.is_relative_to(ROOT)
        if not exists or (anchor and anchor not in anchors(target)):
            broken.append(link)
    return broken


def test_links_exist() -> None:
    assert {str(page): links for page in PAGES if (links := broken_links(page))} == {}


# ── generated parts ──────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "folder"), [("write_reference.py", "reference"), ("draw_alignment.py", "figures")]
)
def test_generated_files_are_current(script: str, folder: str, tmp_path: Path) -> None:
    target = tmp_path if folder == "reference" else tmp_path / "alignment.svg"
    command = [sys.executable, str(ROOT / "tools" / script), str(target)]
    subprocess.run(command, check=True, timeout=300)
    for file in tmp_path.iterdir():
        committed = (DOCS / folder / file.name).read_bytes()
        assert file.read_bytes() == committed, f"{file.name} is outdated: run 'make docs'"


def test_every_public_name_is_in_the_reference() -> None:
    import kedge
    from kedge.cli.commands import COMMANDS

    commands = (DOCS / "reference" / "commands.md").read_text(encoding="utf-8")
    python = (DOCS / "reference" / "python.md").read_text(encoding="utf-8")
    assert [name for name in COMMANDS if f"\n## kedge {name}\n" not in commands] == []
    assert [name for name in kedge.__all__ if f"\n## {name}\n" not in python] == []


def test_measured_parts_of_the_privacy_page_are_those_of_its_json() -> None:
    tool = load_tool("write_privacy")
    page = tool.PAGE.read_text(encoding="utf-8")
    assert tool.PART.findall(page) != []
    assert tool.rendered(page, json.loads(tool.RESULT.read_text(encoding="utf-8"))) == page


def test_epsilon_of_the_privacy_page() -> None:
    """Balle and Wang: (1, 10⁻⁵) needs a standard deviation of 3.73 times the sensitivity."""
    assert load_tool("measure_privacy").epsilon(3.73, 2, 1) == pytest.approx(1.0, abs=0.01)


OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
FOREIGN = {"--nproc-per-node", "--version", "--help", "--import-mode", "--kills", "--noise"}


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted(DOCS.glob("*.md"))])
def test_options_exist(page: Path) -> None:
    """Every option that a page mentions is one of a command."""
    known = set(OPTION.findall((DOCS / "reference" / "commands.md").read_text(encoding="utf-8")))
    mentioned = set(OPTION.findall(page.read_text(encoding="utf-8")))
    assert mentioned - known - FOREIGN == set()


# ── the site ─────────────────────────────────────────────────────────────────────────────────


class Resources(HTMLParser):
    """What a browser would fetch to show a page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {key: value or "" for key, value in attrs}
        keys = ("src", "srcset", "poster", "data", *(["href"] if tag == "link" else []))
        self.links += [given[key] for key in keys if key in given]


@pytest.mark.slow
def test_site_is_complete_and_works_offline(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="the site is built with mkdocs-material")
    process = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr
    home = (tmp_path / "index.html").read_text(encoding="utf-8")
    for page in DOCS.rglob("*.md"):
        name = page.relative_to(DOCS).with_suffix(".html").as_posix()
        assert name == "index.html" or f'<a href="{name}" class="md-nav__link"' in home, name
    for file in tmp_path.rglob("*.html"):
        if "records" in file.parts or file.name == "404.html":
            continue  # reports of runs are separate pages; 404 needs a server
        for link in Resources(file).links:
            assert not re.match(r"\w*:?//", link), f"{file.name} fetches {link}"
            assert (file.parent / link.split("#")[0].split("?")[0]).exists(), (file.name, link)
    for sheet in tmp_path.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        assert re.search(r"(url\(|@import)\s*['\"]?(https?:)?//", text) is None, sheet.name


# ── the tutorial ─────────────────────────────────────────────────────────────────────────────

TUTORIAL = (DOCS / "tutorial.md").read_text(encoding="utf-8")


def test_table_of_the_tutorial_repeats_the_output() -> None:
    rows = re.findall(r"^\| round \d.*\| ([\d.]+) \| ([\d.]+) \|$", TUTORIAL, re.M)
    printed = re.findall(r"^([\d.]+) ± [\d.]+% of queries", TUTORIAL, re.M)
    assert [number for row in rows for number in row] == printed


CLASS_ROW = r"  .* \d+\.\d%  "  # a class, or two that are confused
OUTCOME = r"(Round \d\. )?(Its|Old) classes.* named correctly, |\d+ +~|  \d+ classes of round"
WIDE = "import os; os.environ['COLUMNS'] = '100'; "  # as the tool sets it


def outline(lines: list[str]) -> set[str]:
    """Lines without numbers and the width of columns. Left out are tables, lists of classes and
    sentences on what a round did, since the classes and the words depend on the result, too."""
    varied = re.compile(f"[┏┃┡│└]|{CLASS_ROW}|{OUTCOME}")
    wide = re.compile(r"(?<=  ) +|(?<=─)─+")
    return {wide.sub("", re.sub(r"\d+", "#", line)) for line in lines if not varied.match(line)}


@pytest.mark.slow
def test_tutorial_runs_and_prints_what_it_shows(ready: Ready, tmp_path: Path) -> None:
    """All commands in their order, with the shortest training, in forks of one process."""
    tool = load_tool("run_tutorial")
    printed: list[str] = []
    for kind, text in tool.BLOCK.findall(TUTORIAL):
        if kind == "python" and (name := tool.FILE.match(text)):
            (tmp_path / name[1]).write_text(text, encoding="utf-8")
        if kind != "sh" or tool.INSTALL in text:
            continue
        for line in re.sub(r"--(epochs|episodes) \d+", r"--\1 2", text).splitlines():
            program, *args = shlex.split(line)
            if program == "rm":
                shutil.rmtree(tmp_path / args[1])
                continue
            code = (tmp_path / args[0]).read_text("utf-8") if program == "python" else ""
            ended = ready(code, tmp_path) if code else ready.kedge(*args, cwd=tmp_path, first=WIDE)
            assert ended.rc == 0, ended.err
            printed += (ended.out + ended.err).splitlines()
    printed = [line.rstrip() for line in printed if not tool.PROGRESS.search(line)]
    shown = "".join(text for kind, text in tool.BLOCK.findall(TUTORIAL) if kind == "text")
    assert outline(printed) == outline(shown.splitlines()) - {"  …"}
