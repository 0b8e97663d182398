"""Run docs/tutorial.md as it is written, and write what is printed into it.

    python tools/run_tutorial.py

A block `python` that begins with the name of a file is that file, a block `sh` is run, and the
block `text` behind it shows what it prints. Everything happens in a temporary folder, with the
commands of the interpreter that runs this. The first block, which sets up a clone, is not run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(python|sh|text)\n(.*?)^```$", re.M | re.S)
FILE = re.compile(r"# (\w+\.py)\n")
PROGRESS = re.compile(r": \d+ of \d+, about \d+ s left$")  # shown where there is no terminal
SET_UP = "make install"


def run(block: str, folder: Path) -> str:
    """What a block prints, on a terminal of a fixed width and without its bars."""
    bin = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{bin}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "100",
        "OMP_NUM_THREADS": "1",  # the bits depend on it
        "CUDA_VISIBLE_DEVICES": "",
    }
    ended = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=600,
    )
    if ended.returncode:
        raise RuntimeError(f"{block}ended with {ended.returncode}:\n{ended.stdout}")
    lines = (line.rstrip() for line in ended.stdout.splitlines())
    return "".join(f"{line}\n" for line in lines if not PROGRESS.search(line))


def follow(page: str, folder: Path) -> str:
    """The page with what its commands print now."""
    printed = ""

    def block(match: re.Match[str]) -> str:
        nonlocal printed
        kind, text = match.groups()
        if kind == "python" and (name := FILE.match(text)):
            (folder / name[1]).write_text(text, encoding="utf-8")
        elif kind == "sh" and SET_UP not in text:
            printed = run(text, folder)
        elif kind == "text":
            return f"```text\n{printed}```"
        return match[0]

    return BLOCK.sub(block, page)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        PAGE.write_text(follow(PAGE.read_text(encoding="utf-8"), Path(folder)), encoding="utf-8")
