"""Attacks on `kedge serve`, which serve_attacks.py runs: each function is one attempt."""

from __future__ import annotations

import http.client
import io
import os
import random
import re
import socket
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from PIL import Image

from kedge.serve.client import Client, ServerError

FORMS = 25  # attackers that send forms, at once
MANY = 200  # attackers that send slowly, at once
FORM = {"Content-Type": "multipart/form-data; boundary=x"}
Attack = Callable[["Target", int], str]  # one attempt; returns what it was answered


@dataclass
class Target:
    """A server, as its attackers see it."""

    port: int
    token: str = ""
    other_token: str = ""
    patience: float = 60.0  # seconds, after which an attacker leaves
    addresses: tuple[str, ...] = ()  # of the attackers, as a proxy would name them; none: loopback
    end: float = 0.0

    def raw(self, method: str, path: str, headers: dict[str, str], body: bytes = b"") -> str:
        """The status of a request whose every byte is chosen, or how the connection ended."""
        with socket.create_connection(("127.0.0.1", self.port), 60) as connection:
            with suppress(OSError):  # cut off while sending; there may be an answer nevertheless
                connection.sendall(self.head(method, path, headers, len(body)) + body)
            return status_of(connection)

    def head(self, method: str, path: str, headers: dict[str, str], length: int) -> bytes:
        lines = {
            "Host": "127.0.0.1",
            "X-Kedge": "1",
            "Content-Type": "application/json",
            "Content-Length": str(length),
            "Connection": "close",
            "Authorization": f"Bearer {self.token}" if self.token else "",
            "X-Forwarded-For": self.addresses[0] if self.addresses else "",
            **headers,
        }
        text = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value)
        return f"{method} {path} HTTP/1.1\r\n{text}\r\n".encode("latin-1")

    def client(
        self, token: str | None = None, timeout: float = 120, address: str | None = None
    ) -> Client:
        """A client, whose address is that of the first attacker unless it is given."""
        token = self.token if token is None else token
        client = Client(f"http://127.0.0.1:{self.port}", token, timeout)
        if address or self.addresses:
            client.headers["X-Forwarded-For"] = address or self.addresses[0]
        return client

    def ask(self, pictures: list[tuple[str, bytes]], i: int) -> str:
        """The status of a form, and why its pictures were refused."""
        address = self.addresses[i % len(self.addresses)] if self.addresses else None
        client = self.client(timeout=self.patience, address=address)
        try:
            said = client.ask(pictures)
        except ServerError as error:
            return str(error.status)
        except (OSError, http.client.HTTPException) as error:
            return type(error).__name__
        finally:
            client.close()
        reasons = {re.sub(r"[0-9.]+ s\b", "N s", each["reason"]) for each in said["refused"]}
        return "200: " + ("; ".join(sorted(reasons)) or "answered")


def status_of(connection: socket.socket) -> str:
    try:
        said = connection.recv(1 << 16)
    except OSError as error:
        return type(error).__name__
    return said.split()[1].decode() if said.startswith(b"HTTP/") else "closed"


# ── pictures ─────────────────────────────────────────────────────────────────────────────────


def png(width: int, height: int, claimed: int = 0) -> bytes:
    """A flat picture, which may claim to have another side."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + checksum

    packer, row = zlib.compressobj(9), bytes(1 + 3 * width)
    data = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    head = struct.pack(">IIBBBBB", claimed or width, claimed or height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def jpeg_of_scans(width: int, height: int, n: int) -> bytes:
    """A flat progressive JPEG with n further scans, each of which goes through all of it."""
    content = encoded(Image.new("RGB", (width, height), (90, 100, 110)), progressive=True)
    scan = content[content.rfind(b"\xff\xda") : -2]
    return content[:-2] + scan * n + b"\xff\xd9"


def encoded(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    pixels = random.Random(seed).randbytes(width * height * 3)
    return Image.frombytes("RGB", (width, height), pixels)


# ── attacks ──────────────────────────────────────────────────────────────────────────────────

PATHS = (
    "/static/../../cli/serve.py",
    "/static/%2e%2e/%2e%2e/errors.py",
    "/static/..%2f..%2ferrors.py",
    "/api/pictures/..%2f..%2fproject.sqlite/thumbnail",
    "/api/versions/..%2f1/model",
    "/%00",
)
FOREIGN = (
    {"X-Kedge": ""},
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Host": "evil.example"},
)
SCRIPT = b'{"name": "<script>alert(1)</script> %d"}'


def path_tricks(target: Target, i: int) -> str:
    return target.raw("GET", PATHS[i % len(PATHS)], {})


def cross_site(target: Target, i: int) -> str:
    return target.raw("POST", "/api/classes", FOREIGN[i % len(FOREIGN)], b'{"name": "evil"}')


def script_in_a_name(target: Target, i: int) -> str:
    """The name is taken, and shown as text: tests/serve/browser has that."""
    return target.raw("POST", "/api/classes", {}, SCRIPT % i)


def missing_token(target: Target, i: int) -> str:
    return target.raw("GET", "/api/state", {"Authorization": ""})


def wrong_token(target: Target, i: int) -> str:
    return target.raw("GET", "/api/state", {"Authorization": f"Bearer kedge_improve_{i}"})


def large_body(target: Target, i: int) -> str:
    headers = {"Content-Type": ("image/png", "application/json")[i % 2]}
    return target.raw("POST", "/api/classes", headers, bytes(4 << 20))


def large_picture(target: Target, i: int) -> str:
    return target.ask([("large", bytes(33 << 20))], i)


def body_in_chunks(target: Target, i: int) -> str:
    headers = {**FORM, "Content-Length": "", "Transfer-Encoding": "chunked"}
    return target.raw("POST", "/api/ask", headers, b"1\r\nx\r\n" * 10_000)


def many_parts(target: Target, i: int) -> str:
    part = b'--x\r\nContent-Disposition: form-data; name="f"; filename="a"\r\n\r\n\r\n'
    return target.raw("POST", "/api/ask", FORM, part * 100_000 + b"--x--\r\n")


def slow_head(target: Target, i: int) -> str:
    return _slowly(target, b"GET / HTTP/1.1\r\nX: " + b"y" * 100)


def slow_body(target: Target, i: int) -> str:
    part = b'--x\r\nContent-Disposition: form-data; name="f"; filename="a"\r\n\r\n'
    return _slowly(target, target.head("POST", "/api/ask", FORM, 1 << 20) + part + b"y" * 100)


def damaged_form(target: Target, i: int) -> str:
    return target.raw("POST", "/api/ask", FORM, b"--x\r\n" * 20)


def _slowly(target: Target, content: bytes) -> str:
    with socket.create_connection(("127.0.0.1", target.port), 60) as connection:
        quick = max(0, len(content) - 60)
        connection.sendall(content[:quick])
        for byte in content[quick:]:
            try:
                connection.sendall(bytes([byte]))
                connection.settimeout(0.25)
                if said := connection.recv(100):
                    return said.split()[1].decode()
                return "closed"
            except TimeoutError:
                if time.monotonic() > target.end:
                    return "still open at the end"
            except OSError:
                return "closed"
    return "never cut off"


def bombs(*pictures: bytes) -> Attack:
    def attack(target: Target, i: int) -> str:
        # No two files are the same, so that no answer comes from the cache.
        named = [(f"{i}", each + b"%d %d" % (os.getpid(), i)) for each in pictures]
        return target.ask(named * 2, i)

    return attack


def attacks() -> Iterator[tuple[str, int, Attack]]:
    """Each attack, and how many do it at once."""
    yield "nothing", 0, path_tricks  # how long others wait without any attack
    yield "path tricks", 4, path_tricks
    yield "requests of other sites", 4, cross_site
    yield "scripts in names", 2, script_in_a_name
    yield "no token", 4, missing_token
    yield "wrong tokens", 4, wrong_token
    yield "large bodies", 4, large_body
    yield "pictures of 33 MB", 4, large_picture
    yield "bodies in chunks of a byte", FORMS, body_in_chunks
    yield "forms of 100,000 empty files", 4, many_parts
    yield "damaged forms", FORMS, damaged_form
    yield "heads sent slowly", MANY, slow_head
    yield "bodies sent slowly", MANY, slow_body
    claimed, flat = png(4, 4, 60_000), png(9000, 9000)
    yield "bombs: PNG of 81 and 3,600 MP", FORMS, bombs(claimed, flat)
    yield "bombs: JPEG, 12 MP, 3,000 scans", FORMS, bombs(jpeg_of_scans(4080, 3060, 3000))
    slow = encoded(noise(4080, 3060), "WEBP", quality=80, method=0)
    yield "bombs: WebP of noise, 12 MP", FORMS, bombs(slow)
    yield "bombs: PNG of 25 MP", FORMS, bombs(png(5000, 5000))  # takes long, but is answered
    scans = jpeg_of_scans(7000, 7000, 3000)
    yield "large bombs: JPEG, 49 MP, 3,000 scans", FORMS, bombs(scans)
    yield "large bombs: the same with 28 MB behind", 6, bombs(scans + bytes(28 << 20))
    yield "large bombs: TIFF, JPEG 2000, 49 MP", FORMS, bombs(*large_bombs())


def large_bombs() -> Iterator[bytes]:
    yield encoded(Image.new("RGB", (7000, 7000)), "TIFF", compression="lzma")
    tile = noise(700, 700).resize((7000, 7000))
    yield encoded(tile, "JPEG2000", quality_mode="rates", quality_layers=[20])
