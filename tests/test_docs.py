"""The pages say what the code does, their links lead somewhere, the site can be read offline."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from itertools import zip_longest
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

Ready = Any  # of conftest.py, which cannot be imported
ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *DOCS.rglob("*.md"),
        *(ROOT / "benchmarks").glob("*.md"),
        *(ROOT / "reproduction").rglob("*.md"),
        *(ROOT / "src").rglob("*.md"),
    ]
)


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


# ── links ────────────────────────────────────────────────────────────────────────────────────


def tokens(page: Path) -> Iterator[Token]:
    for token in MarkdownIt().enable("table").parse(page.read_text(encoding="utf-8")):
        yield token
        yield from token.children or ()


def links(page: Path) -> list[str]:
    found = [token.attrGet("href") or token.attrGet("src") for token in tokens(page)]
    return [str(link) for link in found if link]


@cache
def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings, and those that are written as HTML."""
    found: set[str] = set()
    stream = list(tokens(page))
    for i, token in enumerate(stream):
        if token.type == "heading_open":
            title = "".join(t.content for t in stream[i + 1].children or ())
            slug = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
            again = (f"{slug}-{n}" for n in range(1, 1000))
            found.add(slug if slug not in found else next(a for a in again if a not in found))
        if token.type.startswith("html"):
            found |= set(re.findall(r"id=\"([^\"]+)\"", token.content))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in links(page):
        if re.match(r"\w+:", link):
            assert re.fullmatch(r"https://[\w.-]+\.\w+(/[\w./#?=&~%-]*)?", link), link
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link}: there is no such file"
        assert target.is_relative_to(ROOT), f"{link} leads out of the repository"
        if anchor:
            target = target / "README.md" if target.is_dir() else target
            assert anchor in anchors(target), f"{link}: {target.name} has no such heading"


def test_links_are_found_in_text_tables_and_pictures_but_not_in_code(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A `b` c!\n[x](1) ![y](2)\n\n|a|\n|-|\n|[z](3)|\n\n```\n[no](4)\n```\n`[no](5)`"
    )
    assert links(page) == ["1", "2", "3"]
    assert anchors(page) == {"a-b-c"}


# ── the site ─────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material", reason="the site is built with mkdocs-material")
    folder = tmp_path_factory.mktemp("site")
    ended = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr
    return folder


class Resources(HTMLParser):
    """What a browser would fetch to show a page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.found: list[str] = []
        self.mermaid = False
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {key: value or "" for key, value in attrs}
        self.found += [given[key] for key in ("src", "srcset", "poster", "data") if key in given]
        if tag == "link" and "href" in given:
            self.found.append(given["href"])
        self.mermaid |= "mermaid" in given.get("class", "")


def test_every_page_is_in_the_site_and_in_its_navigation(site: Path) -> None:
    home = (site / "index.html").read_text(encoding="utf-8")
    for page in DOCS.rglob("*.md"):
        name = page.relative_to(DOCS).with_suffix(".html").as_posix()
        assert (site / name).exists(), name
        listed = name == "index.html" or f'<a href="{name}" class="md-nav__link"' in home
        assert listed, f"mkdocs.yml does not name {page.name}"


def test_the_site_fetches_nothing_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert pages
    for page in pages:
        if "records" in page.parts or page.name == "404.html":
            continue  # reports of runs are pages of their own; 404 needs a server
        resources = Resources(page)
        assert resources.found
        assert not resources.mermaid, f"{page.name}: the script for such figures would be fetched"
        for link in resources.found:
            assert not re.match(r"\w*:?//", link), f"{page.name} fetches {link}"
            target = link.split("#")[0].split("?")[0]
            assert (page.parent / target).exists(), f"{page.name} lacks {link}"
    for sheet in site.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        assert re.search(r"(url\(|@import)\s*['\"]?(https?:)?//", text) is None, sheet.name


def test_what_pages_link_to_outside_of_docs_is_in_the_site(site: Path) -> None:
    results = (site / "results.html").read_text(encoding="utf-8")
    found = re.findall(r"(?:href|src)=\"(repository/[^\"#]+)", results)
    assert any(name.endswith("/table.html") for name in found)
    assert [name for name in found if not (site / name).exists()] == []


# ── what is generated ────────────────────────────────────────────────────────────────────────


def test_the_reference_is_what_the_code_says(tmp_path: Path) -> None:
    script = ROOT / "tools" / "write_reference.py"
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True, timeout=300)
    written = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    kept = {p.name: p.read_text(encoding="utf-8") for p in (DOCS / "reference").iterdir()}
    assert written.keys() == kept.keys()
    for name, text in written.items():
        changed = [
            f"- {old}\n+ {new}"
            for old, new in zip_longest(kept[name].splitlines(), text.splitlines())
            if old != new
        ]
        assert not changed, f"{name} is not current, 'make docs' writes it:\n" + changed[0]


def test_the_reference_has_every_command_and_every_public_name() -> None:
    import kedge
    from kedge.cli.commands import COMMANDS

    commands = (DOCS / "reference" / "commands.md").read_text(encoding="utf-8")
    python = (DOCS / "reference" / "python.md").read_text(encoding="utf-8")
    for command in COMMANDS:
        assert f"\n## kedge {command}\n\n```text\nusage: kedge {command} " in commands
    for name in kedge.__all__:
        assert f"\n## {name}\n" in python


def test_the_figure_of_alignment_is_what_the_code_computes(tmp_path: Path) -> None:
    script, file = ROOT / "tools" / "draw_alignment.py", tmp_path / "alignment.svg"
    subprocess.run([sys.executable, str(script), str(file)], check=True, timeout=300)
    assert file.read_bytes() == (DOCS / "figures" / "alignment.svg").read_bytes()


# ── messages ─────────────────────────────────────────────────────────────────────────────────

TROUBLE = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
QUOTED = [
    line.removeprefix("kedge: ")
    for block in re.findall(r"```text\n(.*?)```", TROUBLE, re.S)
    for line in block.splitlines()
]


@pytest.fixture(scope="module")
def texts() -> list[list[str]]:
    """Every text of the source that is longer than a word: its fixed parts in their order."""
    found = []
    for file in (ROOT / "src" / "kedge").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            values = node.values if isinstance(node, ast.JoinedStr) else [node]
            fixed = [v.value for v in values if isinstance(v, ast.Constant)]
            parts = [part for part in fixed if isinstance(part, str)]
            if sum(map(len, parts)) >= 10:
                found.append(parts)
    return found


def is_said(line: str, texts: list[list[str]]) -> bool:
    """Whether texts of the source, each of them whole, make up half of a line or more.

    The rest are names and numbers. Several texts, since a sentence may be put together from some.
    """
    covered: set[int] = set()
    for parts in texts:
        place, places = 0, set[int]()
        for part in parts:
            if (place := line.find(part, place)) < 0:
                break
            places |= set(range(place, place := place + len(part)))
        else:
            covered |= places
    return 2 * len(covered) >= len(line)


@pytest.mark.parametrize("line", QUOTED)
def test_every_message_of_troubleshooting_is_in_the_source(
    line: str, texts: list[list[str]]
) -> None:
    assert is_said(line, texts), f"no sentence of kedge reads: {line}"


def test_a_message_that_no_code_says_is_noticed(texts: list[list[str]]) -> None:
    assert is_said("a.kedge: the checksum does not match; the file is damaged.", texts)
    assert not is_said("a.kedge: the checksum is not right; the file is damaged.", texts)
    assert not is_said("a.kedge: nobody ever said this of a file.", texts)


@pytest.mark.parametrize(
    "command",
    [
        ["train", "first", "--out", "x", "--epoch-count", "3"],
        ["train", "first"],
        ["trian", "first"],
        ["train", "first", "--out", "x", "--epochs", "many"],
        ["predict", "m", "x", "--support", "s", "--format", "xml"],
        ["train", "first", "--out", "x"],
    ],
)
def test_troubleshooting_says_how_a_command_ends(command: list[str], ready: Ready) -> None:
    """One sentence and 1, or the parser's box and 2."""
    start, ended = TROUBLE.split("## Images")[0], ready.kedge(*command)
    boxed = ended.err.startswith("╭")
    assert boxed != ended.err.startswith("kedge: ")
    told = "gives a box instead" if boxed else "An error that you can mend is one sentence"
    (paragraph,) = (block for block in start.split("\n\n") if told in block)
    assert f"ends with {ended.rc}" in paragraph


def test_headings_of_troubleshooting_are_told_apart() -> None:
    titles = re.findall(r"^### (.*)$", TROUBLE, re.M)
    assert len(QUOTED) > 40
    assert len(set(titles)) == len(titles)


# ── the tutorial ─────────────────────────────────────────────────────────────────────────────

TUTORIAL = (DOCS / "tutorial.md").read_text(encoding="utf-8")
NUMBER = re.compile(r"\d+\.\d+")
VARIES = re.compile(r"in epoch \d+|\d{4}-\d\d-\d\d \d\d:\d\d|^\d+ of \d+ are right")
POINTS = 6  # that another processor may be off by; the same one is not
ROUNDS = ("base", "second", "tuned", "third")


def alike(old: str, new: str) -> bool:
    """The same line, but for numbers that may be off by some points.

    Of a table of names only the pictures are compared: an uncertain one may fall either way.
    """
    if old.startswith("│"):
        return old.split("│")[1] == new.split("│")[1]
    old, new = (VARIES.sub("", line) for line in (old, new))
    if re.match(r"[┏┃┡└]", old):
        return old[0] == new[0]  # as wide as the names
    numbers = [[float(n) for n in NUMBER.findall(line)] for line in (old, new)]
    near = all(abs(a - b) <= POINTS for a, b in zip(*numbers, strict=False))
    return near and NUMBER.sub("#", old) == NUMBER.sub("#", new)


def accuracies(page: str) -> dict[str, list[str]]:
    """Of each model: on held-out drawings of the first classes, and on unseen classes."""
    found = {}
    for name in ROUNDS:
        asked = f"kedge evaluate {name}.kedge held-out\nkedge evaluate {name}.kedge unseen\n```"
        printed = page.split(asked)[1].split("```text")[1].split("```")[0]
        found[name] = re.findall(r"^([\d.]+) ± [\d.]+% of", printed, re.M)
    return found


def test_the_tutorial_prints_what_it_shows(tmp_path: Path) -> None:
    """All its commands as they are written: a minute or two."""
    followed = tool("run_tutorial").follow(TUTORIAL, tmp_path)
    shown, printed = TUTORIAL.splitlines(), followed.splitlines()
    apart = [f"- {a}\n+ {b}" for a, b in zip_longest(shown, printed) if not alike(a or "", b or "")]
    assert not apart, "\n".join(apart)
    first, unseen = ({k: float(v[i]) for k, v in accuracies(followed).items()} for i in (0, 1))
    assert unseen["base"] < unseen["second"]
    assert unseen["base"] < unseen["third"]
    assert first["tuned"] < first["second"]
    assert min(*first.values(), *unseen.values()) > 40  # chance is 20


def test_the_table_of_the_tutorial_has_the_numbers_that_were_printed() -> None:
    rows = re.findall(r"^\| round \d.*\| ([\d.]+) \| ([\d.]+) \|$", TUTORIAL, re.M)
    assert list(map(list, rows)) == list(accuracies(TUTORIAL).values())


def test_images_are_deleted_before_they_are_not_needed_any_more() -> None:
    blocks = re.findall(r"```sh\n(.*?)```", TUTORIAL, re.S)
    commands = "".join(blocks).splitlines()
    assert commands[0] == "make install"
    assert "\ninstall:" in (ROOT / "Makefile").read_text(encoding="utf-8")
    assert commands.index("rm -r first") < next(
        i for i, c in enumerate(commands) if c.startswith("kedge update base.kedge second")
    )
    assert commands.index("rm -r second") < next(
        i for i, c in enumerate(commands) if c.startswith("kedge update second.kedge third")
    )
