"""How long packing takes, and how much memory: `python benchmarks/pack.py DATA [--keep RESULT]`.

DATA is packed by the command, as a user does it, then once more, which must be instant. Where it is
Parquet, also the plain way, in the same run on the same data: rows decoded one after the other with
Pillow into an array in memory, which is then saved. Memory is that of all processes together,
looked at five times a second (Linux).
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--keep", type=Path, help="JSON file to write the result to")
    given = parser.parse_args()
    kedge = shutil.which("kedge", path=str(Path(sys.executable).parent))
    assert kedge, "kedge is not installed beside this interpreter"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "packed.images"
        command = [kedge, "data", "pack", str(given.data), "--out", str(out)]
        first, peak, said = _watched(command)
        second, _, _ = _watched(command)
        size = out.stat().st_size
        plain = [sys.executable, __file__, "plainly", str(given.data), folder]
        parquet = given.data.is_dir() and any(given.data.glob("*.parquet"))
        beside = dict(zip(("s", "MiB"), _watched(plain)[:2], strict=True)) if parquet else {}
    from kedge.utils.env import environment

    result = {
        "what": said.strip().splitlines()[-1].partition(": ")[2],
        "seconds": round(first, 1),
        "peak memory, MiB": round(peak),
        "seconds, second run": round(second, 1),
        "file, MB": round(size / 1e6),
        **_compared(first, beside),
        "cores": len(os.sched_getaffinity(0)),
        "environment": environment(),
    }
    print(json.dumps(result, indent=1, ensure_ascii=False))
    if given.keep:
        given.keep.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


def _compared(first: float, beside: dict[str, float]) -> dict[str, float]:
    if not beside:
        return {}
    return {
        "plain loop, seconds": round(beside["s"], 1),
        "plain loop, peak memory, MiB": round(beside["MiB"]),
        "ratio plain / kedge": round(beside["s"] / first, 2),
    }


def _watched(command: list[str]) -> tuple[float, float, str]:
    """Seconds, peak MiB, and what it said."""
    began, peak = time.perf_counter(), 0.0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            peak = max(peak, sum(map(_resident, _family(process.pid))))
            time.sleep(0.2)
        assert process.stdout is not None
        said = process.stdout.read()
    assert process.returncode == 0, command
    return time.perf_counter() - began, peak, said


def _family(pid: int) -> list[int]:
    """A process and all that it has started."""
    found = [pid]
    for each in found:
        for file in Path(f"/proc/{each}/task").glob("*/children"):
            with suppress(OSError):
                found += map(int, file.read_text().split())
    return found


def _resident(pid: int) -> float:
    with suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE / 2**20
    return 0.0


def plainly(data: Path, folder: Path) -> None:
    """As a script of twenty lines would do it."""
    import numpy as np
    from PIL import Image
    from pyarrow import parquet  # type: ignore[import-untyped]

    images, labels = [], []
    for file in sorted(data.glob("*.parquet")):
        for row in parquet.read_table(file).to_pylist():
            image = Image.open(io.BytesIO(row["image"]["bytes"])).convert("RGB")
            images.append(np.asarray(image).transpose(2, 0, 1))
            labels.append(row["label"])
    np.savez(folder / "plain.npz", images=np.stack(images), labels=np.array(labels))


if __name__ == "__main__":
    if sys.argv[1:2] == ["plainly"]:
        plainly(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        main()
