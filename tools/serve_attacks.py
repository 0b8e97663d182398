"""Attack `kedge serve`: what each attack was answered, and how long others waited meanwhile.

    python tools/serve_attacks.py --seconds 15 --out attacks.json

Two servers with the pretrained network are attacked: one without tokens, and one with tokens that
believes this program, as it would a proxy, from which addresses it asks. Beside each attack
innocent clients ask about one new photograph at a time: another program with the attacker's own
address and token ("tab"), one with another token on the attacker's address, and one with the
attacker's token on another address; and each once more about large photographs, and about HEIC.
With --addresses 6 those attackers that send bombs come from so many addresses, all with one token.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import os
import re
import signal
import struct
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import pillow_heif
from serve_attack_list import Attack, Target, attacks, encoded, noise
from serve_kill_test import ServerProcess

from kedge.serve.client import Client, ServerError
from kedge.utils.text import pluralize

OTHER_ADDRESS = "203.0.113.1"
PAUSE = 0.2  # seconds between two questions of an innocent client


class Photographs:
    """Files of one size and format, none given twice."""

    def __init__(self, width: int, height: int, kind: str = "JPEG") -> None:
        self.content = encoded(noise(width // 8, height // 8).resize((width, height)), kind)
        self.numbers = itertools.count()

    def new(self) -> bytes:
        comment = f"{id(self)} {next(self.numbers)}".encode()
        if self.content.startswith(b"\xff\xd8"):
            length = struct.pack(">H", len(comment) + 2)
            return self.content[:2] + b"\xff\xfe" + length + comment + self.content[2:]
        return self.content + struct.pack(">I", len(comment) + 8) + b"free" + comment


@dataclass
class Innocent:
    """A client that asks now and then; `waits` has the seconds until each answer."""

    client: Client
    new: Callable[[], bytes]
    waits: list[float] = field(default_factory=list)
    refusals: Counter[str] = field(default_factory=Counter)

    def run(self, end: float) -> None:
        while time.monotonic() < end:
            began, picture = time.monotonic(), self.new()
            try:
                said = self.client.ask([picture])
                for each in said["refused"]:
                    self.refusals[each["reason"]] += 1
            except ServerError as error:
                self.refusals[str(error.status)] += 1
            except (OSError, http.client.HTTPException) as error:
                self.refusals[type(error).__name__] += 1
            self.waits.append(time.monotonic() - began)
            time.sleep(PAUSE)

    def about(self) -> dict[str, Any]:
        n, longest = len(self.waits), max(self.waits, default=0.0)
        return {"asked": n, "longest_s": round(longest, 2), "refused": dict(self.refusals)}


def innocents(target: Target, photographs: dict[str, Photographs]) -> dict[str, Innocent]:
    found = {}
    for kind, files in photographs.items():
        found[f"{kind}tab"] = Innocent(target.client(), files.new)
        if target.other_token:
            found[f"{kind}other token"] = Innocent(target.client(target.other_token), files.new)
            client = target.client(address=OTHER_ADDRESS)
            found[f"{kind}other address"] = Innocent(client, files.new)
    return found


def processor_seconds(server: ServerProcess) -> float:
    """The processor time of a server, of its decoders and of those that have ended."""
    assert server.process is not None
    total = 0
    for pid in (server.process.pid, *server.children()):
        with suppress(OSError):
            stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, stat[11:15]))
    return total / os.sysconf("SC_CLK_TCK")


def attacked(
    server: ServerProcess,
    target: Target,
    n: int,
    attack: Attack,
    seconds: float,
    beside: dict[str, Innocent],
) -> dict[str, Any]:
    """What the attackers were answered, how long others waited, and how many of the machine's
    processors the server had: the fewer, the more of the waiting is due to other programs."""
    began, before = time.monotonic(), processor_seconds(server)
    target.end = time.monotonic() + seconds
    answers, numbers = Counter[str](), itertools.count()

    def attacker() -> None:
        while time.monotonic() < target.end:
            try:
                answer = attack(target, next(numbers))
            except OSError as error:
                answer = type(error).__name__
            answers[answer] += 1

    threads = [threading.Thread(target=attacker) for _ in range(n)]
    threads += [threading.Thread(target=each.run, args=(target.end,)) for each in beside.values()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    waited = {name: each.about() for name, each in beside.items()}
    used = (processor_seconds(server) - before) / (time.monotonic() - began)
    return {
        "attackers": n,
        "load": round(os.getloadavg()[0], 1),
        "processors": round(used, 2),
        "answers": dict(answers.most_common()),
        "innocents": waited,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--patience", type=float, default=60.0, help="of the attackers, in s")
    parser.add_argument("--only", default="", help="attacks whose names hold this")
    parser.add_argument("--addresses", type=int, default=1, help="of the attackers, with tokens")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    chosen = [each for each in attacks() if arguments.only in each[0]]
    pillow_heif.register_heif_opener()
    small = Photographs(1600, 1200)
    large, heic = Photographs(5600, 4200), Photographs(4032, 3024, "HEIF")
    photographs = {"": small, "large, ": large, "HEIC, ": heic}
    addresses = tuple(f"198.51.100.{i + 1}" for i in range(arguments.addresses))
    record = defaultdict[str, list[dict[str, Any]]](list)
    with tempfile.TemporaryDirectory(prefix="kedge-attacks-") as folder:
        for kind, options in {"no tokens": (), "tokens": ("--tokens",)}.items():
            if arguments.addresses > 1 and not options:
                continue  # all of them are one client then
            server = ServerProcess(Path(folder, kind.replace(" ", "-")), *options)
            server.start()
            words = re.findall(r"kedge_([a-z]+)_([\w-]+)", server.log.read_text())
            tokens = {role: f"kedge_{role}_{rest}" for role, rest in words}
            roles = (tokens.get("teach", ""), tokens.get("ask", ""))
            target = Target(server.port, *roles, arguments.patience, addresses if options else ())
            try:
                teacher = target.client()
                for name in ("one", "two"):
                    teacher.teach(name, [small.new()])
                for name, n, attack in chosen * arguments.runs:
                    if name in ("no token", "wrong tokens") and not target.token:
                        continue
                    beside = innocents(target, photographs)
                    found = attacked(server, target, n, attack, arguments.seconds, beside)
                    title = (
                        f"{name} ({kind}, {pluralize(arguments.addresses, 'address', 'addresses')})"
                    )
                    record[title].append(found)
                    print(f"{title}: {json.dumps(found)}", flush=True)
                    if "bombs" in name:  # or the sender would have to wait before the next
                        server.kill(signal.SIGTERM)
                        server.start()
            finally:
                server.kill(signal.SIGTERM)
    if arguments.out is not None:
        lines = (f"{json.dumps(title)}: {json.dumps(runs)}" for title, runs in record.items())
        arguments.out.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
