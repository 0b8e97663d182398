"""MkDocs hooks that add to the site every file of the repository that a page links to.

MkDocs knows only the pages in docs/. Pages link to records, figures and modules by their paths in
the repository, so that the links also work in the Markdown itself. These hooks copy such files to
`repository/` in the site and rewrite the links.
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
LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(?=#[^)\s]*\)|\))")  # the path of a relative link


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files that pages link to, and those that these link to."""
    in_nav = _in_nav(config.nav)
    waiting = [file.src_uri for file in files.documentation_pages()] + in_nav
    while waiting:
        uri = waiting.pop()
        path = _repository_path(uri)
        if files.get_file_from_path(uri) is None and path.is_file():
            level = InclusionLevel.INCLUDED if uri in in_nav else InclusionLevel.NOT_IN_NAV
            files.append(_generated(config, uri, path, level))
        if path.suffix == ".md" and path.is_file():
            text = path.read_text(encoding="utf-8")
            waiting += [
                found
                for found in (_site_path(uri, link) for link in _links(text))
                if found.startswith(OUTSIDE) and files.get_file_from_path(found) is None
            ]
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite the links of a page to the places of their files in the site."""
    uri = page.file.src_uri
    if page.file.inclusion is InclusionLevel.NOT_IN_NAV:
        page.meta["search"] = {"exclude": True}  # records and modules would dominate the results

    def rewrite(match: re.Match[str]) -> str:
        return posixpath.relpath(_site_path(uri, match[0]), posixpath.dirname(uri) or ".")

    parts = FENCED.split(markdown)
    return "".join(part if part.startswith("```") else LINK.sub(rewrite, part) for part in parts)


def _generated(config: MkDocsConfig, uri: str, path: Path, level: InclusionLevel) -> File:
    if path.suffix != ".py":
        return File.generated(config, uri, abs_src_path=str(path), inclusion=level)
    text = path.read_text(encoding="utf-8")
    page = f"# {path.relative_to(ROOT).as_posix()}\n\n````python\n{text}````\n"
    return File.generated(config, uri, content=page, inclusion=level)


def _links(text: str) -> Iterator[str]:
    for part in FENCED.split(text):
        if not part.startswith("```"):
            yield from LINK.findall(part)


def _in_nav(nav: object) -> list[str]:
    """The files outside docs/ that the navigation names."""
    if isinstance(nav, str):
        return [nav] if nav.startswith(OUTSIDE) else []
    inner = nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ()
    return [name for item in inner for name in _in_nav(item)]


def _site_path(uri: str, link: str) -> str:
    """The place in the site of a file that a page links to."""
    here = _repository_path(uri).relative_to(ROOT).as_posix()
    path = posixpath.normpath(posixpath.join(posixpath.dirname(here), link))
    if (ROOT / path).is_dir():
        path = posixpath.join(path, "README.md")
    if path.endswith(".py"):
        path += ".md"  # a page that shows it
    return path.removeprefix(INSIDE) if path.startswith(INSIDE) else OUTSIDE + path


def _repository_path(uri: str) -> Path:
    if not uri.startswith(OUTSIDE):
        return ROOT / INSIDE / uri
    path = uri.removeprefix(OUTSIDE)
    return ROOT / (path.removesuffix(".md") if path.endswith(".py.md") else path)
