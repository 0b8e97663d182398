"""The package: its wheel has all that the README needs, and its page works on any site."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def copied_into_the_image() -> dict[str, Path]:
    """What the Dockerfile copies into the folder that it builds: where to, and from where."""
    copied = {}
    for line in re.findall(r"^COPY (.*)$", DOCKERFILE, re.M):
        *sources, target = line.split()
        for name in sources:
            inside = f"{target}{name}" if target.endswith("/") else target
            assert inside.startswith("/build/")
            copied[inside.removeprefix("/build/")] = ROOT / name
    return copied


def load_setup() -> ModuleType:
    spec = importlib.util.spec_from_file_location("kedge_setup", ROOT / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def relative_links(page: str) -> list[str]:
    text = re.sub(r"^```.*?^```$", "", page, flags=re.M | re.S)
    return [
        link for link in re.findall(r"\]\(([^)]+)\)", text) if not re.match(r"https://|#", link)
    ]


def test_links_of_the_page_are_absolute_if_there_is_an_address() -> None:
    page = load_setup().package_page(README, "https://forge.example/us/kedge/")
    assert relative_links(README)
    assert relative_links(page) == []
    base = "https://forge.example/us/kedge"
    assert f"]({base}/raw/HEAD/docs/figures/flowers.svg)" in page
    assert f"[docs/data.md]({base}/blob/HEAD/docs/data.md)" in page
    assert "[safetensors](https://github.com/huggingface/safetensors)" in page


def test_links_of_the_page_are_text_if_there_is_none() -> None:
    package_page = load_setup().package_page
    text = "a ![p](x.svg)b [c `d`](e.md) [f](https://g)\n```\n[h](i)\n```\n"
    assert package_page(text, None) == "a b c `d` [f](https://g)\n```\n[h](i)\n```\n"
    assert relative_links(package_page(README, None)) == []


@pytest.mark.slow
def test_readme_works_with_the_wheel_alone(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name, path in copied_into_the_image().items():
        if path.is_dir():
            shutil.copytree(path, source / name, ignore=shutil.ignore_patterns("*.egg-info"))
        else:
            shutil.copy(path, source / name)
    build = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path)]
    subprocess.run([sys.executable, "-m", "pip", *build, str(source)], check=True, timeout=300)
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        tracked = subprocess.run(["git", "ls-files", "src"], cwd=ROOT, capture_output=True)
        missing = set(tracked.stdout.decode().split()) - {
            f"src/{each}" for each in archive.namelist()
        }
        assert missing == set()
        [about] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        assert relative_links(archive.read(about).decode()) == []
    command = [sys.executable, str(ROOT / "tools" / "try_wheel.py"), str(wheel), "--quick"]
    ended = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=600)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "next.kedge: round 1" in ended.stdout
    assert ended.stdout.count("photo2.jpg") > 1
    assert "/healthz: " in ended.stdout


def test_the_image_has_what_its_build_asks_for() -> None:
    copied = copied_into_the_image()
    assert all(path.exists() for path in copied.values())
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert not set(ignored) & set(copied)
    constraints = re.findall(r"PIP_CONSTRAINT=/build/(\S+)", DOCKERFILE)
    assert set(constraints) <= set(copied)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    [extras] = re.findall(r'pip install .*"/build\[(.*?)\]"', DOCKERFILE)
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
