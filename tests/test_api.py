"""The life of a model from Python: trained, updated twice while old images go, and used."""

from __future__ import annotations

import itertools
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from kedge import api
from kedge.data.open import open_images
from kedge.data.table import ImageTable
from kedge.errors import KedgeError
from kedge.evaluation import naming
from kedge.models.model import Model
from kedge.training.user_settings import summarize_update
from kedge.utils import progress

SHAPE: dict[str, Any] = {"n_way": 3, "n_shot": 2, "n_query": 3}
SHORT: dict[str, Any] = {**SHAPE, "epochs": 2, "episodes": 6, "val_episodes": 10}
TINY: dict[str, Any] = {**SHAPE, "epochs": 1, "episodes": 1, "val_episodes": 2}
NAMES = [[f"{round} {i}" for i in range(6)] for round in ("first", "second", "third")]
Draw = Callable[..., Path]  # of conftest.py


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, draw_classes: Draw) -> list[Model]:
    """Models of three rounds; each delivery is deleted before the next one comes."""
    folder = tmp_path_factory.mktemp("deliveries")
    models: list[Model] = []
    for names in NAMES:
        delivery = draw_classes(folder / "images", names)
        if models:
            models.append(api.update(models[-1], delivery, **SHORT))
        else:
            models.append(api.train(delivery, width=8, **SHORT))
        shutil.rmtree(delivery)
    return models


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory, draw_classes: Draw) -> ImageTable:
    names = [f"class {i}" for i in range(9)]
    return open_images(draw_classes(tmp_path_factory.mktemp("table") / "images", names))


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    notes: list[str] = []
    monkeypatch.setattr(progress, "note", notes.append)
    return notes


# ── the life of a model ──────────────────────────────────────────────────────────────────────


def test_every_delivered_class_is_known(models: list[Model]) -> None:
    for n, model in enumerate(models, 1):
        assert model.classes == tuple(name for names in NAMES[:n] for name in names)
        assert model.anchors.shape == (6 * n, model.config.n_features)
    for before, after in itertools.pairwise(models):
        assert torch.equal(after.anchors_of(before.classes), before.anchors), "anchors never change"


def test_lineage_describes_the_rounds(models: list[Model]) -> None:
    rounds = models[-1].lineage
    assert [(entry.round, entry.method) for entry in rounds] == [
        (0, "base"),
        (1, "IDA+"),
        (2, "IDA+"),
    ]
    assert models[0].lineage == rounds[:1]
    for entry, names in zip(rounds, NAMES, strict=True):
        assert entry.classes == tuple(names)
        assert entry.images == 7 * 6  # the others validated
        assert entry.source.endswith("images")
        assert entry.config["episode"] == SHAPE
        assert entry.config["schedule"]["epochs"] == 2
        assert 1 <= entry.best_epoch <= 2


def test_classifier_names_images_of_new_classes(
    models: list[Model], tmp_path: Path, draw_classes: Draw
) -> None:
    """Six classes that no round has met, three examples of each: chance is 17%."""
    table = open_images(draw_classes(tmp_path / "new", [f"new {i}" for i in range(6)]))
    rows = {name: table.rows_of(name) for name in table.classes}
    classifier = models[-1].classifier({name: table.images[r[:3]] for name, r in rows.items()})
    correct = [
        predicted == name
        for name, r in rows.items()
        for predicted in classifier.predict(table.images[r[3:]])
    ]
    assert len(correct) == 6 * 9
    assert np.mean(correct) > 0.7


def test_evaluate_repeats_its_episodes(models: list[Model], second: Path) -> None:
    score = api.evaluate(models[1], second, n_episodes=60, **SHAPE)
    assert score.n == 60
    assert score.mean > 60  # chance is 33%
    assert 0 < score.ci < 10
    assert api.evaluate(models[1], open_images(second), n_episodes=60, **SHAPE) == score
    assert api.evaluate(models[1], second, n_episodes=60, seed=1, **SHAPE) != score
    for wrong in ({"n_episodes": 1}, {"n_episodes": 2.5}, {"seed": -1}):
        with pytest.raises(KedgeError, match=f"--{next(iter(wrong)).replace('_', '-')} is "):
            api.evaluate(models[1], second, **wrong)


def test_naming_accuracy_is_the_share_of_correct_names(
    models: list[Model], draw_classes: Draw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Known classes with different numbers of images, in several batches; others are left out."""
    monkeypatch.setattr(naming, "LOGITS_BATCH", 7)
    names = [*NAMES[2][:3], *NAMES[0][2:5], "another"]
    table = models[2].open(draw_classes(tmp_path / "images", names))
    given = {name: table.images[table.rows_of(name)[: 2 + 2 * i]] for i, name in enumerate(names)}
    score = api.evaluate(models[2], given, known=True)
    del given["another"]
    classifier = models[2].classifier()
    correct = [p == name for name, images in given.items() for p in classifier.predict(images)]
    assert 0 < sum(correct) < len(correct) == score.n
    assert score.mean == pytest.approx(100 * sum(correct) / len(correct))


def test_same_seed_same_model(first: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    model = api.train(first, width=4, **TINY)
    assert torch.equal(torch.rand(3), expected), "the caller's random numbers are not touched"
    np.random.seed(123)
    assert api.train(first, width=4, **TINY).fingerprint == model.fingerprint
    assert api.train(first, width=4, seed=1, **TINY).fingerprint != model.fingerprint


def test_command_and_function_write_the_same_file(
    by_command: dict[str, Path], first: Path, second: Path, tmp_path: Path
) -> None:
    options = {**SHAPE, "epochs": 3, "episodes": 20, "val_episodes": 40, "seed": 3}
    base = api.train(first, width=4, **options)
    base.save(tmp_path / "base.kedge")
    api.update(base, second, **options).save(tmp_path / "next.kedge")
    for name in ("base", "next"):
        assert (tmp_path / f"{name}.kedge").read_bytes() == by_command[name].read_bytes()


def test_methods_differ_and_lambda_0_is_fine_tuning(models: list[Model], second: Path) -> None:
    prints = {
        method: api.update(models[0], second, method=method, **TINY).fingerprint
        for method in ("FT", "IDA", "DFA", "IDA lambda=0", "DFA lambda=0")
    }
    assert prints["FT"] == prints["IDA lambda=0"] == prints["DFA lambda=0"]
    assert len(set(prints.values())) == 3
    for method in ("NU", "PAR"):
        with pytest.raises(KedgeError, match=f"'{method}' cannot update"):
            api.update(models[0], second, method=method, **TINY)


# ── options, inferred and wrong ──────────────────────────────────────────────────────────────


def test_what_is_inferred_is_told_before_training(first: Path, notes: list[str]) -> None:
    model = api.train(first, n_way=2, epochs=1, episodes=1)
    assert notes[0].startswith(f"{first}: 6 classes of 12 images, at 16 px in grey.")
    inferred = {"image_size": 16, "backbone": "conv4", "width": 64, "n_shot": 2, "n_query": 2}
    for name, value in inferred.items():
        assert any(note.startswith(f"  {name}={value!r}: ") for note in notes), name
    assert not any("n_way=" in note or "epochs=" in note for note in notes)
    assert model.lineage[0].config["episode"] == {"n_way": 2, "n_shot": 2, "n_query": 2}
    notes.clear()
    api.update(model, first, n_way=2, epochs=1, episodes=1)
    assert not any("backbone=" in note or "image_size=" in note for note in notes)
    assert any(note.startswith("  n_shot=2: ") for note in notes)


@pytest.mark.usefixtures("unchecked")
def test_wrong_options_are_told_before_images_are_read(models: list[Model]) -> None:
    for wrong in ({"n_way": 1}, {"n_query": 0}, {"epochs": -1}, {"seed": "a"}):
        option = f"--{next(iter(wrong)).replace('_', '-')} is "
        with pytest.raises(KedgeError, match=option):
            api.train("gone", **wrong)
        with pytest.raises(KedgeError, match=option):
            api.update(models[0], "gone", **wrong)
    with pytest.raises(KedgeError, match=r"'episode'.*n_way"):
        api.train("gone", episode={})
    with pytest.raises(KedgeError, match="'width'"):
        api.update(models[0], "gone", width=4)
    for function in (api.update, api.evaluate):
        with pytest.raises(KedgeError, match=r"model is a str.*kedge\.load"):
            function("base.kedge", "gone")


def test_sizes_that_cannot_be_used_are_refused(table: ImageTable) -> None:
    oblong = ImageTable.build(np.zeros((60, 20, 28), np.uint8), np.repeat(range(6), 10), "abcdef")
    with pytest.raises(KedgeError, match="20×28"):
        api.train(oblong, width=4, **TINY)
    with pytest.raises(KedgeError, match="20 px"):
        api.train(table, image_size=20, width=4, **TINY)


# ── validation ───────────────────────────────────────────────────────────────────────────────


def test_validating_on_trained_classes_is_told(
    first: Path, second: Path, table: ImageTable
) -> None:
    def is_told(images: object, val: object) -> bool:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = api.train(images, val=val, width=4, **TINY)
        assert len(model.lineage[0].classes) == len(model.classes)  # all of them train
        return any("too high" in str(each.message) for each in caught)

    assert is_told(first, first)
    assert not is_told(first, second)
    numbered = (table.images.numpy(), table.labels.numpy())
    assert is_told(numbered, numbered)
    others = (255 - table.images.numpy(), table.labels.numpy())
    assert not is_told(numbered, others), "classes that only have the same numbers"


# ── names of classes ─────────────────────────────────────────────────────────────────────────


def test_known_names_are_the_same_classes(
    models: list[Model], tmp_path: Path, draw_classes: Draw, notes: list[str]
) -> None:
    names = [*NAMES[0][:2], *(f"new {i}" for i in range(4))]
    updated = api.update(models[0], draw_classes(tmp_path / "some", names), **TINY)
    assert any("2 classes are known to the model, of 6" in note for note in notes)
    assert len(updated.classes) == 6 + 4
    for name in NAMES[0]:
        same = torch.equal(updated.anchors_of([name]), models[0].anchors_of([name]))
        assert same == (name not in names)


def test_classes_that_have_only_numbers_are_not_taken_for_known_ones(table: ImageTable) -> None:
    """Two deliveries of arrays both count from 0: their classes are hardly the same."""
    arrays = table.images.numpy(), table.labels.numpy()
    base = api.train(arrays, width=4, **TINY)
    for again in ((255 - arrays[0], arrays[1]), (arrays[0][:72], arrays[1][:72])):
        with pytest.raises(KedgeError, match="only numbers"):
            api.update(base, again, **TINY)
    named = api.update(base, (*arrays, [f"new {i}" for i in range(9)]), **TINY)
    assert len(named.classes) == 18


# ── stopped calls ────────────────────────────────────────────────────────────────────────────


def test_repeated_call_continues_from_its_checkpoint(
    first: Path, second: Path, tmp_path: Path, notes: list[str]
) -> None:
    how = {**SHORT, "width": 4, "checkpoint": tmp_path / "training"}
    model = api.train(first, val=second, **how)
    told, content = list(notes), how["checkpoint"].read_bytes()
    again = api.train(first, val=second, **how)
    assert (again.fingerprint, again.lineage) == (model.fingerprint, model.lineage)
    assert notes == told * 2, "what is inferred is the same"
    table = open_images(second)
    inverted = ImageTable.build(255 - table.images, table.labels, table.classes)
    for change in ({"seed": 1}, {"width": 5}, {"temperature": 1.0}, {"val": inverted}):
        with pytest.raises(KedgeError, match=r"training: .*other options"):
            api.train(first, **{"val": second, **how, **change})
        assert how["checkpoint"].read_bytes() == content
    for kept in (0.0, 0.5, 0.99):
        how["checkpoint"].write_bytes(content[: int(kept * len(content))])
        with pytest.raises(KedgeError, match=r"training: .*damaged"):
            api.train(first, val=second, **how)


# ── methods with a memory ────────────────────────────────────────────────────────────────────


def test_what_cannot_be_remembered(models: list[Model], first: Path, second: Path) -> None:
    """What can be, over several rounds, is tested with the commands."""
    for method in ("FT", "DFA", "IDA", "NU", "PAR"):
        assert api.remember(models[0], first, method=method) == {}
    with pytest.raises(KedgeError, match="'second 0'"):
        api.remember(models[0], second, method="EIML")
    with pytest.raises(KedgeError, match="seed is -1"):
        api.remember(models[0], first, method="IDA", seed=-1)
    table = models[0].open(first)
    one_each = {name: table.images[table.rows_of(name)[:1]] for name in models[0].classes}
    with pytest.raises(KedgeError, match="no class has the 5 images"):
        api.remember(models[0], one_each, method="EIML")


def test_exemplars_must_fit_the_model_and_the_episodes(
    models: list[Model], first: Path, second: Path
) -> None:
    few = api.remember(models[0], first, method="EIML exemplars=2")
    with pytest.raises(KedgeError, match=r"EIML: 2 exemplars.*--n-shot"):
        api.update(models[0], first, method="EIML exemplars=2", memory=few, **TINY)
    large = api.train(first, width=4, image_size=20, **TINY)
    kept = api.remember(large, first, method="EIML exemplars=4")
    with pytest.raises(KedgeError, match=r"EIML: .*exemplars"):
        api.update(models[0], second, method="EIML exemplars=4", memory=kept, **TINY)


# ── the caller's own backbone ────────────────────────────────────────────────────────────────


def test_own_backbone_is_copied_and_not_changed(first: Path) -> None:
    own = nn.Sequential(nn.Flatten(), nn.Linear(256, 8), nn.Linear(8, 8))
    before = {name: value.clone() for name, value in own.state_dict().items()}
    api.train(first, backbone=own, **TINY)
    assert own.training
    assert all(parameter.requires_grad for parameter in own.parameters())
    assert all(torch.equal(v, before[k]) for k, v in own.state_dict().items())
    own[1].requires_grad_(False)
    trained = api.train(first, backbone=own, **TINY).embedding.backbone.state_dict()
    assert torch.equal(trained["1.weight"], before["1.weight"])
    assert not torch.equal(trained["2.weight"], before["2.weight"])
    with pytest.raises(KedgeError, match="--train"):
        api.train(first, backbone=own.requires_grad_(False), **TINY)
    with pytest.raises(KedgeError, match="width is 8"):
        api.train(first, backbone=own, width=8, **TINY)


def test_own_backbone_may_say_nothing_of_its_size(first: Path) -> None:
    own = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    config = {"mean": (0.5, 0.4, 0.3), "std": (1, 1, 1), "input_size": (3, 24, 24)}
    own.pretrained_cfg = config  # type: ignore[assignment]
    assert api.train(first, backbone=own, epochs=0).config.image_size == 24
    del config["input_size"]
    model = api.train(first, backbone=own, epochs=0)
    assert model.config.image_size in (160, 224)  # without or with a GPU
    assert model.embedding.mean.flatten().tolist() == pytest.approx([0.5, 0.4, 0.3])


@pytest.mark.parametrize("backbone", [nn.Linear(3, 3), nn.Identity()])  # fails; wrong shape
def test_unsuitable_backbone_is_refused(first: Path, backbone: nn.Module) -> None:
    with pytest.raises(KedgeError, match="backbone"):
        api.train(first, backbone=backbone, **TINY)


def test_a_round_of_anchors_does_not_decide_what_later_updates_train(first: Path) -> None:
    model = api.train(first, **TINY)
    model = api.update(model, first, train="none")
    assert summarize_update(model).last_train == "all"
    frozen = api.train(first, train="none")
    assert summarize_update(frozen).last_train == "none"
