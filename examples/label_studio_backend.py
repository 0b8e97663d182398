"""An ML backend for Label Studio: it suggests classes, and each annotation teaches one picture.

    kedge serve flowers/
    python examples/label_studio_backend.py --label-studio http://localhost:8080 --token TOKEN

In Label Studio: Settings, Model, http://localhost:9090; and a webhook to http://localhost:9090 for
annotations that are created. The labelling interface needs <Image name="image" …> and <Choices
name="choice" toName="image">. Pictures are fetched from that Label Studio and from nowhere else.
"""

from __future__ import annotations

import argparse
import base64
import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import urljoin, urlsplit
from urllib.request import Request, urlopen

from kedge.serve.client import Client

MOST_BYTES = 64 << 20  # of a picture or a request


class Backend(BaseHTTPRequestHandler):
    options: argparse.Namespace
    kedge: Client

    def do_GET(self) -> None:
        self.answer({"status": "UP", "model_class": "kedge"})

    def do_POST(self) -> None:
        body = self.rfile.read(min(int(self.headers.get("Content-Length", 0)), MOST_BYTES))
        given = json.loads(body or b"{}")
        if self.path == "/predict":
            self.answer({"results": [self.suggestion(task) for task in given.get("tasks", [])]})
        elif self.path == "/setup":
            self.answer({"model_version": str(self.kedge.state()["active_version"]["number"])})
        elif given.get("action") in ("ANNOTATION_CREATED", "ANNOTATION_UPDATED"):
            self.answer(self.teach(given))
        else:
            self.answer({})

    def suggestion(self, task: dict[str, Any]) -> dict[str, Any]:
        said = self.kedge.ask([self.picture(task)], reject=self.options.reject)
        results, score = [], 0.0
        for answer in said["answers"]:
            if answer["answer"] is not None:
                score = answer["ranking"][0]["probability"]
                where = {"from_name": self.options.choice, "to_name": self.options.image}
                value = {"choices": [answer["answer"]]}
                results.append({**where, "type": "choices", "value": value, "score": score})
        return {"model_version": str(said["version"]), "score": score, "result": results}

    def teach(self, given: dict[str, Any]) -> dict[str, Any]:
        chosen = [c for r in given["annotation"]["result"] for c in r["value"].get("choices", [])]
        return (
            {} if len(chosen) != 1 else self.kedge.teach(chosen[0], [self.picture(given["task"])])
        )

    def picture(self, task: dict[str, Any]) -> bytes:
        source = str(task["data"][self.options.image])
        if source.startswith("data:"):
            return base64.b64decode(source.partition(",")[2])
        base = self.options.label_studio
        url = urljoin(base, source)
        if urlsplit(url)[:2] != urlsplit(base)[:2]:
            raise ValueError(f"{url} is not a picture of {base}")
        token = {"Authorization": f"Token {self.options.token}"}
        with urlopen(Request(url, headers=token), timeout=30) as response:
            return bytes(response.read(MOST_BYTES))

    def answer(self, value: dict[str, Any]) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kedge", default="http://127.0.0.1:8600")
    parser.add_argument("--kedge-token", default="")
    parser.add_argument("--label-studio", default="http://localhost:8080")
    parser.add_argument("--token", default="", help="of Label Studio, to fetch its pictures")
    parser.add_argument("--choice", default="choice", help="name of <Choices>")
    parser.add_argument("--image", default="image", help="name of <Image>, and of its data")
    parser.add_argument("--reject", type=float, help="no suggestion for strange pictures, as 0.05")
    parser.add_argument("--port", type=int, default=9090)
    Backend.options = parser.parse_args()
    Backend.kedge = Client(Backend.options.kedge, Backend.options.kedge_token)
    HTTPServer(("127.0.0.1", Backend.options.port), Backend).serve_forever()


main()
