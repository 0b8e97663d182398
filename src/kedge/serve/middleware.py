"""What every request goes through: origin, role, limits of small bodies, headers, metrics, log."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from http.cookies import CookieError, SimpleCookie
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kedge.serve import security
from kedge.serve.limits import Client, Refused, network_of, too_large
from kedge.serve.monitoring import LOGGER, log
from kedge.serve.service import Service

LONGEST_PATH = 200  # characters of a path in the log
LONGEST_CLIENT = 64  # characters of an address
GONE = 499  # in logs and metrics: the client did not wait for the answer
METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")
UPLOADS = re.compile(r"/api/(ask|classes/[0-9]+/pictures)")  # these read their bodies themselves


class Guard:
    """An ASGI middleware. Errors of any kind become one sentence as JSON."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app, self.service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status, has_left = time.perf_counter(), 0, False
        work, watching = asyncio.current_task(), list[asyncio.Task[None]]()

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                given = message.get("headers", [])
                private = not any(name == b"cache-control" for name, _ in given)
                message["headers"] = [*given, *_HEADERS, *(_NO_STORE if private else ())]
            await send(message)

        async def receive_pictures() -> Message:
            message = await receive()
            if message["type"] == "http.request" and not message.get("more_body"):
                watching.append(asyncio.create_task(watch()))
            return message

        async def watch() -> None:
            """Stop the work on pictures whose sender does not wait for the answer."""
            nonlocal has_left
            await receive()  # after the body nothing comes until the client has left or its answer
            if not status and work is not None:
                has_left = True
                work.cancel()

        headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}
        try:
            method, path = scope["method"], scope["path"]
            security.check_origin(method, path, headers, self.service.settings.listen)
            scope["kedge_role"] = self._role(scope, headers)
            body: Receive = receive_pictures
            if not UPLOADS.fullmatch(path):
                body = await self._buffered(headers, receive)
            await self.app(scope, body, send_with_headers)
        except Refused as refused:
            if not status:
                await answer_to(refused)(scope, receive, send_with_headers)
        except ClientDisconnect:
            status = GONE
        except asyncio.CancelledError:
            status = status or GONE
            if not has_left:
                raise
        except Exception:
            LOGGER.error("a fault of kedge", exc_info=True)
            if not status:
                fault = Refused(500, "This is a fault of kedge; the server's log has more.")
                await answer_to(fault)(scope, receive, send_with_headers)
        finally:
            for task in watching:
                task.cancel()
            self._tell(scope, status, time.perf_counter() - began)

    def _role(self, scope: Scope, headers: dict[str, str]) -> str | None:
        """The role that a request has shown; None if it has shown none."""
        tokens = self.service.settings.tokens
        if tokens is None:
            return security.ROLES[-1]
        client = network_of(address_of(scope))
        kind, _, token = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return self.service.role_of_token(tokens, token, client)
        try:
            morsel = SimpleCookie(headers.get("cookie", "")).get(tokens.cookie)
        except CookieError:
            return None
        return None if morsel is None else tokens.role_of_session(morsel.value)

    async def _buffered(self, headers: dict[str, str], receive: Receive) -> Receive:
        """A small body, read to its end within limits."""
        limits = self.service.limits
        length, body, more = headers.get("content-length", ""), b"", True
        if length.isdecimal() and int(length) > limits.json_bytes:
            raise too_large("This request", limits.json_bytes)
        try:
            async with asyncio.timeout(limits.silence):
                while more:
                    message = await receive()
                    body += message.get("body", b"")
                    more = message.get("more_body", False)
                    if len(body) > limits.json_bytes:
                        raise too_large("This request", limits.json_bytes)
        except TimeoutError:
            raise Refused(408, f"The request did not arrive in {limits.silence:g} s.") from None
        unread = True

        async def again() -> Message:
            nonlocal unread
            if unread:
                unread = False
                return {"type": "http.request", "body": body, "more_body": False}
            return await receive()

        return again

    def _tell(self, scope: Scope, status: int, seconds: float) -> None:
        # The route's pattern, not the path: a path may be anything, and there are many.
        route = getattr(scope.get("route"), "path", "other")
        method = scope["method"] if scope["method"] in METHODS else "other"
        self.service.metrics.request(route, method, status, seconds)
        if status < 400 and scope["method"] in security.SAFE_METHODS:
            return
        log(
            "request",
            method=scope["method"],
            path=scope["path"][:LONGEST_PATH],
            status=status,
            ms=round(1000 * seconds, 1),
            role=scope.get("kedge_role"),
            client=address_of(scope),
        )


_HEADERS = [(k.encode(), v.encode()) for k, v in security.HEADERS.items()]
_NO_STORE = [(b"cache-control", b"no-store")]


def client_of(scope: Scope) -> Client:
    """Whose request this is, once its role is known."""
    return Client(str(scope["kedge_role"]), network_of(address_of(scope)))


def address_of(scope: Scope) -> str:
    client: Any = scope.get("client")
    return client[0][:LONGEST_CLIENT] if client else "?"  # a proxy may say anything


def answer_to(refused: Refused) -> Response:
    """A refusal as one sentence in JSON."""
    body = json.dumps({"error": str(refused)}, ensure_ascii=False).encode(errors="replace")
    wait = {"retry-after": str(int(refused.retry_after) + 1)} if refused.retry_after else {}
    return Response(body, refused.status, wait, "application/json")


logging.getLogger("kedge.serve").addHandler(logging.NullHandler())
