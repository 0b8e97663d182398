"""A server of its own for each test, and Debian's Chromium to look at it."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Browser = Any  # of Playwright, which is not typed strictly
Page = Any

FLOWERS = Path(__file__).parents[4] / "shared" / "data" / "flowers-102" / "flowers-102.zip"
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
SECONDS = 60  # for a server to start or to stop
WAIT = 30_000  # ms: for what the page shows, on a machine that is busy


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    program = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if program is None:
        pytest.skip("no Chromium is installed")
    options = [
        "--no-sandbox",
        "--use-fake-device-for-media-stream",
        "--use-fake-ui-for-media-stream",
    ]
    playwright.expect.set_options(timeout=WAIT)
    with playwright.sync_playwright() as engine:
        opened = engine.chromium.launch(executable_path=program, args=options)
        yield opened
        opened.close()


@pytest.fixture
def new_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """A function that opens an address in a browser of its own (cookies and storage).

    A test fails if a page has an error, or asks another server than its own for anything.
    """
    contexts, faults = [], []

    def open_page(address: str, **options: Any) -> Page:
        context = browser.new_context(accept_downloads=True, **options)
        context.set_default_timeout(WAIT)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda request: faults.extend(foreign(request.url, address)))
        page.on("console", lambda message: faults.extend(refusals_of_policy(message.text)))
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert faults == []


def foreign(url: str, address: str) -> list[str]:
    origin = "/".join(address.split("/")[:3])
    return [] if url.startswith((origin, "blob:", "data:")) else [url]


def refusals_of_policy(text: str) -> list[str]:
    return [text] if "Content Security Policy" in text else []


class Server:
    """`kedge serve` in a process of its own, which can be killed and started again."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder, self.options = folder, options
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}/"
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "kedge", "serve", str(self.folder)]
        command += ["--listen", f"127.0.0.1:{self.port}", *self.options]
        self.log = self.folder.with_suffix(".log")
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        end = time.monotonic() + SECONDS
        while not self.answers():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < end, self.log.read_text()
            time.sleep(0.1)

    def answers(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex(("127.0.0.1", self.port)):
                return False
            probe.sendall(b"GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n")
            try:
                return b" 200 " in probe.recv(64)
            except OSError:
                return False

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(SECONDS)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Server]]:
    """A function that starts a server on a new project."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    servers: list[Server] = []

    def start(*options: str) -> Server:
        servers.append(Server(tmp_path / f"project-{len(servers)}", *options))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture(scope="session")
def flowers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """16 photographs of each of 20 kinds of flowers."""
    if not FLOWERS.exists():
        pytest.skip(f"needs the photographs of flowers, {FLOWERS.name}")
    folder, found = tmp_path_factory.mktemp("flowers"), {}
    with zipfile.ZipFile(FLOWERS) as packed:
        names = sorted(name for name in packed.namelist() if name.endswith(".jpg"))
        kinds = sorted({name.split("/")[-2] for name in names})[:20]
        for kind in kinds:
            mine = [name for name in names if name.split("/")[-2] == kind][:16]
            found[kind] = [Path(packed.extract(name, folder)) for name in mine]
    return found
