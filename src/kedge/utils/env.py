"""Where a run was done and what it took: versions, machine, commit and memory."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import torch


def environment() -> dict[str, str]:
    """Hardware, versions and commit: what a reader needs to repeat the run or to doubt it."""
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none"
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": f"{sys.platform} {platform.machine()}",
        "cpu": _cpu_name(),
        "cores": str(os.cpu_count()),
        "threads": str(torch.get_num_threads()),
        "gpu": gpu,
    }


def _commit() -> str:
    """The commit of kedge's own checkout; 'unknown' when it was installed from a wheel."""
    here = Path(__file__).resolve().parent
    if "site-packages" in here.parts:  # inside somebody else's checkout, perhaps
        return "unknown"
    try:
        done = subprocess.run(
            ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            timeout=5,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def forget_peak_memory() -> None:
    """From now on `peak_memory_mb` speaks of what follows, where the system can forget."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError):  # Linux; elsewhere the peak is that of the whole process
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory_mb() -> float:
    """On the device that trains."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    return resident_peak_mb()


def resident_peak_mb() -> float:
    """Of this process, in the memory of the machine."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        line = next(line for line in lines if line.startswith("VmHWM"))
        return int(line.split()[1]) / 2**10
    import resource  # not on Windows

    unit = 2**20 if sys.platform == "darwin" else 2**10  # ru_maxrss: bytes there, KiB here
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
