"""After forgetting, no file of the project holds a trace of the pictures; the model still names
their classes."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kedge.serve.client import ServerError

Running = Any  # of conftest.py, which cannot be imported
Make = Callable[..., bytes]
PIECE = 48  # bytes, of which a few are looked for in every file


def pieces(content: bytes) -> list[bytes]:
    """Some parts of a content, from its middle: beginnings are alike in all files of a kind."""
    if len(content) < 5 * PIECE:
        return [content]
    starts = np.linspace(len(content) // 3, len(content) - 2 * PIECE, 5, dtype=int)
    return [content[start : start + PIECE] for start in starts]


def files(folder: Path) -> Iterator[tuple[Path, bytes]]:
    for path in folder.rglob("*"):
        if path.is_file():
            yield path, path.read_bytes()


def traces(project: Any, sha256s: list[str]) -> dict[str, list[bytes]]:
    """What is stored of pictures: their bytes, thumbnails, features, hashes and names."""
    found: dict[str, list[bytes]] = {"bytes": [], "thumbnail": [], "features": [], "hash": []}
    for sha256 in sha256s:
        found["bytes"] += pieces(project.pictures.path(sha256).read_bytes())
        found["thumbnail"] += pieces(project.pictures.thumbnail_path(sha256).read_bytes())
        found["hash"] += [sha256.encode(), bytes.fromhex(sha256)]
    rows = project.database.rows("SELECT vector FROM features")
    found["features"] = [piece for row in rows for piece in pieces(row[0])]
    found["name"] = [row[0].encode() for row in project.database.rows("SELECT name FROM pictures")]
    return found


def holders(folder: Path, wanted: list[bytes]) -> set[str]:
    """Files that hold one of these, in their content or in their name."""
    return {
        path.relative_to(folder).as_posix()
        for path, content in files(folder)
        if any(each in content or each in str(path).encode() for each in wanted)
    }


@pytest.mark.usefixtures("instant_rounds")
def test_nothing_of_forgotten_pictures_remains(running: Running, picture: Make) -> None:
    client, folder = running.client(), running.project.folder
    for name in ("round", "square"):
        shown = [(f"private-{name}-{i}.png", picture((name, i))) for i in range(6)]
        client.teach(name, shown)
    kept = picture("kept")
    sha256s = [row[0] for row in running.project.database.rows("SELECT sha256 FROM pictures")]
    version = client.wait(client.improve(train="none"), 0.05)["version"]
    client.activate(1)  # so that there are features under several versions
    client.activate(version)
    client.teach("later", [("kept.png", kept)])
    client.ask([picture(("round", 0))])
    before = traces(running.project, sha256s)
    for what, wanted in before.items():  # the search must be able to find them
        assert holders(folder, wanted), what
    assert any((folder / f"project.sqlite{end}").stat().st_size for end in ("-wal", ""))

    said = client.forget(version)
    assert said["deleted"] == 12
    kept_hash = hashlib.sha256(kept).hexdigest()
    wanted = {key: [w for w in each if b"kept" not in w] for key, each in before.items()}
    of_kept = running.project.database.rows("SELECT vector FROM features")
    alive = {piece for row in of_kept for piece in pieces(row[0])}
    wanted["features"] = [each for each in wanted["features"] if each not in alive]
    assert {what: holders(folder, each) for what, each in wanted.items()} == {
        what: set() for what in wanted
    }
    assert running.project.pictures.path(kept_hash).exists()
    assert not list((folder / "jobs").iterdir())
    assert client.ask([picture(("round", 0))])["answers"][0]["answer"] is not None
    classes = {each["name"]: each for each in client.classes()}
    assert classes["round"]["forgotten"]
    assert classes["round"]["n_examples_learned"] == 6
    # The same from outside, as another program reads the file.
    with sqlite3.connect(f"file:{folder / 'project.sqlite'}?mode=ro", uri=True) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert database.execute("SELECT COUNT(*) FROM pictures").fetchone() == (1,)
    database.close()


def test_nothing_of_a_deleted_picture_remains(running: Running, picture: Make) -> None:
    client, folder = running.client(), running.project.folder
    client.teach("a", [("private.png", picture(1)), ("other.png", picture(2))])
    sha256 = hashlib.sha256(picture(1)).hexdigest()
    vector = running.project.database.value(
        "SELECT vector FROM features JOIN pictures ON id = picture WHERE sha256 = ?", (sha256,)
    )
    wanted = [*pieces(picture(1)), *pieces(vector), sha256.encode(), b"private.png"]
    assert len(holders(folder, wanted)) >= 2
    client.delete_picture(sha256)
    assert holders(folder, wanted) == set()


@pytest.mark.usefixtures("instant_rounds")
def test_who_had_one_picture_is_said(running: Running, picture: Make) -> None:
    """Its feature stays in the file of that version, also when later ones have more pictures."""
    client = running.client()

    def improved(pictures: dict[str, int]) -> int:
        for name, n in pictures.items():
            client.teach(name, [picture((name, len(versions), i)) for i in range(n)])
        version = client.wait(client.improve(train="none"), 0.05)["version"]
        client.activate(version)
        return version

    def of_one_picture(version: int) -> set[str]:
        classes = client.get(f"/api/versions/{version}/remains")["classes"]
        return {each["name"] for each in classes if each["one_picture"]}

    versions: list[int] = []
    versions.append(improved({"round": 4, "square": 4, "single": 1}))
    assert of_one_picture(versions[0]) == {"single"}
    spread = running.project.versions.load(versions[0]).spread
    assert spread is not None
    shared = client.get(f"/api/versions/{versions[0]}/remains")["shared_numbers"]
    assert shared == spread.numel() > 0
    versions.append(improved({"round": 4, "single": 4}))
    assert [of_one_picture(version) for version in versions] == [{"single"}, set()]


@pytest.mark.usefixtures("instant_rounds")
def test_forgetting_waits_for_a_round(running: Running, picture: Make) -> None:
    client = running.client()
    for name in ("round", "square"):
        client.teach(name, [picture((name, i)) for i in range(4)])
    version = client.wait(client.improve(train="none"), 0.05)["version"]
    client.activate(version)
    # A round from an earlier version learns the same pictures again.
    client.activate(1)
    running.project.jobs.make(1, [1, 2], {})
    with pytest.raises(ServerError, match="round"):
        client.delete_picture(client.classes()[-2]["pictures"][-1])
    with pytest.raises(ServerError, match="round"):
        client.send("DELETE", f"/api/classes/{client.classes()[-2]['id']}")
