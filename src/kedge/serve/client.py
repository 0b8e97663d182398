"""A client of `kedge serve`, for programs. Needs the standard library alone.

project = Client("http://127.0.0.1:8600")
project.teach("tulip", ["one.jpg", "two.jpg"])
for answer in project.ask(["what.jpg"])["answers"]:
    print(answer["name"], answer["answer"])
"""

from __future__ import annotations

import http.client
import json
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

TOGETHER = 50  # pictures in one request
Picture = str | Path | bytes | tuple[str, bytes]  # a path, a content, or a name and a content


class ServerError(Exception):
    """The server has refused a request; the text is its sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Client:
    """A connection to a server. Used by one thread at a time."""

    def __init__(
        self, address: str = "http://127.0.0.1:8600", token: str = "", timeout: float = 300.0
    ) -> None:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{address}: give an address such as http://127.0.0.1:8600")
        kinds = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
        self.connection = kinds[parts.scheme](parts.hostname, parts.port, timeout=timeout)
        self.headers = {"X-Kedge": "1", **({"Authorization": f"Bearer {token}"} if token else {})}

    def close(self) -> None:
        self.connection.close()

    def request(
        self, method: str, path: str, body: bytes | None = None, content_type: str = ""
    ) -> bytes:
        """The body of the answer. Raises ServerError if the server refuses, and OSError if there
        is none."""
        headers = {**self.headers, **({"Content-Type": content_type} if content_type else {})}
        fresh = self.connection.sock is None
        try:
            self.connection.request(method, path, body, headers)
            response = self.connection.getresponse()
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
            # An idle connection was closed by the server: try once more, where that is harmless.
            self.connection.close()
            if fresh or method != "GET":
                raise
            self.connection.request(method, path, body, headers)
            response = self.connection.getresponse()
        except Exception:
            self.connection.close()
            raise
        content = response.read()
        if response.will_close:
            self.connection.close()
        if response.status >= 400:
            raise ServerError(response.status, _sentence(content, response.status))
        return content

    def get(self, path: str) -> Any:
        return json.loads(self.request("GET", path))

    def send(self, method: str, path: str, value: Any = None) -> Any:
        body = b"" if value is None else json.dumps(value).encode()
        return json.loads(self.request(method, path, body, "application/json"))

    # ── classes and pictures ─────────────────────────────────────────────────────────────────

    def state(self) -> dict[str, Any]:
        return dict(self.get("/api/state"))

    def classes(self) -> list[dict[str, Any]]:
        return list(self.get("/api/classes")["classes"])

    def make_class(self, name: str) -> int:
        return int(self.send("POST", "/api/classes", {"name": name})["id"])

    def teach(self, name: str, pictures: Iterable[Picture]) -> dict[str, list[dict[str, str]]]:
        """Add pictures to a class, which is made if there is none of this name."""
        ids = {each["name"]: each["id"] for each in self.classes()}
        class_id = ids[name] if name in ids else self.make_class(name)
        said: dict[str, list[dict[str, str]]] = {"added": [], "refused": [], "known": []}
        for part in _parts(pictures):
            answer = self._send_pictures(f"/api/classes/{class_id}/pictures", part)
            for key, items in said.items():
                items += answer[key]
        return said

    def delete_picture(self, sha256: str) -> None:
        self.send("DELETE", f"/api/pictures/{quote(sha256)}")

    # ── asking ───────────────────────────────────────────────────────────────────────────────

    def ask(
        self, pictures: Iterable[Picture], *, reject: float | None = None, top: int = 3
    ) -> dict[str, Any]:
        """Answers about any number of pictures, which are sent in several requests."""
        options = {"top": top, **({} if reject is None else {"reject": reject})}
        said: dict[str, Any] = {"answers": [], "refused": []}
        for part in _parts(pictures):
            answer = self._send_pictures(f"/api/ask?{urlencode(options)}", part)
            said["version"] = answer["version"]
            for key in ("answers", "refused"):
                said[key] += answer[key]
        return said

    # ── rounds and versions ──────────────────────────────────────────────────────────────────

    def improve(self, **settings: Any) -> int:
        """Start a round; returns its number."""
        return int(self.send("POST", "/api/rounds", {"settings": settings})["id"])

    def job(self, number: int) -> dict[str, Any]:
        return dict(self.get(f"/api/jobs/{number}"))

    def wait(self, number: int, seconds: float = 0.5) -> dict[str, Any]:
        """The round when it has ended, however it did."""
        while (job := self.job(number))["state"] in ("queued", "running"):
            time.sleep(seconds)
        return job

    def versions(self) -> list[dict[str, Any]]:
        return list(self.get("/api/versions")["versions"])

    def activate(self, version: int) -> dict[str, Any]:
        return dict(self.send("POST", f"/api/versions/{version}/activate"))

    def discard(self, version: int) -> None:
        self.send("POST", f"/api/versions/{version}/discard")

    def forget(self, version: int) -> dict[str, Any]:
        """Delete the pictures that a version was trained on, for good."""
        return dict(self.send("POST", f"/api/versions/{version}/forget", {"confirm": True}))

    def model(self, version: int) -> bytes:
        """A version's model file."""
        return self.request("GET", f"/api/versions/{version}/model")

    def _send_pictures(self, path: str, pictures: Sequence[tuple[str, bytes]]) -> Any:
        boundary = secrets.token_hex(16)
        body = bytearray()
        for name, content in pictures:
            shown = name.translate({ord(c): f"%{ord(c):02X}" for c in '"\\\r\n'})  # as browsers do
            body += (
                f'--{boundary}\r\nContent-Disposition: form-data; name="files"; '
                f'filename="{shown}"\r\nContent-Type: application/octet-stream\r\n\r\n'
            ).encode(errors="replace")
            body += content + b"\r\n"
        body += f"--{boundary}--\r\n".encode()
        kind = f"multipart/form-data; boundary={boundary}"
        return json.loads(self.request("POST", path, bytes(body), kind))


def _parts(pictures: Iterable[Picture]) -> Iterator[list[tuple[str, bytes]]]:
    part: list[tuple[str, bytes]] = []
    for picture in pictures:
        part.append(_named(picture))
        if len(part) == TOGETHER:
            yield part
            part = []
    if part:
        yield part


def _named(picture: Picture) -> tuple[str, bytes]:
    if isinstance(picture, bytes):
        return "picture", picture
    if isinstance(picture, tuple):
        return picture
    path = Path(picture)
    return path.name, path.read_bytes()


def _sentence(content: bytes, status: int) -> str:
    try:
        return str(json.loads(content)["error"])
    except (ValueError, KeyError, TypeError):
        return f"The server has answered with the status {status}."
