"""The process that fuzzes one target with atheris: `python -m tools.fuzz.worker NAME FOLDER …`.

Findings are written to FOLDER/findings, and it goes on; only what ends or blocks the process in a
library stops it. The inputs that reached new code are kept in FOLDER/corpus.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import sys
import tempfile
import warnings
from contextlib import suppress
from pathlib import Path

# Modules of the standard library that parse files for kedge.
STANDARD = ("zipfile", "gzip", "_compression", "tomllib", "csv", "bz2", "lzma")
INSTRUMENTED = ("kedge", "PIL", *STANDARD)
SECONDS, N_BYTES = 2.0, 256 << 20  # lower than what a command may take: inputs are small
HANG_SECONDS = 30
FORGET_EVERY = 2000  # inputs


def main() -> None:
    name, folder, seconds, seed = sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4]
    import atheris
    import torch  # noqa: F401 (before what follows, which would instrument it)

    for module in STANDARD:
        sys.modules.pop(module, None)
    sys.path.insert(0, os.getcwd())
    scratch = Path(tempfile.mkdtemp(prefix="kedge-fuzz-", dir=_memory_folder()))
    with atheris.instrument_imports(include=[*INSTRUMENTED]):
        from kedge.errors import KedgeError, KedgeWarning

        from .bounds import Bounds
        from .target import load_target

        target = load_target(name)
        for data in target.seeds():  # some modules are only imported now
            with suppress(KedgeError):
                target.run(scratch, data)
    warnings.simplefilter("error")
    warnings.simplefilter("ignore", KedgeWarning)
    bounds, n = Bounds(SECONDS, N_BYTES, target.children), 0

    def test_one_input(data: bytes) -> None:
        nonlocal n
        n += 1
        if n % FORGET_EVERY == 0:
            bounds.forget()
        if target.inside is not None:
            with suppress(Exception):
                target.inside(scratch, data)
            if bounds.grown() > N_BYTES // 4:  # the child may not take as much
                bounds.forget()
        finding = bounds.check(lambda: target.run(scratch, data))
        if finding is not None and finding.kind in ("time", "memory"):
            bounds.forget()  # what earlier inputs have left, or another process, may be the reason
            finding = bounds.check(lambda: target.run(scratch, data))
        if finding is not None:
            number = hashlib.sha256(f"{finding.kind} {finding.place}".encode()).hexdigest()[:10]
            path = folder / "findings" / f"{finding.kind}-{number}"
            if not path.exists():
                path.write_bytes(data)
                path.with_suffix(".txt").write_text(
                    f"{finding.kind}: {finding.place}\n{finding.text}\n", "utf-8", "replace"
                )

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        rng = random.Random(seed)
        if rng.random() < 0.5:
            return atheris.Mutate(data, most)
        return target.mutate(rng, bytes(data))[:most]

    for kind in ("corpus", "seeds", "findings"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
    for data in target.seeds():
        (folder / "seeds" / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
    lines = {f'"{"".join(f"{chr(92)}x{byte:02x}" for byte in t)}"' for t in target.tokens if t}
    (folder / "tokens").write_text("\n".join(sorted(lines)))
    arguments = [
        *("fuzz", str(folder / "corpus"), str(folder / "seeds"), f"-max_total_time={seconds}"),
        *(f"-max_len={target.most_bytes}", f"-seed={seed}", f"-timeout={HANG_SECONDS}"),
        f"-report_slow_units={HANG_SECONDS}",  # by the clock; what counts is processor time
        *("-rss_limit_mb=0", "-print_final_stats=1", f"-dict={folder / 'tokens'}"),
        f"-artifact_prefix={folder / 'findings'}/",
    ]
    atheris.Setup(arguments, test_one_input, custom_mutator=mutate)
    try:
        atheris.Fuzz()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _memory_folder() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


if __name__ == "__main__":
    main()
