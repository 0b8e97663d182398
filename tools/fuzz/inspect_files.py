"""Many mutated and generated files through the commands that look at files, in a watched process.

    python -m tools.fuzz.inspect_files --files 10000

A file is a changed seed of a target of tools/fuzz, or a changed input that the fuzzer has kept. One
of a data set goes through `kedge data inspect`; models and records are read as by the targets. It
must be refused in one sentence or described, within 5 s of processor time and 1 GiB of memory, all
processes together. An audit hook watches for what no such command has any reason to do: run or
import code, write a file, or use the network. What honest files of each kind cause is learned
before.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any

import rich.cells
import torch  # noqa: F401 (what takes long to be imported is no part of a command here)
from tests.data.hostile import GENERATORS

import kedge.cli
from kedge.utils.text import printable

from .bounds import Bounds, Finding, children
from .mutate import repeat_piece
from .target import TARGETS, Target, load_target

SECONDS, N_BYTES = 5.0, 1 << 30
LARGE, LARGE_BYTES = 0.05, 2_000_000  # share of large files, and their bytes
MOST_CHANGES = 4  # of a seed, one after the other
WATCHED = (
    "os.",
    "shutil.",
    "socket.",
    "subprocess.",
    "ctypes.",
    "pickle.",
    "tempfile.",
    "marshal.",
)
HARMLESS = ("os.listdir", "os.scandir", "os.putenv", "os.unsetenv", "ctypes.dlsym")


class Audit:
    """What a command does beyond reading, as texts; those that are known already are left out."""

    def __init__(self) -> None:
        self.watching, self.learning = False, True
        self.known: set[str] = set()
        self.new: list[str] = []
        sys.addaudithook(self._hook)

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.watching:
            return
        self.watching = False  # what is done here does not count
        if (text := _description(event, args)) and text not in self.known:
            (self.known.add if self.learning else self.new.append)(text)
        self.watching = True


def _description(event: str, args: tuple[Any, ...]) -> str:
    """An event in words; empty if any reader may cause it."""
    if event == "open":
        path, mode, flags = args
        writes = any(letter in (mode or "") for letter in "wax+")
        writes = writes or bool((flags or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC))
        return f"open {path!r} for writing" if writes else ""
    if event == "exec" and isinstance(args[0], CodeType):
        code = args[0]
        return f"exec {code.co_filename} {code.co_name} {code.co_names} {code.co_consts!r:.200}"
    if event == "socket.__new__":
        return f"{event} {args[1:]}"
    if event == "os.kill" and Path("/proc", str(args[0])) in children():
        return ""  # a decoder that is not needed any more
    if event in ("import", "compile") or (event.startswith(WATCHED) and event not in HARMLESS):
        return f"{event} {args[:2]!r:.300}"
    return ""


def command(words: Sequence[str]) -> None:
    """Run a command; raises AssertionError unless it succeeds or says what is wrong."""
    printed, said = io.BytesIO(), io.BytesIO()
    out, err = io.TextIOWrapper(printed, "utf-8"), io.TextIOWrapper(said, "utf-8")
    sys.argv, code = ["kedge", *words], 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            kedge.cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
    out.flush()
    err.flush()
    text = said.getvalue().decode()
    last = text.rstrip("\n").rpartition("\n")[2]
    assert code in (0, 1), text[-500:]
    assert "Traceback" not in text, text[-500:]
    assert printable(text) == text, ascii(text[-500:])
    assert code == 0 or (last.startswith("kedge: ") and last.endswith((".", "?"))), text[-500:]


def work_of(target: Target, folder: Path, data: bytes) -> Callable[[], object]:
    """What is to be watched; the file has been written."""
    if target.place is None:
        return lambda: target.run(folder, data)
    path = target.place(folder, data)
    return lambda: command(["data", "inspect", str(path)])


def watch(audit: Audit, bounds: Bounds, work: Callable[[], object]) -> Finding | None:
    audit.new.clear()
    audit.watching = True
    try:
        finding = bounds.check(work)
    finally:
        audit.watching = False
    return finding or (Finding("audit", audit.new[0], "\n".join(audit.new)) if audit.new else None)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parsers", nargs="*", default=TARGETS)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("build/fuzz/inspect"))
    parser.add_argument("--corpora", type=Path, default=Path("build/fuzz"), help="of tools.fuzz")
    options = parser.parse_args()
    rng, audit, began = random.Random(options.seed), Audit(), time.monotonic()
    options.out.mkdir(parents=True, exist_ok=True)
    bounds, found, counts = Bounds(SECONDS, N_BYTES, children=True), Counter[str](), Counter[str]()
    slowest, largest = (0.0, ""), (0, "")

    def one(name: str, work: Callable[[], object], content: bytes) -> None:
        nonlocal slowest, largest
        seconds = bounds.processor_seconds()
        finding = watch(audit, bounds, work)
        counts[name] += 1
        slowest = max(slowest, (bounds.processor_seconds() - seconds, name))
        largest = max(largest, (bounds.grown(), name))
        if finding is not None:
            found[f"{name} {finding.kind}"] += 1
            path = options.out / f"{name}-{counts.total()}"
            path.write_bytes(content)
            path.with_suffix(".txt").write_text(finding.text, "utf-8", "replace")
            print(f"{path}: {finding.kind}: {finding.place}", flush=True)

    with tempfile.TemporaryDirectory(prefix="kedge-files-") as name:
        root = Path(name)
        targets = {name: load_target(name) for name in options.parsers}
        pools = {name: list(target.seeds()) for name, target in targets.items()}
        honest = {name: seeds * 2 for name, seeds in pools.items()}
        for name in pools:
            kept = sorted((options.corpora / name / "corpus").glob("*"))
            pools[name] += [path.read_bytes() for path in kept]
        for name, seeds in honest.items():  # twice: what is imported lazily is known then
            for data in seeds:
                watch(audit, bounds, work_of(targets[name], root / name, data))
        rich.cells.cell_len("漢")  # imports a table
        audit.learning = False
        bounds.forget()
        names = list(targets)
        for number in range(options.files - len(GENERATORS)):
            name = names[number % len(names)]
            data = rng.choice(pools[name])
            for _ in range(rng.randrange(1, MOST_CHANGES + 1)):
                data = targets[name].mutate(rng, data)[: 1 << 17]
            if rng.random() < LARGE:
                data = repeat_piece(rng, data, LARGE_BYTES)
            (options.out / "last").write_bytes(data)
            one(name, work_of(targets[name], root / name, data), data)
            if number % 500 == 499:
                bounds.forget()
                print(f"{number + 1} files, {time.monotonic() - began:.0f} s", flush=True)
        for name, generate in GENERATORS.items():
            path = generate(root / "generated" / name)
            bounds.forget()
            one(name, partial(command, ["data", "inspect", str(path)]), b"")
    print(
        f"{counts.total()} files in {time.monotonic() - began:.0f} s; at most {slowest[0]:.1f} s "
        f"of processor time ({slowest[1]}) and {largest[0] >> 20} MiB ({largest[1]}); findings: "
        f"{dict(found) or 'none'}."
    )
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
