"""The ML backend for Label Studio, with requests as Label Studio sends them."""

from __future__ import annotations

import base64
import importlib.util
import json
import sys
import threading
from http.server import HTTPServer
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "label_studio_backend.py"
Running = Any  # of conftest.py, which cannot be imported


def load_example(monkeypatch: pytest.MonkeyPatch, address: str) -> Any:
    """The example with a server of its own on a free port."""
    made: list[HTTPServer] = []

    def serve_forever(server: HTTPServer) -> None:
        made.append(server)

    monkeypatch.setattr(HTTPServer, "serve_forever", serve_forever)
    monkeypatch.setattr(sys, "argv", ["backend", "--kedge", address, "--port", "0"])
    spec = importlib.util.spec_from_file_location("label_studio_backend", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    monkeypatch.undo()
    return made[0]


def test_suggests_and_learns(
    running: Running, monkeypatch: pytest.MonkeyPatch, picture: Any
) -> None:
    server = load_example(monkeypatch, running.address)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:

        def post(path: str, value: Any) -> Any:
            address = f"http://127.0.0.1:{server.server_port}{path}"
            with urlopen(Request(address, json.dumps(value).encode(), method="POST")) as answer:
                return json.load(answer)

        data = {"image": "data:image/png;base64," + base64.b64encode(picture(1)).decode()}
        assert post("/setup", {}) == {"model_version": "1"}
        [said] = post("/predict", {"tasks": [{"data": data}]})["results"]
        [result] = said["result"]
        assert (result["from_name"], result["to_name"], result["type"]) == (
            *("choice", "image"),
            "choices",
        )
        assert result["value"]["choices"][0].startswith("first ")
        chosen = {"result": [{"value": {"choices": ["seen"]}}]}
        post("/", {"action": "ANNOTATION_CREATED", "annotation": chosen, "task": {"data": data}})
        counts = {each["name"]: each["n_pictures"] for each in running.client().classes()}
        assert counts["seen"] == 1
        foreign = {"image": "http://evil.example/a.png"}
        with pytest.raises(ConnectionError):
            post("/predict", {"tasks": [{"data": foreign}]})
        assert running.client().state()["counts"]["pictures"] == 1
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        server.RequestHandlerClass.kedge.close()
