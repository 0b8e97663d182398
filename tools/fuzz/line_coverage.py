"""The share of each parser's lines that the seeds and the corpus of the fuzzer run.

    python -m tools.fuzz.line_coverage pickle tar

What child processes do (decoders, pyarrow) is done in this one, too, so that it counts.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from kedge.errors import KedgeError

from .target import TARGETS, load_target

MODULES = {
    "pickle": "data.files.unpickle data.files.pickle_objects data.files.pickle_fields "
    "data.readers.pickled_arrays data.readers.tiered",
    "tar": "data.files.tar_archive data.files.archives",
    "zip": "data.files.zip_archive data.files.archives",
    "npz": "data.files.npz data.readers.tiered",
    "lists": "data.files.csv_layout data.files.list_file data.readers.image_list "
    "data.readers.listed_folders",
    "records": "utils.config_io experiments.records experiments.recipes",
    "model": "models.model_file models.weights_file data.packed_file data.pixel_digests",
    "image": "data.decode_pool data.limited_process data.image_codec",
    "parquet": "data.files.parquet_file data.readers.parquet data.parquet_worker",
}


def lines_of(path: str) -> set[int]:
    """The lines of functions in a file: those outside of them run when it is imported."""
    found: set[int] = set()
    todo: list[tuple[CodeType, bool]] = [(compile(Path(path).read_text(), path, "exec"), False)]
    while todo:
        code, is_function = todo.pop()
        if is_function:
            found |= {line for _, _, line in code.co_lines() if line} - {code.co_firstlineno}
        for inner in code.co_consts:
            if isinstance(inner, CodeType):
                todo.append((inner, inner.co_flags & 2 > 0))  # has local variables: no class
    return found


def lines_run(files: set[str], name: str, inputs: Sequence[bytes]) -> set[tuple[str, int]]:
    target, seen = load_target(name), set[tuple[str, int]]()

    def line(frame: FrameType, event: str, arg: Any) -> Any:
        seen.add((frame.f_code.co_filename, frame.f_lineno))
        return line

    def call(frame: FrameType, event: str, arg: Any) -> Any:
        return line if frame.f_code.co_filename in files else None

    with tempfile.TemporaryDirectory() as folder:
        for data in inputs:
            sys.settrace(call)
            try:
                with suppress(KedgeError):
                    target.run(Path(folder), data)
                if target.inside is not None:
                    with suppress(Exception):
                        target.inside(Path(folder), data)
            finally:
                sys.settrace(None)
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parsers", nargs="*", default=TARGETS)
    parser.add_argument("--out", type=Path, default=Path("build/fuzz"), help="of tools.fuzz")
    options = parser.parse_args()
    for name in options.parsers:
        modules = [f"kedge.{module}" for module in MODULES[name].split()]
        files = {str(import_module(module).__file__): module for module in modules}
        corpus = [path.read_bytes() for path in sorted(options.out.glob(f"{name}/corpus/*"))]
        seen = lines_run(set(files), name, [*load_target(name).seeds(), *corpus])
        for path, module in files.items():
            lines = lines_of(path)
            missed = sorted(lines - {number for file, number in seen if file == path})
            share = 100 * (1 - len(missed) / len(lines))
            print(f"{name:8} {module:36} {share:5.1f}% of {len(lines)} lines; not {missed}")


if __name__ == "__main__":
    main()
