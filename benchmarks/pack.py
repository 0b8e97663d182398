"""How long packing takes, and how much memory: `python benchmarks/pack.py DATA [--keep RESULT]`.

DATA is packed by the command, as a user does it, then once more, which must be instant; beside it
the plain way, in the same run on the same data: Parquet rows decoded one after the other with
Pillow into an array in memory, which is then saved. Results are ratios and figures of one machine.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path


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
        first, said = _timed(command)
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024  # of the largest
        second, _ = _timed(command)
        size = out.stat().st_size
        plain = _timed([sys.executable, __file__, "plainly", str(given.data), folder])[0]
    from kedge.surroundings import environment

    result = {
        "what": said.strip().splitlines()[-1].partition(": ")[2],
        "seconds": round(first, 1),
        "peak memory, MiB": round(peak),
        "seconds, second run": round(second, 1),
        "plain loop, seconds": round(plain, 1),
        "ratio plain / kedge": round(plain / first, 2),
        "file, MB": round(size / 1e6),
        "cores": len(os.sched_getaffinity(0)),
        "environment": environment(),
    }
    print(json.dumps(result, indent=1, ensure_ascii=False))
    if given.keep:
        given.keep.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


def _timed(command: list[str]) -> tuple[float, str]:
    began = time.perf_counter()
    ended = subprocess.run(command, check=True, capture_output=True, text=True)
    return time.perf_counter() - began, ended.stdout


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
