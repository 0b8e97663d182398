"""Files and random draws of an earlier version: today's code must read and repeat them.

golden/ was written before options and modules were renamed. The models and the checkpoint were
made with small folders of the embedded drawings, which `deliver` writes again.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torch import Tensor

import kedge
from kedge.benchmarks import PROTOCOLS, Protocol
from kedge.config import EpisodeShape
from kedge.data.augment import draw_augmentation
from kedge.data.open import open_images
from kedge.data.pools import Pool
from kedge.episodes.sampler import sample_anchors, sample_episodes
from kedge.models.model import Model
from kedge.utils.atomic_io import load_tensors
from kedge.utils.seeding import generator

GOLDEN = Path(__file__).with_name("golden")
DIGESTS: dict[str, str] = json.loads((GOLDEN / "digests.json").read_text())
QUICK: dict[str, Any] = {"epochs": 1, "episodes": 2, "val_episodes": 4}
CONTINUED: dict[str, Any] = {"episodes": 40, "width": 8}  # options of the stopped command
Cli = Callable[..., Any]  # of conftest.py


def digest(*values: Tensor | bytes) -> str:
    parts = (v.numpy().tobytes() if isinstance(v, Tensor) else v for v in values)
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def deliver(folder: Path, start: int, stop: int) -> Path:
    """A folder with 30 images of each of some classes of the drawings."""
    table = open_images("drawings")
    for name in table.classes[start:stop]:
        (folder / name).mkdir(parents=True)
        for i, row in enumerate(table.rows_of(name)[:30].tolist()):
            image = Image.fromarray(np.asarray(table.images[row][0]))
            image.save(folder / name / f"{i:02d}.png")
    return folder


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return deliver(tmp_path_factory.mktemp("golden") / "renamed", 0, 12)


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return deliver(tmp_path_factory.mktemp("golden") / "second", 12, 22)


# ── draws ────────────────────────────────────────────────────────────────────────────────────


def split_digests(protocol: Protocol) -> Iterator[tuple[str, str]]:
    """The split of each seed, and the images that each round trains and validates on."""
    for seed in (0, 1, 7):
        benchmark = protocol.benchmark(seed)
        split = json.dumps(asdict(benchmark.split), sort_keys=True)
        yield f"split {protocol.name} {seed}", digest(split.encode())
        for round in range(benchmark.n_rounds):
            data = benchmark.round_data(round)
            yield f"rows {protocol.name} {seed} {round}", digest(data.train.rows, data.val.rows)


@pytest.mark.parametrize("protocol", sorted({key.split()[1] for key in DIGESTS if "rows" in key}))
def test_classes_and_training_images_of_every_round_stay(protocol: str) -> None:
    expected = {key: value for key, value in DIGESTS.items() if f" {protocol} " in key}
    assert dict(split_digests(PROTOCOLS[protocol])) == expected


def test_episodes_anchors_and_augmentation_stay() -> None:
    table = open_images("drawings")
    pool = Pool.all("x", table, table.classes[:40])
    shapes = {"5-way": EpisodeShape(), "range": EpisodeShape((3, 8), (1, 5), 7)}
    found = {}
    for name, shape in shapes.items():
        drawn = sample_episodes(pool, shape, 50, generator("train", 0, 1, 2))
        counts = repr((drawn.n_way, drawn.n_shot)).encode()
        found[f"episodes {name}"] = digest(drawn.positions, drawn.classes, counts)
    found["anchors"] = digest(sample_anchors(30, 5, 50, generator("anchors", 0, 1, 2)))
    drawn = draw_augmentation(generator("augment", 0, 1, 2), 20, 100, 28)
    found["augmentation"] = digest(drawn.top, drawn.left, drawn.mirrored, drawn.colour)
    others = {
        key: value for key, value in DIGESTS.items() if key.split()[0] not in ("split", "rows")
    }
    assert found == others


# ── models ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("file", "methods", "head"),
    [
        ("base.kedge", ["base"], "prototype"),
        ("ida.kedge", ["base", "IDA"], "prototype"),
        ("ecm.kedge", ["base"], "ecm inner_steps=20"),  # "ecm steps=20" in the file
    ],
)
def test_model_is_loaded_used_and_updated(
    file: str, methods: list[str], head: str, first: Path, second: Path
) -> None:
    model = Model.load(GOLDEN / file)
    names = open_images("drawings").classes
    assert model.classes == names[: 12 if len(methods) == 1 else 22]
    assert [entry.method for entry in model.lineage] == methods
    assert model.config.head.head == head
    delivery = first if len(methods) == 1 else second
    named = kedge.evaluate(model, delivery, known=True)
    assert named.mean > 200 / len(model.classes)  # twice as often as by chance
    updated = kedge.update(model, second, **QUICK)
    assert updated.classes == names[:22]
    assert [entry.method for entry in updated.lineage] == [*methods, "IDA+"]


def test_memory_serves_an_update(second: Path, tmp_path: Path, cli: Cli) -> None:
    for file in ("base.kedge", "base.kedge.memory"):
        shutil.copy(GOLDEN / file, tmp_path)
    options = ["--method", "EIML exemplars=8", "--epochs", 1, "--episodes", 2, "--val-episodes", 4]
    ended = cli("update", "base.kedge", second, "--out", "next.kedge", *options, cwd=tmp_path)
    assert ended.rc == 0, ended.err
    _, before = load_tensors(tmp_path / "base.kedge.memory", "memory")
    _, after = load_tensors(tmp_path / "next.kedge.memory", "memory")
    assert after["counts"].tolist() == [8] * 22
    assert (after["images"][: len(before["images"])] == before["images"]).all()


# ── a stopped run ────────────────────────────────────────────────────────────────────────────


def checkpoint_about(path: Path) -> dict[str, Any]:
    return load_tensors(path, "checkpoint")[0]


def test_stopped_training_has_the_same_identity(first: Path, tmp_path: Path) -> None:
    """All but the starting weights, which depend on the processor in the last bit."""
    kedge.train(first, checkpoint=tmp_path / "training", epochs=1, **CONTINUED)
    old, new = (
        json.loads(checkpoint_about(path)["identity"])
        for path in (GOLDEN / "half.kedge.training", tmp_path / "training")
    )
    assert list(old) == list(new)
    assert {**old, "start": None} == {**new, "start": None}


@pytest.mark.slow
def test_stopped_training_is_continued(first: Path, tmp_path: Path, cli: Cli) -> None:
    """Nine of its epochs were done; the folder has another name and path than then."""
    before = checkpoint_about(GOLDEN / "half.kedge.training")
    kedge.train(first, checkpoint=tmp_path / "fresh", epochs=1, **CONTINUED)
    if checkpoint_about(tmp_path / "fresh")["identity"] != before["identity"]:
        pytest.skip("this processor computes other starting weights, in the last bit")
    shutil.copy(GOLDEN / "half.kedge.training", tmp_path / "training")
    kedge.train(first, checkpoint=tmp_path / "training", epochs=11, **CONTINUED)
    after = checkpoint_about(tmp_path / "training")
    assert len(after["history"]) == 11
    for now, then in zip(after["history"], before["history"], strict=False):
        assert {name: now[name] for name in then} == then  # later versions may add metrics
    shutil.copy(GOLDEN / "half.kedge.training", tmp_path)
    options = ["--epochs", 9, "--episodes", 40, "--width", 8]
    ended = cli("train", first, "--out", "half.kedge", *options, cwd=tmp_path)
    assert ended.rc == 0, ended.err
    [entry] = Model.load(tmp_path / "half.kedge").lineage
    assert (entry.best_epoch, entry.val_accuracy) == (before["best_epoch"], before["best"])
    assert not (tmp_path / "half.kedge.training").exists()
