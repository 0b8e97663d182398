"""Signatures: whatever is wrong ends in a sentence; OpenSSL makes and takes the same ones."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kedge.utils import signature

pytest.importorskip("cryptography", reason="signatures need kedge[sign]")
Cli = Any  # of conftest.py
GOLDEN = Path(__file__).parents[1] / "golden" / "base.kedge"
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl")


@pytest.fixture
def signed(cli: Cli, tmp_path: Path) -> Path:
    """A folder with a signed model m.kedge, its signature, and the keys my.pem and my.pub."""
    shutil.copy(GOLDEN, tmp_path / "m.kedge")
    ended = cli("sign", "m.kedge", "--key", "my.pem", "--new-key", cwd=tmp_path)
    assert ended.rc == 0, ended.err
    assert "m.kedge.sig" in ended.out
    return tmp_path


def openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True, timeout=60)


def test_unchanged_model_is_shown(cli: Cli, signed: Path) -> None:
    assert "my.pub" in cli("show", "m.kedge", "--verify", "my.pub", cwd=signed).out
    shown = cli("show", "m.kedge", "--verify", "my.pub", "--json", cwd=signed).out
    assert json.loads(shown)["verified"] == "my.pub"
    assert json.loads(cli("show", "m.kedge", "--json", cwd=signed).out)["verified"] is None
    if os.name == "posix":
        assert stat.S_IMODE((signed / "my.pem").stat().st_mode) == 0o600


def flip(name: str, position: int) -> Callable[[Path], object]:
    def damage(folder: Path) -> None:
        content = bytearray((folder / name).read_bytes())
        content[position] ^= 1
        (folder / name).write_bytes(content)

    return damage


def cut(name: str, length: int) -> Callable[[Path], object]:
    return lambda folder: os.truncate(folder / name, length)


def write(name: str, content: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(content)


def other_key(folder: Path) -> None:
    (folder / "my.pub").unlink()
    signature.make_key(folder / "other.pem")
    (folder / "other.pub").rename(folder / "my.pub")


def private_key(folder: Path) -> None:
    shutil.copy(folder / "my.pem", folder / "my.pub")


WRONG = {
    "changed model": (flip("m.kedge", -1), "m.kedge", "another key"),
    "first byte of the model": (flip("m.kedge", 0), "m.kedge", "changed"),
    "truncated model": (cut("m.kedge", 1000), "m.kedge", "changed"),
    "empty model": (cut("m.kedge", 0), "m.kedge", "changed"),
    "no model": (lambda folder: (folder / "m.kedge").unlink(), "m.kedge", "no file"),
    "changed signature": (flip("m.kedge.sig", 5), "m.kedge", "changed"),
    "truncated signature": (cut("m.kedge.sig", 63), "m.kedge.sig", "64 bytes"),
    "longer signature": (write("m.kedge.sig", "x" * 65), "m.kedge.sig", "64 bytes"),
    "no signature": (lambda folder: (folder / "m.kedge.sig").unlink(), "m.kedge.sig", "no signat"),
    "other key": (other_key, "m.kedge", "another key"),
    "private key": (private_key, "my.pub", "public"),
    "truncated key": (cut("my.pub", 60), "my.pub", "public"),
    "no key": (lambda folder: (folder / "my.pub").unlink(), "my.pub", "no key"),
    "pipe for a key": (
        lambda folder: ((folder / "my.pub").unlink(), os.mkfifo(folder / "my.pub")),
        "my.pub",
        "pipe",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_whatever_is_wrong_is_told_before_anything_is_shown(
    case: str, cli: Cli, signed: Path
) -> None:
    change, names, says = WRONG[case]
    change(signed)
    ended = cli("show", "m.kedge", "--verify", "my.pub", cwd=signed)
    assert ended.sentence.startswith(f"{names}: ")
    assert says in ended.sentence
    assert ended.out == ""


def test_nothing_is_overwritten(cli: Cli, signed: Path) -> None:
    before = {path.name: path.read_bytes() for path in signed.iterdir()}
    for words, names in [
        (["m.kedge", "--key", "my.pem"], "m.kedge.sig"),
        (["my.pem", "--key", "my.pem", "--new-key"], "my.pem"),
        (["my.pem", "--key", "my.key", "--new-key"], "my.pub"),
        (["my.pem", "--key", "new.pub", "--new-key"], "new.pub"),
        (["gone", "--key", "new.pem", "--new-key"], "gone"),
        (["my.pem", "--key", "my.pub"], "my.pub"),
    ]:
        assert cli("sign", *words, cwd=signed).sentence.startswith(f"{names}: ")
    assert {path.name: path.read_bytes() for path in signed.iterdir()} == before


@needs_openssl
def test_openssl_verifies_our_signatures_and_we_verify_its_own(cli: Cli, signed: Path) -> None:
    by = ("-rawin", "-in", "m.kedge")
    openssl(
        signed, "pkeyutl", "-verify", "-pubin", "-inkey", "my.pub", *by, "-sigfile", "m.kedge.sig"
    )
    (signed / "m.kedge.sig").unlink()
    openssl(signed, "genpkey", "-algorithm", "ed25519", "-out", "its.pem")
    openssl(signed, "pkey", "-in", "its.pem", "-pubout", "-out", "its.pub")
    openssl(signed, "pkeyutl", "-sign", "-inkey", "its.pem", *by, "-out", "m.kedge.sig")
    assert cli("show", "m.kedge", "--verify", "its.pub", cwd=signed).rc == 0
    theirs = (signed / "m.kedge.sig").read_bytes()
    (signed / "m.kedge.sig").unlink()
    assert cli("sign", "m.kedge", "--key", "its.pem", cwd=signed).rc == 0
    assert (signed / "m.kedge.sig").read_bytes() == theirs


@needs_openssl
def test_keys_of_other_kinds_are_told(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(b"model")
    locked = ("-aes256", "-pass", "pass:secret")
    openssl(tmp_path, "genpkey", "-algorithm", "ed25519", *locked, "-out", "locked.pem")
    openssl(tmp_path, "genpkey", "-algorithm", "ed448", "-out", "ed448.pem")
    for name, says in (("locked.pem", "passphrase"), ("ed448.pem", "ed25519"), ("m", "ed25519")):
        ended = cli("sign", "m", "--key", name, cwd=tmp_path)
        assert ended.sentence.startswith(f"{name}: ")
        assert says in ended.sentence
