"""Kill the server, a decode worker or a round of `kedge serve` at random moments, under load.

    python tools/serve_kill_test.py --kills 200

Clients teach, ask, rename and delete without pause, and keep a ledger of what the server has
acknowledged. After each kill the folder must hold all of it: every picture with its label, every
name, every version; nothing that was deleted may come back; and SQLite's integrity check must pass.
Requests that were not answered may have happened or not.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import io
import os
import random
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from kedge.serve.client import Client, ServerError

NO_ANSWER = (OSError, http.client.HTTPException)
START_SECONDS = 120.0
SIDE = 24  # px of the pictures
ROUND = {"epochs": 3, "episodes": 10}
Work = Callable[[Client, random.Random, list[int]], None]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        return int(bound.getsockname()[1])


def make_model(path: Path) -> None:
    """A small model that has learned six kinds of noise."""
    import kedge

    rng = np.random.default_rng(0)
    kinds = rng.integers(0, 256, (6, 1, 16, 16, 3))
    images = (kinds * 0.6 + rng.integers(0, 256, (6, 12, 16, 16, 3)) * 0.4).astype(np.uint8)
    labels = [f"known {i}" for i in range(6) for _ in range(12)]
    kedge.set_verbosity("warning")
    kedge.train((images.reshape(-1, 16, 16, 3), labels), backbone="conv4", width=4, epochs=0).save(
        path
    )


class ServerProcess:
    """`kedge serve` as a process that is started again after each kill."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder, self.port = folder, free_port()
        self.command = [
            *(sys.executable, "-m", "kedge", "serve", str(folder)),
            *("--listen", f"127.0.0.1:{self.port}", "--log", "json", *options),
        ]
        self.log = folder.with_suffix(".log")
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            client = Client(self.address, timeout=5)
            try:
                client.get("/healthz")
                return
            except NO_ANSWER:
                if self.process.poll() is not None:
                    break
                time.sleep(0.05)
            finally:
                client.close()
        raise RuntimeError(f"the server does not start: see {self.log}")

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait()

    def children(self) -> dict[int, str]:
        """The command lines of its child processes."""
        assert self.process is not None
        found = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                parent = int(stat.read_text().rpartition(")")[2].split()[1])
                command = stat.with_name("cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if parent == self.process.pid:
                found[int(stat.parent.name)] = command
        return found


@dataclass
class Ledger:
    """What has been acknowledged. Each class and its pictures belong to one thread."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    stored: dict[str, int] = field(default_factory=dict)  # SHA-256 → class id
    deleted: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)  # pictures whose requests were not answered
    names: dict[int, set[str]] = field(default_factory=dict)  # class id → possible names
    versions: set[int] = field(default_factory=set)  # accepted ones
    discarded: set[int] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)


class Load:
    """Threads that use the server while it is up."""

    def __init__(self, server: ServerProcess, seed: int, n_teachers: int) -> None:
        self.server, self.ledger = server, Ledger()
        self.up, self.ended = threading.Event(), threading.Event()
        self.faults: list[str] = []
        self.idle = threading.Semaphore(0)
        works: list[Work] = [*(self.teach for _ in range(n_teachers)), self.improve]
        self.threads = [
            threading.Thread(target=self._run, args=(work, random.Random(f"{seed} {i}")))
            for i, work in enumerate(works)
        ]
        for thread in self.threads:
            thread.start()

    def pause(self) -> None:
        """Wait until no request is under way."""
        self.up.clear()
        for _ in self.threads:
            self.idle.acquire()

    def end(self) -> None:
        self.ended.set()
        self.up.set()
        for thread in self.threads:
            thread.join()

    def _run(self, work: Work, rng: random.Random) -> None:
        client = Client(self.server.address, timeout=60)
        owned: list[int] = []  # classes of this thread
        while not self.ended.is_set():
            if not self.up.is_set():
                self.idle.release()
                self.up.wait()
                client.close()
                continue
            try:
                work(client, rng, owned)
            except NO_ANSWER:
                client.close()
                time.sleep(0.05)
            except ServerError as error:
                if error.status >= 500:
                    self.faults.append(f"status {error.status}: {error}")
                time.sleep(0.05)

    def teach(self, client: Client, rng: random.Random, owned: list[int]) -> None:
        ledger = self.ledger
        what = rng.random()
        if not owned or (what < 0.05 and len(owned) < 20):
            class_id = client.make_class(f"class {rng.getrandbits(60):x}")
            owned.append(class_id)
            with ledger.lock:
                ledger.names[class_id] = set()  # known after the next renaming
                ledger.counts["classes"] += 1
            return
        class_id = rng.choice(owned)
        if what < 0.12:
            name = f"renamed {rng.getrandbits(60):x}"
            with ledger.lock:
                before = ledger.names[class_id]
                ledger.names[class_id] = set() if not before else {*before, name}
            client.send("PATCH", f"/api/classes/{class_id}", {"name": name})
            with ledger.lock:
                ledger.names[class_id] = {name}
                ledger.counts["renamed"] += 1
        elif what < 0.22:
            self._delete(client, rng, class_id)
        elif what < 0.4:
            client.ask([noise_picture(rng) for _ in range(2)])
            ledger.counts["asked"] += 2
        else:
            self._add(client, rng, class_id)

    def _add(self, client: Client, rng: random.Random, class_id: int) -> None:
        pictures = [noise_picture(rng) for _ in range(rng.choice((1, 3, 20)))]
        hashes = {hashlib.sha256(each).hexdigest() for each in pictures}
        with self.ledger.lock:
            self.ledger.unknown |= hashes
        said = client._send_pictures(
            f"/api/classes/{class_id}/pictures", [("noise.png", each) for each in pictures]
        )
        with self.ledger.lock:
            for each in said["added"]:
                self.ledger.stored[each["sha256"]] = class_id
            self.ledger.unknown -= hashes
            self.ledger.counts["taught"] += len(said["added"])
            for each in said["refused"]:
                self.ledger.counts[f"refused: {each['reason']}"] += 1

    def _delete(self, client: Client, rng: random.Random, class_id: int) -> None:
        ledger = self.ledger
        with ledger.lock:
            own = [sha256 for sha256, each in ledger.stored.items() if each == class_id]
            if not own:
                return
            sha256 = rng.choice(own)
            del ledger.stored[sha256]
            ledger.unknown.add(sha256)
        try:
            client.delete_picture(sha256)
        except ServerError:  # a round uses it
            with ledger.lock:
                ledger.stored[sha256] = class_id
                ledger.unknown.discard(sha256)
            return
        with ledger.lock:
            ledger.deleted.add(sha256)
            ledger.unknown.discard(sha256)
            ledger.counts["deleted"] += 1

    def improve(self, client: Client, rng: random.Random, owned: list[int]) -> None:
        """Keep a round going; take over what it makes, or discard it."""
        state = client.state()
        time.sleep(0.2)
        job = state["job"]
        if state["candidate"] is not None:
            version = state["candidate"]["id"]
            if rng.random() < 0.5:
                client.activate(version)
                self.ledger.versions.add(version)
            else:
                client.discard(version)
                self.ledger.discarded.add(version)
            self.ledger.counts["rounds"] += 1
        elif job is not None and job["state"] == "interrupted":
            client.send("POST", f"/api/jobs/{job['id']}/continue")
            self.ledger.counts["continued"] += 1
        elif state["improve"]["possible"]:
            client.improve(**ROUND)
        elif job is not None and job["state"] == "failed":
            self.faults.append(f"a round failed: {job['message']}")


def noise_picture(rng: random.Random) -> bytes:
    file = io.BytesIO()
    pixels = rng.randbytes(SIDE * SIDE * 3)
    Image.frombytes("RGB", (SIDE, SIDE), pixels).save(file, "PNG", compress_level=1)
    return file.getvalue()


def check_files(folder: Path, ledger: Ledger) -> list[str]:
    """What is wrong with the folder of a server that was just killed; nothing may write to it."""
    with tempfile.TemporaryDirectory() as copies:
        for path in folder.glob("project.sqlite*"):
            shutil.copy(path, copies)
        database = sqlite3.connect(Path(copies) / "project.sqlite")
        try:
            return _compare(database, folder, ledger)
        finally:
            database.close()


def _compare(database: sqlite3.Connection, folder: Path, ledger: Ledger) -> list[str]:
    wrong = []
    said = database.execute("PRAGMA integrity_check").fetchone()[0]
    if said != "ok":
        wrong.append(f"integrity check: {said}")
    broken = database.execute("PRAGMA foreign_key_check").fetchall()
    if broken:
        wrong.append(f"foreign keys: {broken[:3]}")
    rows = dict(database.execute("SELECT sha256, class FROM pictures"))
    for sha256, class_id in ledger.stored.items():
        if rows.get(sha256) != class_id:
            wrong.append(f"{sha256} is in class {rows.get(sha256)}, not {class_id}")
    for sha256 in rows:
        path = folder / "pictures" / sha256[:2] / sha256
        if not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
            wrong.append(f"the file of {sha256} is missing or damaged")
        if not (folder / "thumbnails" / sha256[:2] / f"{sha256}.jpg").exists():
            wrong.append(f"the thumbnail of {sha256} is missing")
    if back := ledger.deleted & rows.keys():
        wrong.append(f"{len(back)} deleted pictures are there again")
    if strange := rows.keys() - ledger.stored.keys() - ledger.unknown:
        wrong.append(f"{len(strange)} pictures that nobody has sent")
    lacking = database.execute(
        "SELECT COUNT(*) FROM pictures WHERE id NOT IN (SELECT picture FROM features)"
    ).fetchone()[0]
    if lacking:
        wrong.append(f"{lacking} pictures without features")
    names = dict(database.execute("SELECT id, name FROM classes"))
    for class_id, possible in ledger.names.items():
        if class_id not in names or (possible and names[class_id] not in possible):
            wrong.append(f"class {class_id} is named {names.get(class_id)}, not {possible}")
    versions = dict(database.execute("SELECT id, state FROM versions"))
    for version in ledger.versions:
        if versions.get(version) != "accepted" or not _is_model(folder, version):
            wrong.append(f"version {version} is lost")
    for version in ledger.discarded:
        if versions.get(version) != "discarded":
            wrong.append(f"version {version} was discarded and is there again")
    active = database.execute("SELECT value FROM settings WHERE key = 'active_version'").fetchone()
    if active is None or not _is_model(folder, int(active[0])):
        wrong.append("the version in use has no file")
    return wrong


def _is_model(folder: Path, version: int) -> bool:
    from kedge.errors import KedgeError
    from kedge.models import model_file

    try:
        model_file.read(folder / "versions" / f"{version}.kedge")
    except KedgeError:
        return False
    return True


def kill_one(server: ServerProcess, rng: random.Random) -> str:
    """Kill something; returns what it was."""
    target = rng.choices(("server", "worker", "round"), (5, 2, 3))[0]
    marks = {"worker": "kedge.data.decode_worker", "round": "kedge.serve.improve"}
    if target != "server":
        found = [pid for pid, command in server.children().items() if marks[target] in command]
        if not found:
            return "nothing"
        try:
            os.kill(rng.choice(found), signal.SIGKILL)
        except ProcessLookupError:
            return "nothing"
        return target
    server.kill()
    return target


def run(folder: Path, kills: int, seed: int, longest: float, n_teachers: int = 4) -> int:
    """Returns how many faults were found."""
    rng, killed = random.Random(seed), Counter[str]()
    model = folder.with_suffix(".kedge")
    make_model(model)
    server = ServerProcess(folder, "--model", str(model))
    server.start()
    server.command = server.command[: -len(("--model", str(model)))]
    load, wrong = Load(server, seed, n_teachers), []
    try:
        while killed.total() - killed["nothing"] < kills:
            load.up.set()
            time.sleep(rng.uniform(0.05, longest))
            what = kill_one(server, rng)
            killed[what] += 1
            if what == "server":
                load.pause()
                wrong += check_files(folder, load.ledger)
                server.start()
                print(f"{killed.total():4} kills, {dict(load.ledger.counts)}", flush=True)
        load.pause()
        server.kill(signal.SIGTERM)
        wrong += check_files(folder, load.ledger)
    finally:
        load.end()
        if server.process is not None and server.process.poll() is None:
            server.kill()
    wrong += load.faults
    print(f"killed: {dict(killed)}; acknowledged: {dict(load.ledger.counts)}")
    print("\n".join(wrong) if wrong else "nothing was lost; every integrity check passed")
    return len(wrong)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--longest", type=float, default=4.0, help="seconds between kills")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kedge-kills-") as folder:
        faults = run(Path(folder) / "project", arguments.kills, arguments.seed, arguments.longest)
    sys.exit(faults > 0)


if __name__ == "__main__":
    main()
