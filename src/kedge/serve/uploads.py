"""Pictures read from a request's body as it arrives, within limits, one in memory at a time."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from kedge.serve.limits import Held, Limits, Refused, too_large
from kedge.utils.text import format_bytes, pluralize

LONGEST_NAME = 255  # characters of a file's name that are kept
MOST_HEADERS = 16
MOST_PARTS = 20  # of a form, for each picture that a request may have
WAITING_BYTES = 64 << 20  # of one request's pictures that are being decoded
WAITING = 16  # pictures of one request
T = TypeVar("T")


@dataclass
class Upload:
    """An uploaded file, or why it is not taken."""

    name: str
    content: bytes = b""
    refused: str = ""


async def received(request: Request, limits: Limits) -> AsyncIterator[bytes]:
    """The body in parts. Raises Refused for a sender that stops, is too slow or sends too much."""
    waited, n = -limits.silence, 0  # a sender that the server keeps waiting is not slow
    parts = request.stream().__aiter__()
    while True:
        began = time.monotonic()
        try:
            async with asyncio.timeout(limits.silence):
                part = await anext(parts)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise Refused(408, f"Nothing was sent for {limits.silence:g} s.") from None
        n += len(part)
        if n > limits.request_bytes:
            raise too_large("This request", limits.request_bytes)
        waited += time.monotonic() - began
        if waited > 0 and n < waited * limits.least_rate and len(part):
            raise Refused(408, "The pictures were sent too slowly; try again.")
        yield part


async def read_uploads(
    request: Request, limits: Limits, held: Held
) -> AsyncGenerator[Upload, None]:
    """The files of a form (multipart/form-data), or the body itself as one picture.

    `held` grows with each byte that is kept; who takes a picture makes it smaller again.
    """
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > limits.request_bytes:
        raise too_large("This request", limits.request_bytes)
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    if kind == b"multipart/form-data":
        boundary = options.get(b"boundary", b"")
        if not boundary:
            raise Refused(400, "The form has no boundary in its Content-Type.")
        reader: _FormReader | _BodyReader = _FormReader(boundary, limits, held)
    elif kind.startswith(b"image/") or kind == b"application/octet-stream":
        reader = _BodyReader(limits, held)
    else:
        raise Refused(415, "Send pictures as files of a form (multipart/form-data), or as image/*.")
    async for part in received(request, limits):
        reader.write(part)
        while reader.complete:
            yield reader.complete.popleft()
    reader.finish()
    while reader.complete:
        yield reader.complete.popleft()


@dataclass
class _File:
    """A file that is being received."""

    name: str
    limits: Limits
    held: Held
    content: bytearray = field(default_factory=bytearray)
    refused: str = ""

    def write(self, data: bytes) -> None:
        if self.refused:
            return
        if len(self.content) + len(data) > self.limits.picture_bytes:
            self.refuse(f"larger than {format_bytes(self.limits.picture_bytes)}")
            return
        self.held.set(self.held.n + len(data))
        self.content += data

    def refuse(self, reason: str) -> None:
        self.refused = reason
        self.held.set(self.held.n - len(self.content))
        self.content = bytearray()

    def upload(self) -> Upload:
        if not self.refused and not self.content:
            self.refused = "an empty file"
        return Upload(self.name, bytes(self.content), self.refused)


class _BodyReader:
    """One picture that is the whole body."""

    def __init__(self, limits: Limits, held: Held) -> None:
        self.file, self.complete = _File("picture", limits, held), deque[Upload]()
        self.write = self.file.write

    def finish(self) -> None:
        self.complete.append(self.file.upload())


class _FormReader:
    """The files of a form, in the order in which they end."""

    def __init__(self, boundary: bytes, limits: Limits, held: Held) -> None:
        self.limits, self.held = limits, held
        self.complete = deque[Upload]()
        self.n, self.n_parts, self.ended = 0, 0, False
        self.file: _File | None = None
        self._clear_headers()
        callbacks = {
            "on_part_begin": self._on_part,
            "on_header_field": self._on_field,
            "on_header_value": self._on_value,
            "on_header_end": self._on_header,
            "on_headers_finished": self._on_headers,
            "on_part_data": self._on_data,
            "on_part_end": self._on_end,
            "on_end": self._on_form_end,
        }
        try:
            self.parser = MultipartParser(boundary, callbacks, max_header_count=MOST_HEADERS)  # type: ignore[arg-type]
        except FormParserError:
            raise Refused(400, "The form's boundary is too long.") from None

    def write(self, data: bytes) -> None:
        try:
            self.parser.write(data)
        except FormParserError:
            raise Refused(400, "The form is damaged.") from None

    def finish(self) -> None:
        if not self.ended:
            raise Refused(400, "The form ends in the middle.")

    def _on_part(self) -> None:
        self.n_parts += 1
        if self.n_parts > MOST_PARTS * self.limits.request_pictures:
            raise Refused(413, "The form has far more parts than a request may have pictures.")
        self._clear_headers()

    def _clear_headers(self) -> None:
        self.key, self.value, self.disposition = b"", b"", b""

    def _on_field(self, data: bytes, start: int, end: int) -> None:
        self.key += data[start:end]

    def _on_value(self, data: bytes, start: int, end: int) -> None:
        self.value += data[start:end]

    def _on_header(self) -> None:
        if self.key.lower() == b"content-disposition":
            self.disposition = self.value
        self.key, self.value = b"", b""

    def _on_headers(self) -> None:
        _, options = parse_options_header(self.disposition)
        name = options.get(b"filename")
        self.file = None
        if name:  # else a field, or a choice of no file
            self.n += 1
            self.file = _File(shown_name(name), self.limits, self.held)
            if self.n > self.limits.request_pictures:
                most = pluralize(self.limits.request_pictures, "picture")
                self.file.refuse(f"more than {most} in one request")

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        if self.file is not None:
            self.file.write(data[start:end])

    def _on_end(self) -> None:
        if self.file is not None:
            self.complete.append(self.file.upload())
            self.file = None

    def _on_form_end(self) -> None:
        self.ended = True


def shown_name(name: bytes) -> str:
    """A file's name without folders. It is shown only: no file ever gets it."""
    text = name.decode(errors="replace").replace("\\", "/").rpartition("/")[2]
    text = "".join(c if c.isprintable() else "�" for c in text)
    return text[:LONGEST_NAME] or "picture"


async def in_order(
    uploads: AsyncGenerator[Upload, None], held: Held, work: Callable[[Upload], Awaitable[T]]
) -> AsyncGenerator[T, None]:
    """The results of work on each upload, in their order; some are worked on at once."""
    waiting: deque[asyncio.Task[T]] = deque()

    async def run(upload: Upload) -> T:
        try:
            return await work(upload)
        finally:
            held.set(held.n - len(upload.content))

    try:
        async for upload in uploads:
            waiting.append(asyncio.create_task(run(upload)))
            while waiting and (len(waiting) >= WAITING or held.n > WAITING_BYTES):
                yield await waiting.popleft()
        while waiting:
            yield await waiting.popleft()
    finally:
        await uploads.aclose()
        for task in waiting:
            task.cancel()
        for task in waiting:
            with suppress(BaseException):
                await task
