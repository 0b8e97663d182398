"""What is acknowledged survives kills, and rounds continue.

For hundreds of kills: tools/serve_kill_test.py.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kedge
from kedge.errors import KedgeError
from kedge.serve import rounds
from kedge.serve.active import ActiveModel
from kedge.serve.client import Client, ServerError
from kedge.serve.database import Database
from kedge.serve.project import open_project

TOOL = Path(__file__).resolve().parents[2] / "tools" / "serve_kill_test.py"
spec = importlib.util.spec_from_file_location("serve_kill_test", TOOL)
assert spec is not None
assert spec.loader is not None
tool = importlib.util.module_from_spec(spec)
sys.modules["serve_kill_test"] = tool  # dataclasses look their module up
spec.loader.exec_module(tool)

Drawings = dict[str, list[Path]]
Make = Callable[..., bytes]
TIMEOUT = 120  # seconds
LONG: dict[str, Any] = {"epochs": 400, "episodes": 10, "train": "all"}


@pytest.fixture
def server(tiny_model: Path, tmp_path: Path) -> Iterator[Any]:
    server = tool.ServerProcess(tmp_path / "project", "--model", str(tiny_model))
    server.start()
    server.command = server.command[:-2]  # the model is for the first start
    yield server
    if server.process.poll() is None:
        server.kill()


def wait_for(what: Callable[[], object]) -> None:
    end = time.monotonic() + TIMEOUT
    while not what():
        assert time.monotonic() < end
        time.sleep(0.1)


def start_long_round(client: Client, drawings: Drawings) -> int:
    """A round that has saved a checkpoint and would run on for minutes."""
    for name in list(drawings)[:4]:
        client.teach(name, drawings[name])
    return client.improve(**LONG)


def saved(server: Any, job: int) -> bool:
    return bool((server.folder / "jobs" / str(job) / "checkpoint").exists())


def trained(client: Client, job: int) -> int:
    """Episodes that a round has trained so far; 0 while it prepares or measures."""
    progress = client.job(job)["progress"]
    return int(progress["done"]) if progress.get("phase") == "training" else 0


def round_process(server: Any) -> int:
    [pid] = [p for p, command in server.children().items() if "kedge.serve.improve" in command]
    return int(pid)


@pytest.mark.slow
def test_kills_under_load_lose_nothing(tmp_path: Path) -> None:
    assert tool.run(tmp_path / "project", kills=5, seed=1, longest=3.0) == 0


@pytest.mark.slow
def test_a_killed_round_is_continued_on_demand(server: Any, drawings: Drawings) -> None:
    client = Client(server.address)
    job = start_long_round(client, drawings)
    wait_for(lambda: trained(client, job) >= 6 * LONG["episodes"])
    os.kill(round_process(server), signal.SIGKILL)
    wait_for(lambda: client.job(job)["state"] == "interrupted")
    assert not client.state()["improve"]["possible"]
    before = trained(client, job)
    client.send("POST", f"/api/jobs/{job}/continue")
    seen: list[int] = []
    wait_for(lambda: seen.append(trained(client, job)) or seen[-1] > before)
    # Only what came after the last saved epoch is trained again.
    assert min(filter(None, seen)) >= before - 2 * LONG["episodes"]
    client.send("POST", f"/api/jobs/{job}/cancel")
    assert client.job(job)["state"] == "cancelled"
    assert not (server.folder / "jobs" / str(job)).exists()
    assert client.state()["improve"]["possible"]
    client.close()


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_round_continues_when_the_server_starts_again(
    server: Any, drawings: Drawings, how: signal.Signals
) -> None:
    client = Client(server.address)
    job = start_long_round(client, drawings)
    wait_for(lambda: saved(server, job))
    process = round_process(server)
    server.kill(how)
    wait_for(lambda: not Path(f"/proc/{process}").exists() or is_zombie(process))
    client.close()
    server.start()
    wait_for(lambda: client.job(job)["progress"].get("phase") == "training")
    assert client.job(job)["state"] == "running"
    assert client.ask([drawings["second 0"][0]])["answers"]
    client.send("POST", f"/api/jobs/{job}/cancel")
    client.close()


def is_zombie(process: int) -> bool:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.slow
def test_a_graceful_stop_ends_with_a_word(server: Any) -> None:
    server.kill(signal.SIGTERM)
    assert server.process.returncode == 0
    assert '"stopped"' in server.log.read_text().splitlines()[-1]
    assert not list(server.folder.glob("*.lock"))


def test_files_without_rows_are_removed(tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    with open_project(folder, tiny_model):
        pass
    orphans = [
        folder / "pictures" / "ab" / ("ab" + "0" * 62),
        folder / "thumbnails" / "ab" / ("ab" + "0" * 62 + ".jpg"),
        folder / "versions" / "2.kedge",
        folder / "jobs" / "7" / "checkpoint",
    ]
    for path in orphans:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"?")
    with open_project(folder):
        assert not any(path.exists() for path in orphans)
        assert (folder / "versions" / "1.kedge").exists()


def test_files_of_others_are_left_alone(tiny_model: Path, tmp_path: Path) -> None:
    """Somebody may think that pictures are taught by copying them into the folder."""
    folder = tmp_path / "project"
    with open_project(folder, tiny_model):
        pass
    others = [
        folder / "pictures" / "tulip" / "holiday.jpg",
        folder / "versions" / "mine.kedge",
        folder / "versions" / "2.kedge.bak" / "2.kedge",
        folder / "jobs" / "notes" / "1.txt",
    ]
    for path in others:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"?")
    with open_project(folder):
        assert all(path.exists() for path in others)


def test_no_new_database_takes_the_place_of_a_lost_one(tiny_model: Path, tmp_path: Path) -> None:
    """Every picture would be one without a row, and be deleted."""
    folder = tmp_path / "project"
    with open_project(folder, tiny_model):
        pass
    path = folder / "pictures" / "ab" / ("ab" + "0" * 62)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"?")
    (folder / "project.sqlite").write_bytes(b"")
    with pytest.raises(KedgeError, match="is empty"), open_project(folder):
        pass
    assert path.exists()


@pytest.mark.parametrize("damage", ["gone", "another"])
def test_a_model_file_that_was_replaced_is_not_used(
    damage: str, tiny_model: Path, second: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "project"
    with open_project(folder, tiny_model) as project:
        path = project.versions.path(1)
    path.unlink()
    if damage == "another":
        kedge.train(str(second), backbone="conv4", width=4, train="none").save(path)
    with open_project(folder) as project, pytest.raises(KedgeError, match=r"1\.kedge"):
        ActiveModel(project)


def test_a_full_disk_is_said_and_leaves_nothing(
    running: Any, picture: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = running.client()
    client.teach("a", [picture(0)])
    before = {path for path in running.project.folder.rglob("*") if path.is_file()}
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def no_room(*_: object) -> None:
        raise full

    with monkeypatch.context() as patch:
        patch.setattr(running.project.pictures, "add_features", no_room)  # after the files
        with pytest.raises(ServerError):
            client.teach("a", [picture(1)])
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_room)
        with pytest.raises(ServerError, match="No space left") as caught:
            client.teach("a", [picture(1)])
        assert caught.value.status == 507
    assert {path for path in running.project.folder.rglob("*") if path.is_file()} == before
    [added] = client.teach("a", [picture(1)])["added"]
    assert added["sha256"]


def test_a_fault_of_the_database_is_said(running: Any) -> None:
    running.project.database._connection.execute("PRAGMA query_only = ON")
    with pytest.raises(ServerError, match="database cannot be used") as caught:
        running.client().make_class("new")
    assert caught.value.status == 507
    running.project.database._connection.execute("PRAGMA query_only = OFF")
    assert running.client().make_class("new")


def test_a_round_that_cannot_be_started_can_be_continued(
    running: Any, drawings: Drawings, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = running.client()
    for name in list(drawings)[:2]:
        client.teach(name, drawings[name][:4])

    def fail(folder: Path) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(rounds, "start_process", fail)
    job = client.improve(train="none")
    assert client.job(job)["state"] == "interrupted"
    assert "continue" in client.job(job)["message"].lower()
    client.send("POST", f"/api/jobs/{job}/cancel")
    assert client.state()["improve"]["possible"]


def test_a_transaction_is_whole_or_nothing(tmp_path: Path) -> None:
    database = Database(tmp_path / "a.sqlite")

    def fail() -> None:
        with database.transaction():
            database.set_setting("a", "1")
            with database.transaction():
                database.set_setting("b", "2")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert database.setting("a") is database.setting("b") is None
    assert database.revision == 0
    database.set_setting("a", "1")
    assert database.revision == 1
    database.close()
    again = Database(tmp_path / "a.sqlite")
    assert (again.setting("a"), again.revision, again.check()) == ("1", 1, "ok")
    again.close()
