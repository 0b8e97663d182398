"""Run docs/tutorial.md as it is written, and write the output of its commands into it.

    python tools/run_tutorial.py

A block `python` that begins with the name of a file is that file, a block `sh` is run, and the
block `text` after it shows its output. Everything happens in a temporary folder, with the commands
of the interpreter that runs this script. The first block, which installs kedge, is not run.
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
# Printed if there is no terminal, or if the machine is slow.
PROGRESS = re.compile(r": \d+ of \d+(, about .* left)?(; .*)?$|^expected duration|^reading ")
HEADING = re.compile(r"[^:]+:$")  # of a list, such as "most often confused:"
INSTALL = "make install"


def run(block: str, folder: Path) -> str:
    """The output of a block of shell commands, without progress."""
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "100",
        "OMP_NUM_THREADS": "1",  # results depend on it in the last bits
        "CUDA_VISIBLE_DEVICES": "",
    }
    process = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=600,
    )
    if process.returncode:
        raise RuntimeError(f"{block}ended with {process.returncode}:\n{process.stdout}")
    lines = (line.rstrip() for line in process.stdout.splitlines())
    return "".join(f"{line}\n" for line in lines if not PROGRESS.search(line))


def follow(page: str, folder: Path) -> str:
    """The page with the current output of its commands.

    Indented lines that an earlier block has shown already are shortened to "…". Lists under a
    heading that an earlier block has shown are left out.
    """
    output = ""
    shown: set[str] = set()

    def block(match: re.Match[str]) -> str:
        nonlocal output
        kind, text = match.groups()
        if kind == "python" and (name := FILE.match(text)):
            (folder / name[1]).write_text(text, encoding="utf-8")
        elif kind == "sh" and INSTALL not in text:
            output = run(text, folder)
        elif kind == "text":
            lines, heading = [], ""
            for line in output.splitlines():
                heading = heading if line.startswith("  ") else line
                if heading not in shown:
                    lines.append("  …" if line in shown else line)
            shown.update(line for line in lines if line.startswith("  ") or HEADING.match(line))
            kept = [a for a, b in zip(lines, [*lines[1:], ""], strict=True) if a != b or a != "  …"]
            return "```text\n" + "".join(f"{line}\n" for line in kept) + "```"
        return match[0]

    return BLOCK.sub(block, page)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        PAGE.write_text(follow(PAGE.read_text(encoding="utf-8"), Path(folder)), encoding="utf-8")
