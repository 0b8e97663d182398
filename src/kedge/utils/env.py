"""The environment of a run: versions, machine, commit and peak memory."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import torch


def environment() -> dict[str, str]:
    """Hardware, versions and commit, as saved with every result."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": f"{sys.platform} {platform.machine()}",
        "cpu": _cpu_name(),
        "cores": str(os.cpu_count()),
        "threads": str(torch.get_num_threads()),
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none",
    }


def cache_folder() -> Path:
    """Where kedge keeps what may be deleted at any time: $KEDGE_CACHE or ~/.cache/kedge."""
    cache_home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("KEDGE_CACHE") or cache_home / "kedge")


def _commit() -> str:
    """The commit of kedge's own checkout; 'unknown' if it was installed from a wheel."""
    folder = Path(__file__).resolve().parent
    if "site-packages" in folder.parts:  # perhaps inside another project's checkout
        return "unknown"
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12"]
    with suppress(OSError, subprocess.SubprocessError):
        null = subprocess.DEVNULL
        return subprocess.check_output(command, stderr=null, text=True, timeout=5).strip()
    return "unknown"


def _cpu_name() -> str:
    with suppress(OSError):
        if found := re.search(r"^model name\s*: *(.+)", Path("/proc/cpuinfo").read_text(), re.M):
            return found[1].strip()
    return platform.processor() or "unknown"


def reset_peak_memory() -> None:
    """Let `peak_memory_mb` count from now on; on systems other than Linux this has no effect."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory_mb() -> float:
    """Peak memory in MiB of the GPU if there is one, otherwise of this process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    return peak_rss_mb()


def peak_rss_mb() -> float:
    """Peak resident memory of this process in MiB."""
    with suppress(OSError):
        if found := re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text()):
            return int(found[1]) / 2**10
    import resource  # not on Windows

    unit = 2**20 if sys.platform == "darwin" else 2**10  # ru_maxrss is in bytes on macOS
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
