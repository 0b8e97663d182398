"""Roles, tokens, and an attack list: each is refused, and the server goes on answering."""

from __future__ import annotations

import hashlib
import io
import json
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kedge.serve.client import Client, ServerError
from kedge.serve.security import ROLES, Listen, Tokens

Running = Any  # of conftest.py, which cannot be imported
Serving = Any
Drawings = dict[str, list[Path]]
NEEDS = {  # every route of the interface, and the role that it needs
    "GET /api/state": "ask",
    "GET /api/classes": "ask",
    "GET /api/versions": "ask",
    "GET /api/map": "ask",
    "POST /api/ask": "ask",
    "GET /api/jobs": "ask",
    "GET /api/jobs/{job}": "ask",
    "POST /api/classes": "teach",
    "PATCH /api/classes/{class_id}": "teach",
    "DELETE /api/classes/{class_id}": "teach",
    "GET /api/classes/{class_id}/pictures": "teach",
    "POST /api/classes/{class_id}/pictures": "teach",
    "DELETE /api/pictures/{sha256}": "teach",
    "GET /api/pictures/{sha256}/thumbnail": "teach",
    "POST /api/rounds": "improve",
    "POST /api/jobs/{job}/cancel": "improve",
    "POST /api/jobs/{job}/continue": "improve",
    "POST /api/versions/{version}/activate": "improve",
    "POST /api/versions/{version}/discard": "improve",
    "GET /api/versions/{version}/model": "improve",
    "GET /api/versions/{version}/remains": "improve",
    "POST /api/versions/{version}/forget": "improve",
    "GET /api/events": "improve",
}
OPEN = {"POST /api/session", "DELETE /api/session"}


def status_of(call: Callable[[], object]) -> int:
    try:
        call()
    except ServerError as error:
        return error.status
    return 200


@pytest.fixture
def guarded(serving: Serving, tiny_model: Path, tmp_path: Path) -> Iterator[Running]:
    with serving(tmp_path / "project", tiny_model, tokens=True, wrong_tokens=5) as running:
        yield running


# ── roles, tokens, sessions ──────────────────────────────────────────────────────────────────


def test_every_route_needs_its_role(guarded: Running) -> None:
    paths = guarded.client("ask").get("/api/openapi.json")["paths"]
    routes = {f"{m.upper()} {path}" for path, methods in paths.items() for m in methods}
    assert routes == {*NEEDS, *OPEN}
    clients = {role: guarded.client(role) for role in (*ROLES, "")}
    for route, needed in NEEDS.items():
        method, path = route.split()
        path = path.replace("{sha256}", "0" * 64)
        for name in ("{class_id}", "{job}", "{version}"):
            path = path.replace(name, "999")
        for role, client in clients.items():
            if role and ROLES.index(role) >= ROLES.index(needed):
                continue
            expected = 403 if role else 401
            call = lambda: client.request(method, path, b"")  # noqa: B023, E731
            assert status_of(call) == expected, (route, role)


def test_those_who_may_only_ask_see_no_pictures(guarded: Running, drawings: Drawings) -> None:
    guarded.client("teach").teach("a", drawings["second 0"][:2])
    shown = [each["pictures"] for each in guarded.client("ask").classes() if each["name"] == "a"]
    assert shown == [[]]


def test_a_token_is_exchanged_for_a_cookie(guarded: Running) -> None:
    body = json.dumps({"token": guarded.words["teach"]}).encode()
    said = guarded.raw(request("POST", "/api/session", body=body))
    head = said.partition(b"\r\n\r\n")[0].decode().lower()
    assert " 200 " in head
    [cookie] = [line for line in head.splitlines() if line.startswith("set-cookie:")]
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    pair = cookie.partition(":")[2].partition(";")[0].strip()
    with_cookie = request("GET", "/api/state", {"Cookie": pair})
    assert b'"role": "teach"' in guarded.raw(with_cookie)
    forged = pair.replace("teach", "improve")
    assert b" 401 " in guarded.raw(request("GET", "/api/state", {"Cookie": forged}))


def test_wrong_tokens_are_refused_and_soon_too_many(guarded: Running) -> None:
    wrong = Client(guarded.address, "kedge_improve_wrong")
    statuses = [status_of(wrong.state) for _ in range(8)]
    assert statuses == [401] * 5 + [429] * 3
    assert status_of(guarded.client("ask").state) == 200  # others may share the address
    assert guarded.client().get("/healthz")["status"] == "ok"
    wrong.close()


def test_tokens_are_stored_as_hashes_that_others_cannot_read(tmp_path: Path) -> None:
    tokens, words = Tokens.make(tmp_path)
    file = tmp_path / "tokens.json"
    assert file.stat().st_mode & 0o077 == 0
    assert not any(word in file.read_text() for word in words.values())
    assert Tokens.load(tmp_path) == tokens
    assert [tokens.role_of(words[role]) for role in ROLES] == list(ROLES)
    again, _ = Tokens.make(tmp_path)
    assert again.role_of(words["ask"]) is None
    assert again.role_of_session(tokens.session("improve")) is None


# ── other sites ──────────────────────────────────────────────────────────────────────────────


def request(
    method: str, path: str, headers: dict[str, str] | None = None, body: bytes = b""
) -> bytes:
    """A request as its bytes, with the header that unsafe ones need unless it is given as ''."""
    lines = {
        "Host": "127.0.0.1",
        "X-Kedge": "1",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "Connection": "close",
        **(headers or {}),
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value)
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body


FOREIGN = {
    "a form of another site": ("POST", {"X-Kedge": ""}),
    "a script of another site": ("POST", {"Origin": "http://evil.example"}),
    "another port of this machine": ("POST", {"Origin": "http://127.0.0.1:1"}),
    "a sandboxed frame": ("POST", {"Origin": "null"}),
    "a browser that says so": ("POST", {"Sec-Fetch-Site": "cross-site"}),
    "an image of another site": ("GET", {"Sec-Fetch-Site": "cross-site"}),
    "a name that points here": ("GET", {"Host": "evil.example"}),
    "a name that begins like ours": ("GET", {"Host": "127.0.0.1.evil.example"}),
    "no name": ("GET", {"Host": ""}),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_requests_of_other_sites_are_refused(what: str, running: Running) -> None:
    method, headers = FOREIGN[what]
    said = running.raw(request(method, "/api/classes", headers, b'{"name": "evil"}'))
    assert said.split()[1] in (b"403", b"421", b"400"), said
    assert "access-control" not in said.decode().lower()
    assert "evil" not in {each["name"] for each in running.client().classes()}


def test_preflights_allow_nothing(running: Running) -> None:
    headers = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    said = running.raw(request("OPTIONS", "/api/classes", headers)).decode().lower()
    assert "access-control" not in said


def test_pages_may_load_nothing_from_elsewhere(running: Running) -> None:
    head = running.raw(request("GET", "/")).partition(b"\r\n\r\n")[0].decode().lower()
    assert "default-src 'self'" in head
    assert "unsafe-inline" not in head
    assert "frame-ancestors 'none'" in head
    assert "x-content-type-options: nosniff" in head


@pytest.mark.parametrize(
    ("listen", "host", "allowed"),
    [
        ("127.0.0.1:8600", "localhost:8600", True),
        ("127.0.0.1:8600", "[::1]:8600", True),
        ("127.0.0.1:8600", "192.168.1.2", False),
        ("127.0.0.1:8600", "localhost.evil.example", False),
        ("0.0.0.0:8600", "192.168.1.2:8600", True),
        ("0.0.0.0:8600", "evil.example", False),
        ("0.0.0.0:8600", "flowers.example", True),  # given with --name
    ],
)
def test_host_names(listen: str, host: str, allowed: bool) -> None:
    assert Listen.parse(listen, ["flowers.example"]).allows(host) == allowed


# ── what is sent ─────────────────────────────────────────────────────────────────────────────

PATHS = (
    "/static/../../cli/serve.py",
    "/static/%2e%2e/%2e%2e/errors.py",
    "/static/..%2f..%2ferrors.py",
    "/static//etc/passwd",
    "/api/pictures/..%2f..%2fproject.sqlite/thumbnail",
    "/api/pictures/%2e%2e/thumbnail",
    "/api/pictures/" + "A" * 64 + "/thumbnail",
    "/api/versions/..%2f1/model",
    "/api/versions/0x1/model",
    "/api/classes/1e9/pictures",
    "/api/classes/99999999999999999999999/pictures",
    "/%00",
)


@pytest.mark.parametrize("path", PATHS)
def test_path_tricks(path: str, running: Running) -> None:
    said = running.raw(request("GET", path))
    assert said.split()[1] in (b"404", b"422", b"400"), said
    assert b"root:" not in said
    assert b"import" not in said


NAMES = (
    "../../../evil.jpg",
    "/etc/evil.jpg",
    "C:\\evil.jpg",
    "<script>alert(1)</script>.jpg",
    "=cmd|'/C calc'!A1.jpg",
    "a\u202egpj.exe",
    "evil.jpg\u0000.png",
    ".",
    "x" * 1000,
)


@pytest.mark.parametrize("name", NAMES)
def test_names_of_files_are_only_shown(
    name: str, running: Running, picture: Callable[..., bytes], tmp_path: Path
) -> None:
    client, content = running.client(), picture(name)
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    [added] = client.teach("a", [(name, content)])["added"]
    sha256 = hashlib.sha256(content).hexdigest()
    folder = running.project.folder
    new = {path for path in tmp_path.rglob("*") if path.is_file()} - before
    assert new <= {
        folder / "pictures" / sha256[:2] / sha256,
        folder / "thumbnails" / sha256[:2] / f"{sha256}.jpg",
        *(folder / f"project.sqlite{end}" for end in ("-wal", "-shm")),
    }
    assert added["name"].isprintable()
    assert len(added["name"]) <= 255
    assert not set(added["name"]) & set("/\\")


def test_scripts_in_names_stay_text(running: Running, drawings: Drawings) -> None:
    name = '<img src=x onerror="alert(1)">'
    client = running.client()
    client.teach(name, drawings["second 0"][:2])
    said = running.raw(request("GET", "/api/classes"))
    assert b"content-type: application/json" in said.lower()
    assert name in {each["name"] for each in client.classes()}


def png(width: int, height: int) -> bytes:
    """A flat picture of any size: a bomb, if it is large."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + checksum

    packer = zlib.compressobj(9)
    row = bytes(1 + 3 * width)
    data = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


@pytest.mark.slow
def test_bombs_are_refused_and_others_are_answered(running: Running, drawings: Drawings) -> None:
    client = running.client()
    claimed = png(4, 4).replace(struct.pack(">II", 4, 4), struct.pack(">II", 60_000, 60_000))
    large, slow = png(9000, 9000), png(6500, 6500)  # the second can be decoded, slowly
    began, seconds = threading.Event(), []

    def attack() -> None:
        began.set()
        said = running.client().ask([("bomb", each) for each in (large, claimed, slow) * 3])
        assert len(said["refused"]) == 6
        assert len(said["answers"]) == 3

    thread = threading.Thread(target=attack)
    thread.start()
    began.wait()
    while thread.is_alive():
        start = time.monotonic()
        assert (
            len(client.ask([drawings["second 0"][0].read_bytes() + bytes(len(seconds))])["answers"])
            == 1
        )
        seconds.append(time.monotonic() - start)
    thread.join()
    assert max(seconds) < 5


def test_large_files_are_refused_while_they_arrive(
    serving: Serving, tiny_model: Path, tmp_path: Path, picture: Callable[..., bytes]
) -> None:
    limits = {"picture_bytes": 5000, "request_bytes": 20_000, "request_pictures": 2}
    with serving(tmp_path / "project", tiny_model, **limits) as running:
        client = running.client()
        said = client.teach("a", [("large", picture(1, side=60)), ("small", picture(2))])
        assert [each["name"] for each in said["added"]] == ["small"]
        assert [each["name"] for each in said["refused"]] == ["large"]
        said = client.teach("a", [picture(i) for i in range(3, 7)])
        assert (len(said["added"]), len(said["refused"])) == (2, 2)
        # A body that says that it is too large, and one that does not say how large it is.
        path = f"/api/classes/{client.classes()[-1]['id']}/pictures"
        head = {"Content-Type": "multipart/form-data; boundary=x", "Content-Length": "999999"}
        assert b" 413 " in running.raw(request("POST", path, head))
        head |= {"Content-Length": "", "Transfer-Encoding": "chunked"}
        chunk = b"%x\r\n%s\r\n" % (15_000, b"y" * 15_000)
        assert b" 400 " in running.raw(request("POST", path, head, chunk * 2))
        assert running.service.budget.used == 0
        head = {"Content-Length": str(1 << 20)}
        assert b" 413 " in running.raw(request("POST", "/api/classes", head))


DAMAGED_FORMS = {
    "no boundary": ("multipart/form-data", b"--x--"),
    "a boundary that is too long": ("multipart/form-data; boundary=" + "x" * 300, b"--x--"),
    "no form": ("multipart/form-data; boundary=x", b"nothing of the kind"),
    "an end in the middle": (
        "multipart/form-data; boundary=x",
        b'--x\r\nContent-Disposition: form-data; name="files"; filename="a"\r\n\r\nabc',
    ),
    "endless headers": ("multipart/form-data; boundary=x", b"--x\r\n" + b"a: b\r\n" * 5000),
    "no pictures": ("multipart/form-data; boundary=x", b"--x--\r\n"),
    "another type": ("text/html", b"<html>"),
    "nothing": ("image/png", b""),
}


@pytest.mark.parametrize("what", DAMAGED_FORMS)
def test_damaged_forms_are_refused(what: str, running: Running) -> None:
    kind, body = DAMAGED_FORMS[what]
    said = running.raw(request("POST", "/api/ask", {"Content-Type": kind}, body))
    status, text = int(said.split()[1]), said.partition(b"\r\n\r\n")[2]
    assert 400 <= status < 500 or b'"refused":[{' in text, said
    if status >= 400:
        assert json.loads(text)["error"].endswith(".")
    assert running.service.budget.used == 0


BAD_JSON = (b"{", b"[]", b'{"name": 1}', b'{"name": null}', b"\xff\xfe", b"[" * 50_000)


@pytest.mark.parametrize("body", BAD_JSON, ids=range(len(BAD_JSON)))
def test_wrong_json_is_refused(body: bytes, running: Running) -> None:
    said = running.raw(request("POST", "/api/classes", body=body))
    assert said.split()[1] in (b"422", b"400"), said
    assert running.client().state()["counts"]["classes"] == 6


def test_slow_senders_are_cut_off(serving: Serving, tiny_model: Path, tmp_path: Path) -> None:
    with serving(tmp_path / "project", tiny_model, silence=0.3) as running:
        form = {"Content-Type": "multipart/form-data; boundary=x", "Content-Length": "5000"}
        json_body = {"Content-Length": "100"}
        for path, headers in (("/api/ask", form), ("/api/classes", json_body)):
            said = running.raw(request("POST", path, headers, b"--x\r\n"))
            assert b" 408 " in said, said


def test_connections_without_a_request_are_closed(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kedge.serve.server.HEAD_SECONDS", 0.2)
    with socket.create_connection(("127.0.0.1", running.port), 10) as connection:
        connection.sendall(b"GET / HT")
        for _ in range(30):  # a byte now and then
            time.sleep(0.02)
            try:
                connection.sendall(b"T")
            except OSError:
                break
        with suppress(ConnectionResetError):
            assert connection.recv(100) == b""


def test_too_many_connections_of_one_client(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kedge.serve.server.MOST_CONNECTIONS", 5)
    connections = [socket.create_connection(("127.0.0.1", running.port)) for _ in range(8)]
    time.sleep(0.1)
    closed = 0
    for connection in connections:
        connection.settimeout(0.05)
        try:
            closed += connection.recv(1) == b""
        except TimeoutError:
            pass
        except ConnectionResetError:
            closed += 1
        connection.close()
    assert closed == 3


def test_quota_and_rate(serving: Serving, tiny_model: Path, tmp_path: Path, picture: Any) -> None:
    folder = tmp_path / "project"
    with serving(folder, tiny_model, quota=10, pictures_per_minute=2) as running:
        client = running.client()
        with pytest.raises(ServerError, match="limit") as caught:
            client.teach("a", [picture(1)])
        assert caught.value.status == 507
        client.ask([picture(i) for i in range(3)])
        with pytest.raises(ServerError, match="Too many") as caught:
            client.ask([picture(1)])
        assert caught.value.status == 429


def test_logs_hold_no_control_characters(
    running: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    import logging

    from kedge.serve.monitoring import JsonFormatter, TextFormatter

    for formatter in (JsonFormatter(), TextFormatter()):
        stream = io.StringIO()
        handler = logging.StreamHandler(stream)
        handler.setFormatter(formatter)
        logger = logging.getLogger("kedge.serve")
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        running.raw(request("POST", "/api/%0aadmin%1b[31m%e2%80%ae"))
        logger.removeHandler(handler)
        [line] = stream.getvalue().splitlines()
        assert line.isprintable()
        assert "status" in line
