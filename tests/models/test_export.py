"""ONNX gives what PyTorch gives, and docs/model-file.md reads a model without kedge."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from PIL import Image
from torch import Tensor

from kedge import __version__, api
from kedge.data.table import ImageTable
from kedge.models.model import Model

Ready = Any  # of conftest.py, which cannot be imported
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "model-file.md").read_text(encoding="utf-8")
SCRIPTS = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.S))
SHORT = {"n_way": 2, "n_shot": 1, "n_query": 2, "epochs": 1, "episodes": 2, "val_episodes": 4}
pytestmark = pytest.mark.slow  # the exporter takes seconds to load
HEADS = ("prototype", "ecm", "ridge")


def pictures(n_channels: int, side: int, n: int = 60) -> Tensor:
    generator = torch.Generator().manual_seed(n_channels)
    return torch.randint(0, 256, (n, n_channels, side, side), generator=generator).to(torch.uint8)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A model file by backbone and head. Conv-4 takes grey images of 35 px, ResNet-12 takes RGB."""
    folder = tmp_path_factory.mktemp("trained")

    def make(backbone: str, head: str) -> Path:
        path = folder / f"{backbone} {head}.kedge"
        if not path.exists():
            images = pictures(*((1, 35) if backbone == "conv4" else (3, 19)))
            names = ("größe", "猫", *(f"class {i}" for i in range(4)))
            table = ImageTable.build(images, np.repeat(np.arange(6), 10), names, "noise")
            api.train(table, backbone=backbone, width=3, head=head, **SHORT).save(path)
        return path

    return make


def support_of(model: Model, folder: Path) -> Path:
    """Examples of three classes that the model has not seen, unequal in number."""
    for name, n in (("a", 1), ("b b", 4), ("ü", 2)):
        (folder / name).mkdir(parents=True)
        for i in range(n):
            pixels = np.random.default_rng([n, i]).integers(0, 256, (50, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    return folder


def run_onnx(path: Path, output: str, pixels: Tensor) -> Tensor:
    onnx.checker.check_model(str(path), full_check=True)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (given,), (result,) = session.get_inputs(), session.get_outputs()
    assert (given.name, given.type, given.shape) == (
        "pixels",
        "tensor(uint8)",
        ["n", *pixels.shape[1:]],
    )
    assert (result.name, result.type, result.shape[0]) == (output, "tensor(float)", "n")
    return torch.from_numpy(session.run([output], {"pixels": pixels.numpy()})[0])


# ── the graph ────────────────────────────────────────────────────────────────────────────────


COMMANDS = """
import sys, kedge.cli
for words in {commands!r}:
    sys.argv = ["kedge", "export", *words]
    kedge.cli.main()
"""


@pytest.mark.parametrize("backbone", ["conv4", "resnet12"])
def test_onnx_gives_what_pytorch_gives(
    trained: Any, ready: Ready, tmp_path: Path, backbone: str
) -> None:
    """By the command, all in one process: the exporter takes seconds to load."""
    files = {head: trained(backbone, head) for head in HEADS}
    models = {head: Model.load(file) for head, file in files.items()}
    support = support_of(models["prototype"], tmp_path / "support")
    how = {  # what is written, the options, and what it must give
        "features": ("prototype", [], models["prototype"]),
        "support by prototype": ("prototype", ["--support", str(support)], None),
        "known by ecm": ("ecm", ["--include-known"], models["ecm"].classifier()),
        "both by ridge": ("ridge", ["--include-known", "--support", str(support)], None),
    }
    outs = {name: tmp_path / "new" / f"{name}.onnx" for name in how}
    commands = [
        [str(files[head]), "--out", str(outs[name]), *options]
        for name, (head, options, _) in how.items()
    ]
    ended = ready(COMMANDS.format(commands=commands))
    assert (ended.rc, ended.err) == (0, ""), ended.err
    assert len(ended.out.splitlines()) == len(how)
    for name, (head, options, expected) in how.items():
        model = models[head]
        if expected is None:
            expected = model.classifier(support, known="--include-known" in options)
        for n in (1, 7):
            images = pictures(model.config.n_channels, model.config.image_size, n)
            if isinstance(expected, Model):
                given, wanted = run_onnx(outs[name], "features", images), model.embed(images)
            else:
                given = run_onnx(outs[name], "probabilities", images)
                wanted = expected.predict_proba(images)
            torch.testing.assert_close(given, wanted, msg=lambda text, name=name: f"{name}: {text}")
        said = metadata_of(outs[name])
        classes = json.loads(said.pop("classes", "null"))
        assert classes == (None if isinstance(expected, Model) else list(expected.classes))
        (entry,) = json.loads(said.pop("lineage"))
        assert entry.pop("val_accuracy") == model.lineage[0].val_accuracy
        assert entry == {"round": 0, "method": "base", "classes": 6, "images": 42}
        assert said == {
            "image_size": str(model.config.image_size),
            "channels": str(model.config.n_channels),
            "fit": "crop",
            "interpolation": "bicubic",
            "inverted": "false",
            "model": model.fingerprint,
            "kedge": __version__,
        }
        # Neither where this machine keeps its files, nor lines of source.
        assert not re.search(rb"\.py\b|site-packages|stack_trace", outs[name].read_bytes())
    np.save(tmp_path / "pixels.npy", images.numpy())
    said = run_script("by_onnx.py", outs["known by ecm"], tmp_path / "pixels.npy")
    names = [line.split("\t")[0] for line in said.splitlines()]
    assert names == models["ecm"].classifier().predict(images)


def metadata_of(path: Path) -> dict[str, str]:
    return {entry.key: entry.value for entry in onnx.load(path).metadata_props}


OWN = """
import sys, torch, kedge
from torch import nn
from kedge.models.export import export_onnx

kedge.set_verbosity("warning")

class Own(nn.Module):
    branches = False

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 6, 3, stride=2)

    def forward(self, images):
        if self.branches and images.mean() > 0.5:
            images = images.flip(3)
        return self.first(images).tanh().mean((2, 3))

torch.manual_seed(0)
images = torch.randint(0, 256, (60, 1, 16, 16)).to(torch.uint8)
labels = torch.arange(6).repeat_interleave(10)
model = kedge.train((images, labels), backbone=Own(), **{short})
export_onnx(model, "own.onnx")
torch.save((images, model.embed(images)), "own.pt")
Own.branches = True  # and there is no graph for that
try:
    export_onnx(model, "branches.onnx")
except kedge.KedgeError as error:
    sys.exit(f"kedge: {error}")
"""


def test_backbone_of_ones_own(ready: Ready, tmp_path: Path) -> None:
    """It is exported too, unless its computation depends on its input."""
    sentence = ready(OWN.replace("{short}", repr(SHORT)), tmp_path).sentence
    images, features = torch.load(tmp_path / "own.pt")
    torch.testing.assert_close(run_onnx(tmp_path / "own.onnx", "features", images), features)
    assert "branches.onnx" in sentence
    assert {path.name for path in tmp_path.iterdir()} == {"own.onnx", "own.pt"}


def test_missing_package_is_named(trained: Any, ready: Ready, tmp_path: Path) -> None:
    hide = "import sys; sys.modules['onnxscript'] = None; "
    out = tmp_path / "out.onnx"
    ended = ready.kedge("export", trained("conv4", "ecm"), "--out", out, first=hide)
    assert "onnxscript" in ended.sentence
    assert "kedge[export]" in ended.sentence
    assert not out.exists()


# ── docs/model-file.md ───────────────────────────────────────────────────────────────────────


def run_script(name: str, *args: Path) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPTS[name], *map(str, args)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize("backbone", ["conv4", "resnet12"])
def test_features_in_plain_pytorch(trained: Any, tmp_path: Path, backbone: str) -> None:
    model = Model.load(file := trained(backbone, "prototype"))
    images = pictures(model.config.n_channels, model.config.image_size, 5)
    np.save(tmp_path / "pixels.npy", images.numpy())
    run_script("by_torch.py", file, tmp_path / "pixels.npy", tmp_path / "features.npy")
    features = torch.from_numpy(np.load(tmp_path / "features.npy"))
    torch.testing.assert_close(features, model.embed(images))


def test_classes_in_plain_numpy(trained: Any, tmp_path: Path) -> None:
    model = Model.load(file := trained("conv4", "prototype"))
    paths = sorted(support_of(model, tmp_path).rglob("*.png"))
    said = [line.split("\t") for line in run_script("by_numpy.py", file, *paths).splitlines()]
    images = model.open(tmp_path).images
    best = model.classifier().predict_proba(images).max(1)
    assert [path for path, _, _ in said] == [str(path) for path in paths]
    assert [name for _, name, _ in said] == [model.classes[i] for i in best.indices.tolist()]
    probabilities = torch.tensor([float(p) for _, _, p in said])
    torch.testing.assert_close(probabilities, best.values, rtol=0, atol=1e-4)  # as it is printed


def test_check_by_hand(trained: Any, tmp_path: Path) -> None:
    content = bytearray(trained("conv4", "ecm").read_bytes())
    path = tmp_path / "copy"
    path.write_bytes(content)
    assert run_script("check.py", path) == "version 2 whole\n"
    content[-1] ^= 1
    path.write_bytes(content)
    assert run_script("check.py", path) == "version 2 DAMAGED\n"
