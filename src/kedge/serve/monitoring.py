"""Metrics in the text format of Prometheus, and logs of requests.

Written by hand, since a counter and a histogram are all that is needed of the usual library.
"""

from __future__ import annotations

import ctypes
import json
import logging
import sys
import threading
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

from kedge.utils.text import printable

LOGGER = logging.getLogger("kedge.serve")
BUCKETS = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0)  # seconds
Labels = tuple[tuple[str, str], ...]


class Metrics:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, Labels], float] = defaultdict(float)
        self._buckets = [0] * len(BUCKETS)

    def count(self, name: str, n: float = 1, **labels: str) -> None:
        with self._lock:
            self._counts[name, tuple(sorted(labels.items()))] += n

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        self.count("kedge_requests_total", route=route, method=method, status=str(status))
        with self._lock:
            self._counts["kedge_request_seconds_sum", ()] += seconds
            self._counts["kedge_request_seconds_count", ()] += 1
            for i, most in enumerate(BUCKETS):
                self._buckets[i] += seconds <= most

    def text(self, gauges: dict[str, float]) -> str:
        """All counters, and the gauges of this moment."""
        with self._lock:
            counts, buckets = sorted(self._counts.items()), list(self._buckets)
        n = next((v for (name, _), v in counts if name == "kedge_request_seconds_count"), 0)
        lines, typed = [], set[str]()
        for (name, labels), value in counts:
            if name not in typed and not name.startswith("kedge_request_seconds"):
                lines.append(f"# TYPE {name} counter")
            typed.add(name)
            lines.append(f"{name}{_labels(labels)} {value:g}")
        lines.append("# TYPE kedge_request_seconds histogram")
        bounds = [*zip(map(str, BUCKETS), buckets, strict=True), ("+Inf", n)]
        lines += [f'kedge_request_seconds_bucket{{le="{le}"}} {each:g}' for le, each in bounds]
        for name, value in gauges.items():
            lines += [f"# TYPE {name} gauge", f"{name} {value:g}"]
        return "\n".join(lines) + "\n"


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    escaped = [
        (k, v.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")) for k, v in labels
    ]
    return "{" + ",".join(f'{key}="{value}"' for key, value in escaped) + "}"


def memory_bytes() -> int:
    """Resident memory of this process; 0 where that is not known."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    import resource

    return pages * resource.getpagesize()


def give_memory_back() -> None:
    """Return free memory to the system: the C library keeps what large uploads took."""
    with suppress(OSError, AttributeError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)


def log(what: str, **fields: Any) -> None:
    """A line of the log: an event and its fields, of which texts may come from strangers."""
    LOGGER.info(what, extra={"fields": fields})


class TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {})
        words = [f"{key}={value}" for key, value in fields.items() if value not in (None, "")]
        text = " ".join([self.formatTime(record), record.getMessage(), *words])
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
            return printable(text)
        return printable(text, one_line=True)


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        about = {
            "time": record.created,
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            about["error"] = self.formatException(record.exc_info)
        return json.dumps(about, default=str)  # ASCII, so that no character can disturb a terminal


def set_up_logs(kind: str) -> None:
    """Write logs of the service and of its HTTP library on standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if kind == "json" else TextFormatter())
    for name, level in (("kedge.serve", logging.INFO), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
