"""The running program: HTTP on a socket, graceful stop, and limits of connections."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from kedge.errors import KedgeError
from kedge.serve import decoding
from kedge.serve.app import make_app
from kedge.serve.monitoring import log
from kedge.serve.project import open_project
from kedge.serve.service import Service, Settings

HEAD_SECONDS = 5.0  # for the head of a request
KEEP_ALIVE_SECONDS = 15
MOST_CONNECTIONS = 512  # of one address
STOP_SECONDS = 10  # for requests that are being answered when the server stops


class LimitedProtocol(H11Protocol):
    """HTTP/1.1 that closes connections which send no request, and too many of one client."""

    head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        host = self.client[0] if self.client else ""
        clients = [each.client for each in self.connections if isinstance(each, H11Protocol)]
        same = sum(client is not None and client[0] == host for client in clients)
        if same > MOST_CONNECTIONS:
            transport.abort()
            return
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
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

    def _give_up(self) -> None:
        self.head_timer = None
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
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
    settings: Settings,
    model: Path | None = None,
    ready: Callable[[Service, socket.socket], None] = lambda service, socket: None,
) -> None:
    """Serve a project until the process is told to stop. `ready` is called before requests are
    answered, with the socket that they will come to."""
    bound = bind(settings.listen.host, settings.listen.port)
    with bound, open_project(folder, model) as project:
        service = Service(project, settings)
        try:
            decoding.start_worker()
            ready(service, bound)
            run(service, bound)
        finally:
            service.close()
    log("stopped")


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
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=STOP_SECONDS,
        backlog=1024,
    )
    return uvicorn.Server(config)
