"""The running program: HTTP on a socket, graceful stop, and limits of connections."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from kedge.errors import KedgeError
from kedge.serve import decoding
from kedge.serve.app import make_app
from kedge.serve.limits import network_of
from kedge.serve.monitoring import log
from kedge.serve.project import open_project
from kedge.serve.security import Listen
from kedge.serve.service import Service, Settings

HEAD_SECONDS = 5.0  # for the head of a request
REST_SECONDS = 10.0  # for the rest of a body that is not read, so that the sender gets the answer
KEEP_ALIVE_SECONDS = 15
MOST_CONNECTIONS = 512  # of one address
OPEN_FILES = 1 << 16  # of this process, if the system allows as many
STOP_SECONDS = 10  # for requests that are being answered when the server stops
HEAD_BYTES = 1 << 14  # of a request
READ_BYTES = 1 << 15  # at a time, so that what is slow to parse keeps nobody else waiting
_connections = Counter[tuple[int, str]]()  # of servers of this process, by client address
INVALID = "This is no valid HTTP request; one with a body needs a Content-Length."


class WholeBodies(h11.Connection):
    """Takes no bodies in chunks: those of a byte each keep the parser busy, and so everybody."""

    def next_event(self) -> Any:
        event = super().next_event()
        names = [name for name, _ in event.headers] if isinstance(event, h11.Request) else []
        if b"transfer-encoding" in names:
            raise h11.RemoteProtocolError("a body in chunks")
        return event


class LimitedProtocol(H11Protocol):
    """HTTP/1.1 that closes connections which send no request, and too many of one client."""

    head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.conn = WholeBodies(h11.SERVER, HEAD_BYTES)
        transport.max_size = READ_BYTES  # type: ignore[attr-defined]
        address = network_of(self.client[0]) if self.client else ""
        self.counted = (id(self.server_state), address)
        _connections[self.counted] += 1
        if _connections[self.counted] > MOST_CONNECTIONS:
            transport.abort()
            return
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._expect_head()

    def on_response_complete(self) -> None:
        answered = self.cycle
        super().on_response_complete()  # may begin the next request
        if self.cycle is answered and self.conn.their_state is h11.SEND_BODY:
            self.loop.call_later(REST_SECONDS, self._give_up_rest, answered)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        _connections[self.counted] -= 1
        if not _connections[self.counted]:
            del _connections[self.counted]
        super().connection_lost(exc)

    def _expect_head(self) -> None:
        """Give the client seconds for the rest of a request's head, from its first byte on."""
        if self.conn.their_state is not h11.IDLE:
            self._stop_timer()
        elif self.head_timer is None:
            self.head_timer = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def _stop_timer(self) -> None:
        if self.head_timer is not None:
            self.head_timer.cancel()
            self.head_timer = None

    def send_400_response(self, msg: str) -> None:
        body = json.dumps({"error": INVALID}).encode()
        headers = {"content-type": "application/json", "connection": "close"}
        headers["content-length"] = str(len(body))
        parts = (h11.Response(status_code=400, headers=[*headers.items()]), h11.Data(data=body))
        for part in (*parts, h11.EndOfMessage()):
            self.transport.write(self.conn.send(part) or b"")
        self.transport.close()

    def _give_up(self) -> None:
        self.head_timer = None
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self.transport.abort()

    def _give_up_rest(self, answered: object) -> None:
        still = self.cycle is answered and self.conn.their_state is h11.SEND_BODY
        if still and not self.transport.is_closing():
            self.transport.abort()


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises KedgeError if the address is taken or not ours."""
    bound = None
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        if bound is not None:
            bound.close()
        reason = error.strerror or error
        raise KedgeError(
            f"--listen {host}:{port}: cannot listen there ({reason}); give another address or port."
        ) from None
    return bound


def serve(
    folder: Path,
    listen: Listen,
    settings: Callable[[], Settings],
    model: Path | None = None,
    ready: Callable[[Service, socket.socket], None] = lambda service, socket: None,
) -> None:
    """Serve a project until the process is told to stop. `settings` is called when no other server
    has the project, and `ready` before requests are answered, with the socket that they come to."""
    allow_many_connections()
    bound = bind(listen.host, listen.port)
    with bound, open_project(folder, model) as project:
        service = Service(project, settings())
        try:
            decoding.start_worker()
            ready(service, bound)
            run(service, bound)
        finally:
            service.close()
    log("stopped")


def allow_many_connections() -> None:
    """Raise the limit of open files, which is often 1024, as far as the system lets us."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        if 0 <= now < OPEN_FILES:
            wanted = OPEN_FILES if most == resource.RLIM_INFINITY else min(most, OPEN_FILES)
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def run(service: Service, bound: socket.socket) -> None:
    with suppress(KeyboardInterrupt):  # uvicorn sends the signal again when it has stopped
        make_server(service).run(sockets=[bound])


def make_server(service: Service) -> uvicorn.Server:
    config = uvicorn.Config(
        make_app(service),
        http=LimitedProtocol,
        ws="none",
        lifespan="on",
        loop="asyncio",
        access_log=False,
        log_config=None,
        log_level=logging.WARNING,
        server_header=False,
        # Of a proxy on this machine. Without tokens others could name an address for each request.
        proxy_headers=service.settings.tokens is not None,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=STOP_SECONDS,
        backlog=1024,
    )
    return uvicorn.Server(config)
