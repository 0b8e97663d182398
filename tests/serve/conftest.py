"""A server in a thread of the test process, on a project that starts from a tiny model."""

from __future__ import annotations

import io
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import kedge
from kedge.serve import improve, rounds
from kedge.serve.client import Client
from kedge.serve.limits import Limits
from kedge.serve.project import Project, open_project
from kedge.serve.security import Listen, Tokens
from kedge.serve.server import make_server
from kedge.serve.service import Service, Settings

TIMEOUT = 60  # seconds


@dataclass
class Running:
    """A server that answers."""

    service: Service
    port: int
    words: dict[str, str]  # tokens by role
    clients: list[Client] = field(default_factory=list)

    @property
    def project(self) -> Project:
        return self.service.project

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, role: str = "") -> Client:
        self.clients.append(Client(self.address, self.words.get(role, ""), TIMEOUT))
        return self.clients[-1]

    def raw(self, request: bytes, timeout: float = TIMEOUT) -> bytes:
        """What the server sends back to some bytes until it closes the connection."""
        with socket.create_connection(("127.0.0.1", self.port), timeout) as connection:
            connection.sendall(request)
            parts = []
            while part := connection.recv(1 << 16):
                parts.append(part)
        return b"".join(parts)


Serving = Callable[..., AbstractContextManager[Running]]


@pytest.fixture(scope="session")
def serving() -> Serving:
    """Serve a folder: `with serving(folder, model, tokens=True, picture_bytes=1000) as running`."""

    @contextmanager
    def serve(
        folder: Path, model: Path | None = None, tokens: bool = False, **limits: Any
    ) -> Iterator[Running]:
        folder.mkdir(exist_ok=True)
        made, words = Tokens.make(folder) if tokens else (None, {})
        bound = socket.create_server(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        settings = Settings(Listen("127.0.0.1", port), made, Limits(**{"free_bytes": 0, **limits}))
        with open_project(folder, model) as project:
            service = Service(project, settings)
            server = make_server(service)
            thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
            thread.start()
            running = Running(service, port, words)
            try:
                end = time.monotonic() + TIMEOUT
                while not server.started:
                    assert time.monotonic() < end
                    time.sleep(0.01)
                yield running
            finally:
                for client in running.clients:
                    client.close()
                server.should_exit = True
                thread.join(TIMEOUT)
                service.close()
                bound.close()

    return serve


@pytest.fixture(scope="session")
def tiny_model(first: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six classes of small grey drawings, untrained."""
    path = tmp_path_factory.mktemp("tiny") / "tiny.kedge"
    kedge.train(str(first), backbone="conv4", width=4, train="none").save(path)
    return path


@pytest.fixture
def running(serving: Serving, tiny_model: Path, tmp_path: Path) -> Iterator[Running]:
    with serving(tmp_path / "project", tiny_model) as running:
        yield running


@pytest.fixture
def client(running: Running) -> Client:
    return running.client()


class InstantProcess:
    """In place of the process of a round: the round runs in the thread that waits for it."""

    pid, stdin, returncode = 0, None, 0

    def __init__(self, folder: Path) -> None:
        self.folder, self.lock, self.done = folder, threading.Lock(), False

    def wait(self, timeout: float | None = None) -> int:
        with self.lock:
            if not self.done:
                improve.run(self.folder)
                self.done = True
        return 0

    def terminate(self) -> None:
        self.done, self.returncode = True, -15


@pytest.fixture
def instant_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "start_process", InstantProcess)


def noise_picture(seed: object, side: int = 24, kind: str = "PNG") -> bytes:
    """A picture like no other."""
    pixels = random.Random(repr(seed)).randbytes(side * side * 3)
    file = io.BytesIO()
    Image.frombytes("RGB", (side, side), pixels).save(file, kind)
    return file.getvalue()


@pytest.fixture(scope="session")
def picture() -> Callable[..., bytes]:
    return noise_picture


@pytest.fixture(scope="session")
def drawings(second: Path) -> dict[str, list[Path]]:
    """The classes of the second delivery, with the files of their drawings."""
    return {folder.name: sorted(folder.iterdir()) for folder in sorted(second.iterdir())}
