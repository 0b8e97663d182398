"""Attacks that have succeeded once: on memory, on time, and on what is kept private."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from starlette.requests import Request

from kedge.data.decode import ImageSpec
from kedge.serve import decoding, server, uploads
from kedge.serve.client import Client
from kedge.serve.decoding import DecodedPicture
from kedge.serve.limits import Budget, Limits, Refused
from kedge.serve.limits import Client as Account
from kedge.serve.security import Tokens

Running = Any  # of conftest.py, which cannot be imported
Serving = Any
Make = Callable[..., bytes]
FORM = {"Content-Type": "multipart/form-data; boundary=x"}


def request(
    method: str, path: str, headers: dict[str, str] | None = None, body: bytes = b""
) -> bytes:
    """A request as its bytes; a header that is '' is left out."""
    lines = {
        "Host": "127.0.0.1",
        "X-Kedge": "1",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "Connection": "close",
        **(headers or {}),
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value)
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body


@contextmanager
def running_threads() -> Iterator[Callable[[Callable[[], object]], None]]:
    """A function that starts threads, which are waited for in the end."""
    threads: list[threading.Thread] = []

    def start(work: Callable[[], object]) -> None:
        threads.append(threading.Thread(target=work))
        threads[-1].start()

    try:
        yield start
    finally:
        for thread in threads:
            thread.join()


def answer(said: bytes) -> tuple[int, dict[str, Any]]:
    return int(said.split()[1]), json.loads(said.partition(b"\r\n\r\n")[2])


# ── memory ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["image/png", "multipart/form-data; boundary=x"])
def test_only_uploads_may_be_large(kind: str, running: Running) -> None:
    """Whoever calls a small body a picture, without any token, must not fill the memory."""
    head = {"Content-Type": kind, "Content-Length": str(1 << 30)}
    assert answer(running.raw(request("POST", "/api/session", head)))[0] == 413


def test_a_form_has_few_parts(serving: Serving, tiny_model: Path, tmp_path: Path) -> None:
    """Each file that is refused takes memory until the answer is sent."""
    with serving(tmp_path / "project", tiny_model, request_pictures=2) as running:
        part = b'--x\r\nContent-Disposition: form-data; name="f"; filename="a"\r\n\r\n\r\n'
        most = 2 * uploads.MOST_PARTS
        said = running.raw(request("POST", "/api/ask", FORM, part * most + b"--x--\r\n"))
        assert len(answer(said)[1]["refused"]) == most
        said = running.raw(request("POST", "/api/ask", FORM, part * (most + 1) + b"--x--\r\n"))
        assert answer(said)[0] == 413


def test_no_client_holds_all_memory_for_uploads() -> None:
    budget = Budget(100)
    with budget.holding("a") as first, budget.holding("a") as second:
        first.set(30)
        with pytest.raises(Refused):
            second.set(30)
        with budget.holding("b") as other:
            other.set(50)
        second.set(20)
    assert budget.used == 0


# ── time ─────────────────────────────────────────────────────────────────────────────────────


def test_bodies_in_chunks_are_refused(running: Running) -> None:
    """Parsing a chunk of a byte takes as long as parsing a large one."""
    head = {"Content-Length": "", "Transfer-Encoding": "chunked", **FORM}
    status, said = answer(running.raw(request("POST", "/api/ask", head, b"1\r\nx\r\n" * 100)))
    assert status == 400
    assert "Content-Length" in said["error"]


def test_questions_need_no_thread_that_others_may_block(running: Running, picture: Make) -> None:
    ended, began = threading.Event(), threading.Semaphore(0)
    names = [running.client() for _ in range(50)]  # more than there are threads

    def make(i: int) -> None:
        began.release()
        names[i].make_class(f"new {i}")

    def hold() -> None:
        with running.service.teaching.lock:
            began.release()
            ended.wait()

    threads = [threading.Thread(target=hold)]
    threads += [threading.Thread(target=make, args=(i,)) for i in range(len(names))]
    try:
        for thread in threads:
            thread.start()
            began.acquire()
        time.sleep(0.3)
        asking = Client(running.address, timeout=10)
        assert asking.ask([picture(1)])["answers"]
        assert asking.get("/healthz")["status"] == "ok"
        asking.close()
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def test_a_body_that_is_not_read_cannot_be_sent_for_ever(
    serving: Serving, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "REST_SECONDS", 0.2)
    head = {**FORM, "Content-Length": "5000", "Connection": ""}
    with (
        serving(tmp_path / "project", tiny_model, tokens=True) as running,
        socket.create_connection(("127.0.0.1", running.port), 10) as connection,
    ):
        connection.sendall(request("POST", "/api/ask", head))
        assert b" 401 " in connection.recv(10_000)
        for _ in range(4000):  # bytes, fewer than were announced
            time.sleep(0.02)
            try:
                connection.sendall(b"x")
            except OSError:
                break
        else:
            raise AssertionError("never cut off")


def test_senders_are_not_slow_because_the_server_is() -> None:
    async def body() -> AsyncIterator[bytes]:
        for _ in range(5):
            yield b"x" * 10

    async def run() -> list[bytes]:
        asked, parts = Request({"type": "http", "headers": []}), []
        asked.stream = body  # type: ignore[method-assign, assignment]
        async for part in uploads.received(asked, Limits(silence=0.1, least_rate=1e6)):
            parts.append(part)
            await asyncio.sleep(0.05)  # decoding it
        return parts

    assert len(asyncio.run(run())) == 5


class FakeDecoders:
    """In place of `decoding.attempt`: the pictures named `hang` take until `ended` is set, and
    `bombs` any time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hang, self.bombs = set[bytes](), set[bytes]()
        self.began, self.ended = threading.Semaphore(0), threading.Event()
        self.attempts: list[tuple[bytes, int]] = []
        self.original = decoding.attempt
        monkeypatch.setattr(decoding, "attempt", self)

    def __call__(self, n: int, content: bytes, *args: Any) -> DecodedPicture:
        self.attempts.append((content, n))
        if content in self.hang:
            self.began.release()
            self.ended.wait(60)
        if content in self.hang | self.bombs:
            return DecodedPicture(None, reason="a bomb", stopped=True, unfinished=True)
        return self.original(n, content, *args)


@pytest.fixture
def decoders(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDecoders]:
    fake = FakeDecoders(monkeypatch)
    yield fake
    fake.ended.set()


def test_after_bombs_their_sender_has_first_attempts_only(
    serving: Serving,
    tiny_model: Path,
    tmp_path: Path,
    picture: Make,
    decoders: FakeDecoders,
) -> None:
    bombs = [picture(i) for i in range(3)]
    decoders.bombs.update(bombs)
    with serving(tmp_path / "project", tiny_model, bad_pictures=2) as running:
        asking = running.client()
        reasons = [asking.ask([bomb])["refused"][0]["reason"] for bomb in bombs]
        assert len(asking.ask([picture("usual")])["answers"]) == 1
    assert reasons[:2] == ["a bomb", "a bomb"]
    assert reasons[2].startswith("not tried")
    every = list(range(len(decoding.ATTEMPTS)))
    assert [n for content, n in decoders.attempts if content in bombs] == [*every, *every, 0]


@pytest.mark.parametrize(
    ("bombs", "damaged", "usual", "expected"),
    [(1, 0, 0, True), (0, 11, 0, True), (0, 1, 0, False), (0, 0, 20, False)],
)
def test_who_sends_bombs_or_much_that_is_damaged_is_suspect(
    running: Running,
    picture: Make,
    decoders: FakeDecoders,
    bombs: int,
    damaged: int,
    usual: int,
    expected: bool,
) -> None:
    decoders.bombs.update(picture(f"bomb {i}") for i in range(bombs))
    files = [*decoders.bombs, *(b"damaged %d" % i for i in range(damaged))]
    running.client().ask(files + [picture(i) for i in range(usual + 1)])
    assert running.service.intake.is_suspect(Account("improve", "loopback")) == expected


def test_slow_pictures_keep_only_slow_ones_waiting(
    running: Running, picture: Make, decoders: FakeDecoders
) -> None:
    """Not even those of the same client."""
    bombs = [picture(i, kind="BMP") for i in range(6)]
    decoders.hang.update(bombs)
    senders = [running.client() for _ in bombs]
    with running_threads() as start:
        for sender, bomb in zip(senders, bombs, strict=True):
            start(lambda sender=sender, bomb=bomb: sender.ask([bomb]))
        try:
            decoders.began.acquire()
            assert len(running.client().ask([picture("quick")])["answers"]) == 1
        finally:
            decoders.ended.set()


@pytest.mark.parametrize("length", [0, 500])
def test_who_leaves_keeps_the_decoder_until_it_ends(
    length: int,
    serving: Serving,
    tiny_model: Path,
    tmp_path: Path,
    picture: Make,
    decoders: FakeDecoders,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise a client has as many as it likes, by leaving and coming again. `length`: bytes of
    the form that are never sent."""
    left = threading.Event()

    class Room(asyncio.Semaphore):
        """Tells when the work on a picture is over."""

        async def __aexit__(self, *error: object) -> None:
            left.set()
            await super().__aexit__(*error)  # type: ignore[arg-type]

    bomb, second = picture(1, kind="BMP"), picture(2, kind="BMP")
    decoders.hang.add(bomb)
    head = b'--x\r\nContent-Disposition: form-data; name="f"; filename="a"\r\n\r\n'
    form = head + bomb + b"\r\n--x--\r\n" + bytes(1000)
    with serving(tmp_path / "project", tiny_model, bad_pictures=1) as running:
        monkeypatch.setattr("kedge.serve.intake.asyncio.Semaphore", Room)
        with socket.create_connection(("127.0.0.1", running.port), 10) as connection:
            whole = request("POST", "/api/ask", FORM, form)
            connection.sendall(whole[: len(whole) - length])
            assert decoders.began.acquire(timeout=60)
        assert not left.wait(0.5)
        decoders.ended.set()
        assert left.wait(60)
        assert len(running.client().ask([second])["answers"]) == 1
    assert [n for content, n in decoders.attempts if content == bomb] == [1]  # and no further one


def test_a_bomb_does_not_count_for_other_tokens_of_its_address(
    serving: Serving, tiny_model: Path, tmp_path: Path, picture: Make, decoders: FakeDecoders
) -> None:
    decoders.bombs.add(picture("bomb"))
    with serving(tmp_path / "project", tiny_model, tokens=True, bad_pictures=1) as running:
        bomber = running.client("teach")
        bomber.ask([picture("bomb")])
        [refused] = bomber.ask([picture(1, kind="BMP")])["refused"]
        assert refused["reason"].startswith("not tried")
        assert len(running.client("ask").ask([picture(2, kind="BMP")])["answers"]) == 1


def test_an_address_cannot_be_made_up(
    serving: Serving, tiny_model: Path, tmp_path: Path, picture: Make
) -> None:
    """Proxies name their clients, but without tokens anybody on this machine could be a proxy."""
    with serving(tmp_path / "project", tiny_model, pictures_per_minute=2) as running:
        for i, expected in enumerate((200, 200, 429, 429)):
            head = {"Content-Type": "image/png", "X-Forwarded-For": f"192.0.2.{i}"}
            said = running.raw(request("POST", "/api/ask", head, picture(i)))
            assert answer(said)[0] == expected


def test_what_is_surely_slow_is_known_before_it_is_decoded() -> None:
    def encoded(kind: str, **options: object) -> bytes:
        file = io.BytesIO()
        Image.new("RGB", (8, 8)).save(file, kind, **options)
        return file.getvalue()

    quick = [encoded("JPEG"), encoded("JPEG", progressive=True), encoded("PNG"), encoded("GIF")]
    assert not any(decoding.first_attempt(each) for each in quick)
    scans = quick[1][:-2] + quick[1][quick[1].rfind(decoding.SCAN) : -2] * 50
    slow = [scans, encoded("TIFF"), encoded("BMP"), encoded("PPM"), encoded("AVIF"), b"", b"text"]
    assert all(decoding.first_attempt(each) for each in slow)


@pytest.mark.parametrize("lacks", ["processor", "memory"])
def test_a_picture_is_tried_again_with_more(lacks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    little = 0.001 if lacks == "processor" else 1 << 10
    monkeypatch.setattr(decoding.ATTEMPTS[0], lacks, little)
    file = io.BytesIO()
    Image.effect_noise((1500, 1500), 50).save(file, "PNG")
    content, spec = file.getvalue(), ImageSpec(32, 3)
    try:
        assert decoding.attempt(0, content, spec, thumbnail=False).unfinished
        assert decoding.decode_picture(content, spec, thumbnail=True).pixels is not None
    finally:
        decoding.close()


# ── what strangers write ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/rounds", b'{"settings": {"\\ud800": 1}}'),
        ("/api/classes", b'{"name": "\\ud800"}'),
        ("/api/classes", b'{"name": ' + b"9" * 5000 + b"}"),
        ("/api/rounds", b'{"settings": {"lr": NaN}}'),
        ("/api/rounds", b'{"settings": {"epochs": 1e999}}'),
        ("/api/rounds", b'{"settings": {"seed": 1' + b"0" * 60 + b"}}"),
    ],
)
def test_odd_json_is_refused_in_a_sentence(path: str, body: bytes, running: Running) -> None:
    status, said = answer(running.raw(request("POST", path, body=body)))
    assert status in (400, 422), said
    assert said["error"].endswith(".")


def test_cookies_may_hold_anything(serving: Serving, tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    with serving(folder, tiny_model, tokens=True) as running:
        tokens = Tokens.load(folder)
        assert tokens is not None
        for value in ('"é"', "a.b.c", "", "improve.99999999999." + "0" * 64, '"\\303"'):
            head = {"Cookie": f"{tokens.cookie}={value}"}
            assert answer(running.raw(request("GET", "/api/state", head)))[0] == 401


def test_a_model_of_a_folder_with_an_odd_name(
    serving: Serving, tiny_model: Path, tmp_path: Path
) -> None:
    with serving(tmp_path / 'a"\r\n;é b', tiny_model) as running:
        said = running.raw(request("GET", "/api/versions/1/model"))
        assert said.startswith(b"HTTP/1.1 200")
        head = said.partition(b"\r\n\r\n")[0]
        assert b"filename*=UTF-8''a%22%0D%0A%3B%C3%A9%20b-1.kedge\r\n" in head


def test_files_keep_their_names(running: Running, picture: Make) -> None:
    for name in ("größe 1%.png", "花.png", "a;b=c.png"):
        [said] = running.client().ask([(name, picture(name))])["answers"]
        assert said["name"] == name


# ── privacy ──────────────────────────────────────────────────────────────────────────────────


def test_nobody_is_to_keep_what_is_private(running: Running, drawings: Any) -> None:
    client = running.client()
    client.teach("a", drawings["second 0"][:1])
    [a] = [each for each in client.classes() if each["name"] == "a"]
    for path in (
        "/api/classes",
        f"/api/classes/{a['id']}/pictures",
        f"/api/pictures/{a['pictures'][0]}/thumbnail",
        "/api/events",
        "/api/versions/1/model",
    ):
        head = running.raw(request("GET", path)).partition(b"\r\n\r\n")[0]
        assert b"cache-control: no-store" in head, path


def test_links_in_the_folder_are_not_followed(running: Running, drawings: Any) -> None:
    client = running.client()
    [added] = client.teach("a", drawings["second 0"][:1])["added"]
    path = running.project.pictures.thumbnail_path(added["sha256"])
    path.unlink()
    path.symlink_to(__file__)
    said = running.raw(request("GET", f"/api/pictures/{added['sha256']}/thumbnail"))
    assert answer(said)[0] == 404
