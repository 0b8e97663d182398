"""How many questions `kedge serve` answers, beside a running round; and its memory over uploads.

    python perf/serve_load.py --photos FOLDER --out perf/serve-load.json

FOLDER has class folders of photographs. A server with the pretrained network is taught the first
classes, a round is started, and clients ask for a minute each: first about photographs whose
features are cached, then about new ones (every request is another file, reduced to 224 px). Last,
photographs are taught and asked about while the server's memory is read.
"""

from __future__ import annotations

import argparse
import http.client
import io
import itertools
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from serve_kill_test import ServerProcess

from kedge.serve.client import Client, ServerError

N_CLASSES, PER_CLASS = 12, 10  # that are taught
SIDE = 224
N_CACHED = 64  # photographs that are asked about again and again
CONTENT = Callable[[], bytes]


@dataclass
class Measured:
    """Requests of one phase."""

    seconds: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Photographs:
    """Photographs of 224 px; `new` gives a file that was never given before."""

    def __init__(self, folder: Path, most: int = 400) -> None:
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        random.Random(0).shuffle(paths)
        self.files = [reduced(path) for path in paths[:most]]
        self.numbers = itertools.count()

    def new(self) -> bytes:
        """A photograph with a comment of its own: another file, which takes as long to decode."""
        number = next(self.numbers)
        content = self.files[number % len(self.files)]
        comment = f"{os.getpid()} {number}".encode()
        length = (len(comment) + 2).to_bytes(2, "big")
        return content[:2] + b"\xff\xfe" + length + comment + content[2:]


def reduced(path: Path) -> bytes:
    file = io.BytesIO()
    with Image.open(path) as image:
        ImageOps.fit(image.convert("RGB"), (SIDE, SIDE)).save(file, "JPEG", quality=90)
    return file.getvalue()


def ask_for(address: str, content: CONTENT, n_clients: int, seconds: float) -> dict[str, Any]:
    """Ask with many clients at once, each about one photograph at a time."""
    measured, end = Measured(), time.monotonic() + seconds
    threads = [
        threading.Thread(target=_ask, args=(address, content, end, measured))
        for _ in range(n_clients)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ordered = sorted(measured.seconds)
    return {
        "clients": n_clients,
        "seconds": seconds,
        "answered": len(ordered),
        "per_second": round(len(ordered) / seconds, 1),
        "median_ms": round(1000 * statistics.median(ordered), 1) if ordered else None,
        "p99_ms": round(1000 * ordered[int(0.99 * (len(ordered) - 1))], 1) if ordered else None,
        "errors": len(measured.errors),
        "first_error": measured.errors[0] if measured.errors else None,
    }


def _ask(address: str, content: CONTENT, end: float, measured: Measured) -> None:
    client = Client(address, timeout=60)
    while time.monotonic() < end:
        picture = content()
        began, fault = time.perf_counter(), ""
        try:
            said = client.ask([picture])
            if len(said["answers"]) != 1:
                fault = f"refused: {said['refused']}"
        except (OSError, http.client.HTTPException, ServerError) as error:
            fault = f"{type(error).__name__}: {error}"
        with measured.lock:
            if fault:
                measured.errors.append(fault)
            else:
                measured.seconds.append(time.perf_counter() - began)
    client.close()


class Rounds:
    """Keeps a round running: when one has ended, its result is discarded and another started."""

    def __init__(self, address: str) -> None:
        self.client, self.ended = Client(address), threading.Event()
        self.checks = self.running = self.finished = 0
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        while not self.ended.wait(0.5):
            state = self.client.state()
            job = state["job"]
            self.checks += 1
            self.running += job is not None and job["state"] == "running"
            if state["candidate"] is not None:
                self.finished += 1
                self.client.discard(state["candidate"]["id"])
            elif state["improve"]["possible"]:
                self.client.improve()

    def share(self) -> float:
        """The share of the time since the last call in which a round was running."""
        share = self.running / max(1, self.checks)
        self.checks = self.running = 0
        return round(share, 3)

    def end(self) -> None:
        self.ended.set()
        self.thread.join()
        job = self.client.state()["job"]
        if job is not None and job["state"] == "running":
            self.client.send("POST", f"/api/jobs/{job['id']}/cancel")


def memory_mb(client: Client) -> float:
    text = client.request("GET", "/metrics").decode()
    [line] = [line for line in text.splitlines() if line.startswith("kedge_memory_bytes ")]
    return round(float(line.split()[1]) / 1e6, 1)


def upload(client: Client, photographs: Photographs, total: int, teach: bool) -> dict[str, Any]:
    """Memory of the server while pictures are taught or asked about."""
    memory, began, errors = {0: memory_mb(client)}, time.monotonic(), 0
    for n in range(0, total, 50):
        pictures = [photographs.new() for _ in range(50)]
        if teach:
            errors += 50 - len(client.teach("many", pictures)["added"])
        else:
            errors += 50 - len(client.ask(pictures)["answers"])
        if (n + 50) % max(50, total // 10) == 0:
            memory[n + 50] = memory_mb(client)
            print(f"  {n + 50} pictures, {memory[n + 50]} MB", flush=True)
    seconds = time.monotonic() - began
    return {"pictures": total, "seconds": round(seconds, 1), "errors": errors, "memory_mb": memory}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--photos", type=Path, required=True)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--uploads", type=int, default=10_000)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    photographs = Photographs(arguments.photos)
    record: dict[str, Any] = {"cores": len(os.sched_getaffinity(0)), "load": os.getloadavg()}
    with tempfile.TemporaryDirectory(prefix="kedge-load-") as folder:
        server = ServerProcess(Path(folder) / "project")
        server.start()
        try:
            client = Client(server.address)
            for kind in sorted(path for path in arguments.photos.iterdir())[:N_CLASSES]:
                client.teach(kind.name, sorted(kind.iterdir())[:PER_CLASS])
            rounds = Rounds(server.address)
            time.sleep(2)
            cached = [photographs.new() for _ in range(N_CACHED)]
            client.ask(cached)
            rounds.share()
            phases: dict[str, CONTENT] = {
                "cached": lambda: random.choice(cached),
                "new": photographs.new,
            }
            for name, content in phases.items():
                load = ask_for(server.address, content, arguments.clients, arguments.seconds)
                record[name] = {**load, "round_running": rounds.share()}
                print(name, json.dumps(record[name]), flush=True)
            rounds.end()
            for name, teach in (("taught", True), ("asked", False)):
                record[name] = upload(client, photographs, arguments.uploads, teach)
                print(name, json.dumps(record[name]), flush=True)
        finally:
            server.kill(signal.SIGTERM)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
