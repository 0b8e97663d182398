"""Time and memory of `kedge data pack`.

    python perf/pack.py DATA [--out RESULT.json]

DATA is packed twice by the command; the second run must return at once. For Parquet files a plain
loop runs too: rows decoded one by one with Pillow into an array in memory, which is then saved.
Memory is that of all processes together, sampled five times a second (Linux only).
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
    parser.add_argument("--out", type=Path, help="JSON file to write the result to")
    given = parser.parse_args()
    kedge = shutil.which("kedge", path=str(Path(sys.executable).parent))
    assert kedge, "kedge is not installed next to this interpreter"
    with tempfile.TemporaryDirectory() as folder:
        packed = Path(folder) / "packed.images"
        command = [kedge, "data", "pack", str(given.data), "--out", str(packed)]
        first, peak, output = _monitored(command)
        second, _, _ = _monitored(command)
        size = packed.stat().st_size
        plain_loop = [sys.executable, __file__, "plain-loop", str(given.data), folder]
        parquet = given.data.is_dir() and any(given.data.glob("*.parquet"))
        baseline = (
            dict(zip(("s", "MiB"), _monitored(plain_loop)[:2], strict=True)) if parquet else {}
        )
    from kedge.utils.env import environment

    result = {
        "what": output.strip().splitlines()[-1].partition(": ")[2],
        "seconds": round(first, 1),
        "peak memory, MiB": round(peak),
        "seconds, second run": round(second, 1),
        "file, MB": round(size / 1e6),
        **_compared(first, baseline),
        "cores": len(os.sched_getaffinity(0)),
        "environment": environment(),
    }
    print(json.dumps(result, indent=1, ensure_ascii=False))
    if given.out:
        given.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


def _compared(first: float, baseline: dict[str, float]) -> dict[str, float]:
    if not baseline:
        return {}
    return {
        "plain loop, seconds": round(baseline["s"], 1),
        "plain loop, peak memory, MiB": round(baseline["MiB"]),
        "ratio plain / kedge": round(baseline["s"] / first, 2),
    }


def _monitored(command: list[str]) -> tuple[float, float, str]:
    """Seconds, peak memory in MiB, and standard output."""
    began, peak = time.perf_counter(), 0.0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            peak = max(peak, sum(map(_resident_mib, _process_tree(process.pid))))
            time.sleep(0.2)
        assert process.stdout is not None
        output = process.stdout.read()
    assert process.returncode == 0, command
    return time.perf_counter() - began, peak, output


def _process_tree(pid: int) -> list[int]:
    """The ids of a process and of all its descendants."""
    pids = [pid]
    for each in pids:
        for file in Path(f"/proc/{each}/task").glob("*/children"):
            with suppress(OSError):
                pids += map(int, file.read_text().split())
    return pids


def _resident_mib(pid: int) -> float:
    with suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE / 2**20
    return 0.0


def plain_loop(data: Path, folder: Path) -> None:
    """What a script of twenty lines would do."""
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
    if sys.argv[1:2] == ["plain-loop"]:
        plain_loop(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        main()
