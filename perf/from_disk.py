"""Time and memory of training from images that stay on disk.

    python perf/from_disk.py [--out RESULT.json]

The command trains on a packed file of tieredImageNet's size, made of noise, and then on one with
the same classes and few images: the memory of the second run is needed anyway. Memory is the peak
resident size of the process (Linux only). Needs 10 GB of disk.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from kedge.data.packed_file import PACKED_FORMAT, write_packed
from kedge.utils.env import environment

N_CLASSES, N_IMAGES, SIDE = 351, 448_695, 84
SHORT = ["--methods", "NU", "--epochs", "2", "--val-episodes", "50", "--eval-episodes", "200"]


class Noise:
    """Random images, made in small batches: the part of a tensor that the writer uses."""

    dtype = torch.uint8

    def __init__(self, n: int) -> None:
        self.shape = torch.Size((n, 3, SIDE, SIDE))

    def numel(self) -> int:
        return self.shape.numel()

    def split(self, n: int) -> Iterator[torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        for first in range(0, len(self), n):
            size = (min(n, len(self) - first), *self.shape[1:])
            yield torch.randint(0, 256, size, generator=generator, dtype=torch.uint8)

    def __len__(self) -> int:
        return self.shape[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file to write the result to")
    parser.add_argument("--episodes", type=int, default=100, help="per epoch, of two")
    parser.add_argument("--folder", type=Path, help="where the temporary files go")
    given = parser.parse_args()
    command = ["--episodes", str(given.episodes), *SHORT]
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        large = _packed(Path(folder) / "large.images", _counts())
        small = _packed(Path(folder) / "small.images", [40] * N_CLASSES)
        took, peak = _trained(large, command)
        _, least = _trained(small, command)
        result = {
            "what": "kedge bench folder on a packed file, Conv-4 of width 32, CPU",
            "images": N_IMAGES,
            "file, MB": round(large.stat().st_size / 1e6),
            "options": command,
            "seconds": round(took, 1),
            "peak resident, MiB": round(peak),
            "of which with 40 images per class, MiB": round(least),
            "cores": len(os.sched_getaffinity(0)),
            "environment": environment(),
        }
    print(json.dumps(result, indent=1, ensure_ascii=False))
    if given.out:
        given.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


def _counts() -> list[int]:
    each, more = divmod(N_IMAGES, N_CLASSES)
    return [each + (i < more) for i in range(N_CLASSES)]


def _packed(path: Path, counts: list[int]) -> Path:
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    names = [f"class {i:03}" for i in range(len(counts))]
    about = {"format": PACKED_FORMAT, "classes": names, "source": "noise", "fingerprint": "noise"}
    images: object = Noise(len(labels))
    write_packed(path, {"labels": labels}, images, about)  # type: ignore[arg-type]
    return path


def _trained(path: Path, options: list[str]) -> tuple[float, float]:
    """Seconds and peak memory in MiB."""
    out = path.with_suffix(".run")
    command = [sys.executable, "-m", "kedge", "bench", "folder", "--data", str(path)]
    began = time.perf_counter()
    process = subprocess.Popen([*command, *options, "--out", str(out)], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, "kedge bench has failed"
    return time.perf_counter() - began, usage.ru_maxrss / 1024


if __name__ == "__main__":
    main()
