"""What pyproject.toml cannot say: the README as the page of the package, on an index of packages.

There, relative links and pictures lead nowhere. They become absolute once `[project.urls]` in
pyproject.toml has a `Repository`; until then links become plain text and pictures are left out.
"""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent
FENCED = re.compile(r"(^```.*?^```$)", re.M | re.S)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def package_page(readme: str, repository: str | None) -> str:
    """The README with links that work anywhere. `repository` is an address such as
    https://host/owner/name."""

    def absolute(match: re.Match[str]) -> str:
        picture, text, target = match.groups()
        if re.match(r"https?://|#", target):
            return match[0]
        if repository is None:
            return "" if picture else text
        kind = "raw" if picture else "blob"
        return f"{picture}[{text}]({repository.rstrip('/')}/{kind}/HEAD/{target})"

    parts = FENCED.split(readme)
    return "".join(part if part.startswith("```") else LINK.sub(absolute, part) for part in parts)


if __name__ == "__main__":
    from setuptools import setup

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    setup(
        long_description=package_page(
            (ROOT / "README.md").read_text(encoding="utf-8"),
            project.get("urls", {}).get("Repository"),
        ),
        long_description_content_type="text/markdown",
    )
