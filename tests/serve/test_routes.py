"""Every route, in the order of a project's life."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

import kedge
from kedge.serve.client import Client, ServerError

Running = Any  # of conftest.py, which cannot be imported
Drawings = dict[str, list[Path]]
Make = Callable[..., bytes]


def refusal(call: Callable[[], object]) -> tuple[int, str]:
    with pytest.raises(ServerError) as caught:
        call()
    assert str(caught.value).endswith(".")
    return caught.value.status, str(caught.value)


def test_teach_and_ask(client: Client, tiny_model: Path, drawings: Drawings) -> None:
    assert client.state()["counts"] == {"classes": 6, "pictures": 0}
    for name in list(drawings)[:2]:
        said = client.teach(name, drawings[name][:6])
        assert (len(said["added"]), said["refused"], said["known"]) == (6, [], [])
    state = client.state()
    assert state["counts"] == {"classes": 8, "pictures": 12}
    assert state["improve"]["possible"]
    assert (state["improve"]["n_new_classes"], state["improve"]["n_pictures"]) == (2, 12)
    classes = {each["name"]: each for each in client.classes()}
    new, old = classes["second 0"], classes["first 0"]
    assert (new["state"], new["learned_in"], new["n_pictures"]) == ("new", None, 6)
    assert (old["state"], old["learned_in"], old["n_examples_learned"]) == ("learned", 1, 12)
    assert len(new["pictures"]) == 6
    answers = client.ask(drawings["second 0"], top=2)["answers"]
    # What the same pictures give in Python.
    taught = {name: list(map(str, drawings[name][:6])) for name in list(drawings)[:2]}
    classifier = kedge.load(tiny_model).classifier(taught, known=True)
    expected = classifier.answers(list(map(str, drawings["second 0"])), 2)
    assert len({each["answer"] for each in answers}) > 1
    for each, (ranking, typicality) in zip(answers, expected, strict=True):
        assert each["answer"] == ranking[0][0]
        assert [r["class"] for r in each["ranking"]] == [name for name, _ in ranking]
        assert each["ranking"][1]["probability"] == pytest.approx(ranking[1][1], abs=1e-4)
        assert each["typicality"] == pytest.approx(typicality, abs=1e-3)
        assert all(-1.5 <= x <= 1.5 for x in each["position"])
    drawn = client.get("/api/map")
    assert len(drawn["classes"]) == 8
    assert max(abs(x) for each in drawn["classes"] for x in each["position"]) == 1
    assert 0 < drawn["explained"] <= 1


def test_a_picture_is_stored_once(client: Client, drawings: Drawings) -> None:
    one = drawings["second 0"][0]
    assert len(client.teach("a", [one, one])["known"]) == 1
    assert client.teach("a", [one])["known"][0]["name"] == one.name
    [refused] = client.teach("b", [one])["refused"]
    assert "'a'" in refused["reason"]
    assert client.state()["counts"]["pictures"] == 1


def test_unreadable_pictures_are_refused_and_others_kept(
    client: Client, drawings: Drawings
) -> None:
    files = [("broken.png", b"\x89PNG\r\n no picture"), drawings["second 0"][0], ("empty.jpg", b"")]
    said = client.teach("a", files)
    assert len(said["added"]) == 1
    assert [each["name"] for each in said["refused"]] == ["broken.png", "empty.jpg"]
    said = client.ask(files)
    assert len(said["answers"]) == 1
    assert [each["name"] for each in said["refused"]] == ["broken.png", "empty.jpg"]


def test_none_of_these(client: Client, drawings: Drawings, picture: Make) -> None:
    strange = [picture(i, side=16) for i in range(3)]
    answers = client.ask([*strange, drawings["second 0"][0]], reject=0.9)["answers"]
    for each in answers:
        assert (each["answer"] is None) == (each["typicality"] <= 0.9)
    assert any(each["answer"] is None for each in answers)
    status, sentence = refusal(lambda: client.ask(strange, reject=1e-6))
    assert status == 422
    assert "reject" in sentence


def test_answers_as_csv(running: Running, drawings: Drawings) -> None:
    service = running.client()
    service.make_class("=1+1")
    service.teach("=1+1", drawings["second 0"][:3])
    body = drawings["second 0"][0].read_bytes()
    text = service.request("POST", "/api/ask?format=csv&top=1", body, "image/png").decode()
    assert text.splitlines()[0] == "image,rank,class,probability,typicality"
    assert ",'=1+1," in text


def test_classes_are_renamed_and_removed(client: Client, drawings: Drawings) -> None:
    ids = {each["name"]: each["id"] for each in client.classes()}
    first = ids["first 0"]
    client.send("PATCH", f"/api/classes/{first}", {"name": "one"})
    assert refusal(lambda: client.make_class("One "))[0] == 409
    for bad in ("", "  ", "a\nb", "a\u202eb", "x" * 201):
        assert refusal(lambda bad=bad: client.make_class(bad))[0] == 422
    said = client.send("DELETE", f"/api/classes/{first}")
    assert said == {"deleted_pictures": 0, "remains_in_versions": [1]}
    assert "one" not in {each["name"] for each in client.classes()}
    named = {
        r["class"]
        for a in client.ask([drawings["second 0"][0]], top=9)["answers"]
        for r in a["ranking"]
    }
    assert len(named) == 5
    assert client.make_class("one") == first  # the same class again
    assert "one" in {each["name"] for each in client.classes()}
    client.teach("new", drawings["second 0"][:2])
    new = next(each["id"] for each in client.classes() if each["name"] == "new")
    assert client.send("DELETE", f"/api/classes/{new}")["deleted_pictures"] == 2
    assert refusal(lambda: client.get(f"/api/classes/{new}/pictures"))[0] == 404
    assert client.state()["counts"]["pictures"] == 0


def test_pictures_are_listed_shown_and_deleted(client: Client, drawings: Drawings) -> None:
    client.teach("a", drawings["second 0"][:3])
    [a] = [each for each in client.classes() if each["name"] == "a"]
    listed = client.get(f"/api/classes/{a['id']}/pictures?limit=2&offset=1")
    assert (len(listed["pictures"]), listed["total"]) == (2, 3)
    one = listed["pictures"][0]
    assert (one["width"], one["height"], one["trained"]) == (16, 16, False)
    thumbnail = client.request("GET", f"/api/pictures/{one['sha256']}/thumbnail")
    assert thumbnail.startswith(b"\xff\xd8")
    client.delete_picture(one["sha256"])
    assert refusal(lambda: client.delete_picture(one["sha256"]))[0] == 404
    assert client.get(f"/api/classes/{a['id']}/pictures")["total"] == 2


def test_state_is_sent_when_it_has_changed(running: Running) -> None:
    def ask(tag: str) -> tuple[int, str]:
        request = Request(f"{running.address}/api/state", headers={"If-None-Match": tag})
        try:
            with urlopen(request) as answer:
                return answer.status, answer.headers["etag"]
        except OSError as error:
            return error.code, tag  # type: ignore[attr-defined]

    status, tag = ask("")
    assert status == 200
    assert ask(tag)[0] == 304
    running.client().make_class("new")
    assert ask(tag)[0] == 200


@pytest.mark.usefixtures("instant_rounds")
def test_rounds_versions_and_forgetting(running: Running, drawings: Drawings) -> None:
    client = running.client()
    assert refusal(lambda: client.improve())[0] == 409
    for name in list(drawings)[:3]:
        client.teach(name, drawings[name][:5])
    assert refusal(lambda: client.improve(lr="fast"))[0] == 422
    assert refusal(lambda: client.improve(checkpoint="/etc/passwd"))[0] == 422
    job = client.wait(client.improve(train="none"), 0.05)
    assert job["state"] == "done"
    state = client.state()
    assert state["candidate"]["new_classes"] == list(drawings)[:3]
    assert state["active_version"]["id"] == 1
    assert not state["improve"]["possible"]
    assert refusal(lambda: client.forget(2))[0] == 409  # not taken over yet
    client.discard(2)
    assert not (running.project.folder / "versions" / "2.kedge").exists()
    assert refusal(lambda: client.activate(2))[0] == 409

    version = client.wait(client.improve(train="none"), 0.05)["version"]
    assert client.activate(version) == {"version": version, "lost_classes": []}
    classes = {each["name"]: each for each in client.classes()}
    assert (classes["second 0"]["learned_in"], classes["first 0"]["learned_in"]) == (version, 1)
    assert not client.state()["improve"]["possible"]
    files = [files[0] for files in list(drawings.values())[:3]]
    named = [each["answer"] for each in client.ask(files)["answers"]]
    shown = {each["number"]: each for each in client.versions()}
    assert [shown[1]["active"], shown[version]["active"]] == [False, True]
    assert (shown[version]["parent"], shown[version]["pictures_left"]) == (1, 15)
    assert shown[version]["outcome"]["sentence"]

    client.send("PATCH", f"/api/classes/{classes['second 0']['id']}", {"name": "renamed"})
    path = running.project.folder.parent / "got.kedge"
    path.write_bytes(client.model(version))
    assert {"renamed", "first 0"} < set(kedge.load(path).classes)

    client.activate(1)  # back: the pictures are taught classes again
    assert client.ask(files)["version"] == 1
    assert client.state()["improve"]["n_pictures"] == 15
    assert refusal(lambda: client.forget(version))[0] == 409  # the classes would be lost
    client.activate(version)
    said = client.forget(version)
    assert said["deleted"] == 15
    assert {each["examples"] for each in said["remains"]["classes"]} == {5}
    assert client.state()["counts"]["pictures"] == 0
    named = ["renamed" if name == "second 0" else name for name in named]
    assert [each["answer"] for each in client.ask(files)["answers"]] == named
    assert len(client.activate(1)["lost_classes"]) == 3


def test_jobs_and_events_are_listed(client: Client) -> None:
    client.make_class("one")
    assert client.get("/api/jobs") == {"jobs": []}
    assert refusal(lambda: client.job(7))[0] == 404
    [event] = client.get("/api/events?limit=1")["events"]
    assert (event["action"], event["detail"]["name"]) == ("class made", "one")
    assert client.get(f"/api/events?before={event['id']}")["events"] == []


def test_page_health_metrics_and_description(running: Running) -> None:
    client = running.client()
    assert client.get("/healthz") == {"status": "ok", "version": 1}
    assert b"<title>" in client.request("GET", "/")
    metrics = client.request("GET", "/metrics").decode()
    assert 'kedge_requests_total{method="GET",route="/healthz",status="200"} 1' in metrics
    assert "kedge_classes 6" in metrics
    paths = client.get("/api/openapi.json")["paths"]
    assert "multipart/form-data" in json.dumps(paths["/api/ask"]["post"]["requestBody"])
    assert refusal(lambda: client.get("/api/docs"))[0] == 404
