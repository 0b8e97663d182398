"""What the site holds beside docs/: every file of the repository that a page links to.

MkDocs knows the pages in docs/ only, and calls this by the hooks of mkdocs.yml. The pages link to
records, figures and modules as they lie in the repository, so that the links also work where the
Markdown itself is read. Here these files come into the site, under `repository/`, and the links are
turned there.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
INSIDE, OUTSIDE = "docs/", "repository/"
FENCED = re.compile(r"(^```.*?^```$)", re.M | re.S)
LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(?=#[^)\s]*\)|\))")  # the path of a link within the files


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is linked to, and what is linked to from there."""
    in_nav = _named(config.nav)
    waiting = [file.src_uri for file in files.documentation_pages()] + in_nav
    while waiting:
        uri = waiting.pop()
        path = _in_repository(uri)
        if files.get_file_from_path(uri) is None and path.is_file():
            level = InclusionLevel.INCLUDED if uri in in_nav else InclusionLevel.NOT_IN_NAV
            files.append(_added(config, uri, path, level))
        if path.suffix == ".md" and path.is_file():
            text = path.read_text(encoding="utf-8")
            waiting += [
                found
                for found in (_turned(uri, link) for link in _links(text))
                if found.startswith(OUTSIDE) and files.get_file_from_path(found) is None
            ]
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn the links of a page to where their files are in the site."""
    uri = page.file.src_uri
    if page.file.inclusion is InclusionLevel.NOT_IN_NAV:
        page.meta["search"] = {"exclude": True}  # records and modules would bury the pages

    def turn(match: re.Match[str]) -> str:
        return posixpath.relpath(_turned(uri, match[0]), posixpath.dirname(uri) or ".")

    parts = FENCED.split(markdown)
    return "".join(part if part.startswith("```") else LINK.sub(turn, part) for part in parts)


def _added(config: MkDocsConfig, uri: str, path: Path, level: InclusionLevel) -> File:
    if path.suffix != ".py":
        return File.generated(config, uri, abs_src_path=str(path), inclusion=level)
    text = path.read_text(encoding="utf-8")
    page = f"# {path.relative_to(ROOT).as_posix()}\n\n````python\n{text}````\n"
    return File.generated(config, uri, content=page, inclusion=level)


def _links(text: str) -> Iterator[str]:
    for part in FENCED.split(text):
        if not part.startswith("```"):
            yield from LINK.findall(part)


def _named(nav: object) -> list[str]:
    """The files of the repository that the navigation names."""
    if isinstance(nav, str):
        return [nav] if nav.startswith(OUTSIDE) else []
    inner = nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ()
    return [name for item in inner for name in _named(item)]


def _turned(uri: str, link: str) -> str:
    """Where in the site is what a page links to by a path of the repository."""
    here = _in_repository(uri).relative_to(ROOT).as_posix()
    path = posixpath.normpath(posixpath.join(posixpath.dirname(here), link))
    if (ROOT / path).is_dir():
        path = posixpath.join(path, "README.md")
    if path.endswith(".py"):
        path += ".md"  # a page that shows it
    return path.removeprefix(INSIDE) if path.startswith(INSIDE) else OUTSIDE + path


def _in_repository(uri: str) -> Path:
    if not uri.startswith(OUTSIDE):
        return ROOT / INSIDE / uri
    path = uri.removeprefix(OUTSIDE)
    return ROOT / (path.removesuffix(".md") if path.endswith(".py.md") else path)
