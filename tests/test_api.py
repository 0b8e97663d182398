"""The life of a model from Python: trained, updated twice while old images go, and used."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from kedge import api
from kedge.config import EpisodeShape, Schedule
from kedge.data.open import open_images
from kedge.data.table import ImageTable
from kedge.episodes.defaults import EpisodeWish, ScheduleWish
from kedge.episodes.train_val_split import open_validation
from kedge.errors import KedgeError
from kedge.models.model import Model
from kedge.training import step
from kedge.utils import progress

Plainly = Callable[[dict[str, str]], dict[str, dict[str, Any]]]  # of conftest.py
EPISODE = EpisodeShape(n_way=3, n_shot=2, n_query=3)
SHORT = {"episode": EPISODE, "schedule": Schedule(epochs=2, episodes=6, val_episodes=10)}
NAMES = [[f"{round} {i}" for i in range(6)] for round in ("first", "second", "third")]


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory, draw_classes: Callable[..., Path]) -> list:
    """Three deliveries; each folder is gone before the next one comes."""
    folder = tmp_path_factory.mktemp("deliveries")
    models: list[Model] = []
    for names in NAMES:
        delivery = draw_classes(folder / "images", names)
        models.append(
            api.update(models[-1], delivery, **SHORT)
            if models
            else api.train(delivery, width=8, **SHORT)
        )
        shutil.rmtree(delivery)
    return models


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory, draw_classes: Callable[..., Path]) -> ImageTable:
    names = [f"class {i:02}" for i in range(30)]
    return open_images(draw_classes(tmp_path_factory.mktemp("many") / "images", names))


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(progress, "note", said.append)
    return said


def test_every_class_that_was_delivered_is_known(life: list[Model]) -> None:
    for n, model in enumerate(life, 1):
        assert sorted(model.classes) == sorted(name for names in NAMES[:n] for name in names)
        assert model.anchors.shape == (6 * n, model.config.n_features)


def test_anchors_of_earlier_rounds_are_kept_as_they_were_made(life: list[Model]) -> None:
    for before, after in itertools.pairwise(life):
        for name, anchor in zip(before.classes, before.anchors, strict=True):
            assert torch.equal(after.anchors[after.classes.index(name)], anchor)


def test_lineage_tells_the_rounds(life: list[Model]) -> None:
    rounds = life[-1].lineage
    assert [entry.round for entry in rounds] == [0, 1, 2]
    assert [entry.method for entry in rounds] == ["base", "IDA", "IDA"]
    assert life[0].lineage == rounds[:1]
    for entry, names in zip(rounds, NAMES, strict=True):
        assert entry.classes == tuple(names)
        assert entry.images == 7 * 6  # the others were set apart to validate
        assert entry.source.endswith("images")
        assert entry.config["schedule"]["epochs"] == 2
        assert 1 <= entry.best_epoch <= 2
        assert 0 <= entry.val_accuracy <= 100


def test_classifier_names_new_images_of_new_classes(
    life: list[Model], tmp_path: Path, draw_classes: Callable[..., Path]
) -> None:
    """Six classes that no round has met, three examples of each: a guess is right in 17%."""
    table = open_images(draw_classes(tmp_path / "new", [f"new {i}" for i in range(6)]))
    rows = {name: table.rows_of(name) for name in table.classes}
    classifier = life[-1].classifier({name: table.images[r[:3]] for name, r in rows.items()})
    said = [classifier.predict(table.images[r[3:]]) for r in rows.values()]
    right = [word == name for name, words in zip(rows, said, strict=True) for word in words]
    assert len(right) == 6 * 9
    assert np.mean(right) > 0.7


def test_evaluate_agrees_and_repeats(life: list[Model], second: Path) -> None:
    score = api.evaluate(life[1], second, episode=EPISODE, n_episodes=60)
    assert score.n == 60
    assert score.mean > 60  # a guess is right in 33%
    assert 0 < score.ci < 10
    assert api.evaluate(life[1], open_images(second), episode=EPISODE, n_episodes=60) == score
    assert api.evaluate(life[1], second, episode=EPISODE, n_episodes=60, seed=1) != score


def test_same_seed_same_model_other_seed_other_model(life: list[Model], first: Path) -> None:
    again = api.train(first, width=8, **SHORT)
    assert again.fingerprint == api.train(first, width=8, **SHORT).fingerprint
    assert again.fingerprint != api.train(first, width=8, seed=1, **SHORT).fingerprint
    torch.manual_seed(123)  # somebody else's random numbers change nothing
    np.random.seed(123)
    assert api.train(first, width=8, **SHORT).fingerprint == again.fingerprint


def test_training_leaves_the_random_numbers_of_others_alone(first: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    api.train(first, width=4, **SHORT)
    assert torch.equal(torch.rand(3), expected)


def test_command_and_function_give_the_same_file(
    by_command: dict[str, Path], first: Path, second: Path, tmp_path: Path
) -> None:
    shape = {"episode": EPISODE, "schedule": Schedule(epochs=3, episodes=20, val_episodes=40)}
    base = api.train(first, width=4, seed=3, **shape)
    base.save(tmp_path / "base.kedge")
    api.update(base, second, seed=3, **shape).save(tmp_path / "next.kedge")
    assert (tmp_path / "base.kedge").read_bytes() == by_command["base"].read_bytes()
    assert (tmp_path / "next.kedge").read_bytes() == by_command["next"].read_bytes()


# ── how images are shared out ────────────────────────────────────────────────────────────────


def test_images_to_validate_on_can_be_given(first: Path, second: Path) -> None:
    model = api.train(first, val=second, width=4, **SHORT)
    assert model.lineage[0].classes == tuple(NAMES[0])  # all of them train
    assert model.classes == tuple(NAMES[0])


def test_images_to_validate_on_must_fit(first: Path) -> None:
    large = ImageTable.build(np.zeros((60, 40, 40), np.uint8), np.repeat(range(6), 10), "abcdef")
    with pytest.raises(KedgeError, match=r"1×40×40.*1×16×16"):
        api.train(first, val=large, width=4, **SHORT)


def test_validation_on_what_is_trained_on_is_told(
    first: Path, second: Path, table: ImageTable, notes: list[str]
) -> None:
    """Not where classes are alike by their made-up names alone."""

    def told(images: object, val: object) -> list[str]:
        notes.clear()
        api.train(images, val=val, width=4, **SHORT)
        return [note for note in notes if "flatters" in note]

    flatters = "are trained on; if these are the same images, the number flatters"
    assert told(first, first) == [f"{first}: 6 of 6 classes that validate {flatters}"]
    assert told(first, second) == []
    assert told(first, None) == []
    numbered = (table.images.numpy(), table.labels.numpy())
    others = (255 - table.images.numpy(), table.labels.numpy())
    assert len(told(numbered, numbered)) == 1
    assert told(numbered, others) == []
    base = api.train(first, width=4, **SHORT)
    notes.clear()
    api.update(base, second, val=second, **SHORT)
    assert f"{second}: 6 of 6 classes that validate {flatters}" in notes


def test_with_many_classes_some_are_set_apart_and_known_all_the_same(many: ImageTable) -> None:
    model = api.train(many, width=4, **SHORT)
    trained = model.lineage[0].classes
    assert len(trained) == 24
    assert model.lineage[0].images == 12 * 24
    assert model.classes == many.classes


def test_too_few_images_are_counted_as_their_owner_counts_them(first: Path) -> None:
    """A part is set apart to validate, which the owner has not heard of: 12, and not 2."""
    table = open_images(first)
    few = ImageTable.build(table.images[:48], table.labels[:48], table.classes[:4])
    with pytest.raises(KedgeError, match=r"\b12\b"):
        api.train(few, width=4, episode=EpisodeShape(3, 5, 5), schedule=Schedule(1, 1, 1))


def test_what_is_not_asked_for_is_chosen_and_told_before_training(
    first: Path, notes: list[str]
) -> None:
    """Also a wish that leaves something open; what it says is not told again."""
    wish = {"episode": EpisodeWish(n_way=2), "schedule": ScheduleWish(epochs=1, episodes=1)}
    model = api.train(first, **wish)
    assert notes[0].startswith(f"{first}: 6 classes of 12 images, taken at 16 px in grey.")
    options = {"image-size": 16, "backbone": "conv4", "width": 64, "n-shot": 2, "n-query": 2}
    for name, value in options.items():
        assert [note for note in notes if note.startswith(f"  --{name} {value}: ")], name
    assert not [note for note in notes if "--n-way" in note or "--epochs" in note]
    config = model.lineage[0].config
    assert config["episode"] == {"n_way": 2, "n_shot": 2, "n_query": 2}
    assert (config["schedule"]["epochs"], config["schedule"]["episodes"]) == (1, 1)
    notes.clear()
    api.update(model, first, **wish)
    assert not [note for note in notes if "--backbone" in note or "--image-size" in note]
    assert [note for note in notes if note.startswith("  --n-shot 2: ")]


def test_a_repeated_call_chooses_the_same(first: Path, tmp_path: Path, notes: list[str]) -> None:
    how = {"schedule": ScheduleWish(epochs=2, episodes=2), "checkpoint": tmp_path / "training"}
    whole = api.train(first, **how)
    said = list(notes)
    notes.clear()
    again = api.train(first, **how)
    assert again.fingerprint == whole.fingerprint
    assert notes == said


def test_one_new_class_is_no_round_but_can_be_named(
    life: list[Model], tmp_path: Path, draw_classes: Callable[..., Path]
) -> None:
    alone = draw_classes(tmp_path / "alone", ["alone"])
    with pytest.raises(KedgeError, match=r"at least 2 classes.*--support FOLDER --known"):
        api.update(life[0], alone, **SHORT)
    assert life[0].classifier(alone, known=True).classes == (*life[0].classes, "alone")


def test_images_are_called_what_their_owner_calls_them(
    first: Path, monkeypatch: pytest.MonkeyPatch, notes: list[str]
) -> None:
    """Those that do not fit into memory lie in a temporary file meanwhile."""
    monkeypatch.setattr("kedge.data.open.IN_MEMORY", 0)
    model = api.train(first, width=4, **SHORT)
    assert model.lineage[0].source == str(first)
    assert any(note.startswith(f"{first}: 6 classes of 12 images") for note in notes)
    assert any(note.startswith("  --image-size 16: ") for note in notes)


@pytest.mark.parametrize("wish", [EpisodeWish(n_way=1), EpisodeWish(n_query=0)])
def test_wishes_that_never_work_are_told_before_images_are_read(wish: EpisodeWish) -> None:
    with pytest.raises(KedgeError, match="--n-"):
        api.train("gone", episode=wish)
    with pytest.raises(KedgeError, match="--epochs"):
        api.train("gone", schedule=ScheduleWish(epochs=0))


def test_the_compiler_is_loaded_while_images_are_read(
    life: list[Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU, which is not here; and not for what can never work."""
    loaded: list[str] = []
    monkeypatch.setattr(step, "_loading", [])
    monkeypatch.setattr(step, "_load_compiler", lambda: loaded.append("compiler"))
    monkeypatch.setattr(
        step.ExecutionMode, "best", lambda device: step.ExecutionMode(compiled=True)
    )
    never = ScheduleWish(epochs=0)
    for n, call in enumerate((api.train, partial(api.update, life[0])), start=1):
        with pytest.raises(KedgeError, match="--epochs"):
            call("gone", schedule=never)
        with pytest.raises(KedgeError, match="gone"):
            call("gone")
        for thread in step._loading:
            thread.join()
        assert loaded == ["compiler"] * n


def test_what_is_of_another_kind_is_told_with_what_to_give(
    plainly: Plainly, by_command: dict[str, Path], second: Path
) -> None:
    file, images = str(by_command["base"]), str(second)
    model = f"kedge.Model.load({file!r})"
    wishes = {
        "episode={'n_way': 3}": "episode is a dict: give a kedge.EpisodeWish",
        "schedule={'epochs': 1}": "schedule is a dict: give a kedge.ScheduleWish",
        "episode=None": "episode is a NoneType: give a kedge.EpisodeWish",
        "episode=kedge.Schedule()": "episode is a Schedule: give a kedge.EpisodeWish",
    }
    a_file = "model is a str: give a kedge.Model, as kedge.Model.load(FILE) reads it."
    expected = {
        f"kedge.update({file!r}, {images!r})": a_file,
        f"kedge.evaluate({file!r}, {images!r})": a_file,
        f"kedge.remember({file!r}, {images!r}, method='EIML')": a_file,
        f"kedge.evaluate({model}, {images!r}, episode={{}})": "episode is a dict: give a kedge.E",
    }
    for wish, sentence in wishes.items():
        expected[f"kedge.train('gone', {wish})"] = sentence
        expected[f"kedge.update({model}, 'gone', {wish})"] = sentence
    found = plainly({call: call for call in expected})
    for call, sentence in expected.items():
        assert found[call]["said"].startswith(f"KedgeError: {sentence}"), (call, found[call])


def test_images_that_are_not_square_are_refused_before_training() -> None:
    images = np.zeros((60, 20, 28), np.uint8)
    table = ImageTable.build(images, np.repeat(range(6), 10), "abcdef")
    with pytest.raises(KedgeError, match=r"20×28|square"):
        api.train(table, width=4, **SHORT)


@pytest.mark.parametrize("method", ["NU", "PAR"])
def test_update_by_what_is_no_update_is_refused(
    life: list[Model], second: Path, method: str
) -> None:
    with pytest.raises(KedgeError, match=f"'{method}' cannot update a model"):
        api.update(life[0], second, method=method, **SHORT)


def test_methods_differ_and_lambda_0_is_fine_tuning(life: list[Model], second: Path) -> None:
    made = {
        method: api.update(life[0], second, method=method, **SHORT).fingerprint
        for method in ("FT", "IDA", "DFA", "IDA lambda=0", "DFA lambda=0")
    }
    assert made["FT"] == made["IDA lambda=0"] == made["DFA lambda=0"]
    assert len(set(made.values())) == 3


# ── stopped calls ────────────────────────────────────────────────────────────────────────────


def test_repeated_call_goes_on_from_its_checkpoint(first: Path, tmp_path: Path) -> None:
    checkpoint = tmp_path / "training"
    whole = api.train(first, width=4, checkpoint=checkpoint, **SHORT)
    again = api.train(first, width=4, checkpoint=str(checkpoint), **SHORT)
    assert again.fingerprint == whole.fingerprint
    assert again.lineage == whole.lineage


@pytest.mark.parametrize("change", [{"seed": 1}, {"width": 5}, {"temperature": 1.0}])
def test_checkpoint_of_another_call_is_refused(
    first: Path, tmp_path: Path, change: dict[str, float]
) -> None:
    checkpoint = tmp_path / "training"
    api.train(first, width=4, checkpoint=checkpoint, **SHORT)
    before = checkpoint.read_bytes()
    with pytest.raises(KedgeError, match="training: a stopped run with other options"):
        api.train(first, **({"width": 4} | SHORT | change), checkpoint=checkpoint)
    assert checkpoint.read_bytes() == before


def test_checkpoint_sees_other_images_to_validate_on(
    first: Path, second: Path, tmp_path: Path
) -> None:
    """The best epoch is chosen on them, so that another choice is another run."""
    checkpoint = tmp_path / "training"
    table = open_images(second)
    api.train(first, val=table, width=4, checkpoint=checkpoint, **SHORT)
    inverted = ImageTable.build(255 - table.images, table.labels, table.classes)
    with pytest.raises(KedgeError, match="other options, images or starting weights"):
        api.train(first, val=inverted, width=4, checkpoint=checkpoint, **SHORT)


@pytest.mark.parametrize("kept", [0.0, 0.5, 0.99])
def test_damaged_checkpoint_is_named(first: Path, tmp_path: Path, kept: float) -> None:
    checkpoint = tmp_path / "training"
    api.train(first, width=4, checkpoint=checkpoint, **SHORT)
    content = checkpoint.read_bytes()
    checkpoint.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(KedgeError, match=r"training: .*damaged.*delete"):
        api.train(first, width=4, checkpoint=checkpoint, **SHORT)


# ── methods with a memory ────────────────────────────────────────────────────────────────────

REMEMBERING = ["EIML exemplars=4", "EWC episodes=3"]


@pytest.fixture(scope="module", params=REMEMBERING)
def remembered(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    draw_classes: Callable[..., Path],
) -> tuple[str, list[Model], list[dict[str, Tensor]]]:
    """Three deliveries; each folder is gone before the next one comes, but not what was kept."""
    folder, method = tmp_path_factory.mktemp("remembered"), request.param
    models: list[Model] = []
    memories: list[dict[str, Tensor]] = []
    for names in NAMES:
        delivery = draw_classes(folder / "images", names)
        before = memories[-1] if memories else None
        models.append(
            api.update(models[-1], delivery, method=method, memory=before, **SHORT)
            if models
            else api.train(delivery, width=4, **SHORT)
        )
        memories.append(api.remember(models[-1], delivery, method=method, before=before))
        shutil.rmtree(delivery)
    return method, models, memories


def test_a_memory_carries_over_two_updates(
    remembered: tuple[str, list[Model], list[dict[str, Tensor]]], second: Path
) -> None:
    method, models, memories = remembered
    assert [entry.method for entry in models[-1].lineage] == ["base", method, method]
    assert len(models[-1].classes) == 18
    tuned = api.update(models[0], second, method="FT", **SHORT)
    assert models[1].fingerprint != tuned.fingerprint, "it is held to something"
    again = api.update(models[0], second, method=method, memory=memories[0], **SHORT)
    assert again.fingerprint == models[1].fingerprint
    assert all(value.device.type == "cpu" for memory in memories for value in memory.values())
    if method.startswith("EIML"):
        # Also of the classes that only validated.
        assert [memory["counts"].tolist() for memory in memories] == [[4] * 6, [4] * 12, [4] * 18]
        assert torch.equal(memories[2]["images"][:48], memories[1]["images"])
    else:
        for key, value in memories[2].items():
            assert (value >= memories[1][key]).all()
        assert any((value > memories[1][key]).any() for key, value in memories[2].items())


def test_a_class_that_comes_back_is_kept_once(
    remembered: tuple[str, list[Model], list[dict[str, Tensor]]],
    tmp_path: Path,
    draw_classes: Callable[..., Path],
) -> None:
    """Otherwise an old task could ask to tell it from itself."""
    method, models, memories = remembered
    some = draw_classes(tmp_path / "some", [*NAMES[0][:3], *(f"new {i}" for i in range(3))])
    better = api.update(models[2], some, method=method, memory=memories[2], **SHORT)
    kept = api.remember(better, some, method=method, before=memories[2])
    assert len(better.classes) == 18 + 3
    if method.startswith("EIML"):
        assert json.loads(kept["names"].numpy().tobytes()) == list(better.classes)
        assert kept["counts"].tolist() == [4] * 21
    api.update(better, some, method=method, memory=kept, **SHORT)


def test_without_its_memory_a_method_says_what_it_lacks(
    remembered: tuple[str, list[Model], list[dict[str, Tensor]]], second: Path
) -> None:
    method, models, _ = remembered
    name, lacks = method.split()[0], {"EIML": "images", "EWC": "Fisher information"}
    for memory in (None, {}, {"unknown": torch.zeros(1)}):
        with pytest.raises(KedgeError, match=rf"^{name} needs .*{lacks[name]}") as caught:
            api.update(models[0], second, method=method, memory=memory, **SHORT)
        assert "\n" not in str(caught.value)


def test_methods_without_a_memory_keep_nothing(life: list[Model], first: Path) -> None:
    for method in ("FT", "DFA", "IDA", "NU", "PAR"):
        assert api.remember(life[0], first, method=method) == {}


def test_only_images_of_classes_that_were_learned_can_be_remembered(
    life: list[Model], second: Path
) -> None:
    with pytest.raises(KedgeError, match="has not learned class 'second 0'"):
        api.remember(life[0], second, method="EIML")


def test_too_few_exemplars_for_the_shots_are_told(life: list[Model], first: Path) -> None:
    kept = api.remember(life[0], first, method="EIML exemplars=2")
    with pytest.raises(KedgeError, match=r"EIML: 2 exemplars .*too few.*--n-shot"):
        api.update(life[0], first, method="EIML exemplars=2", memory=kept, **SHORT)


# ── images that are not in folders ───────────────────────────────────────────────────────────


class DataSet:
    """As torchvision's are: PIL images out, labels by number."""

    def __init__(self, table: ImageTable) -> None:
        self.table, self.classes = table, list(table.classes)

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, i: int) -> tuple[Image.Image, int]:
        return Image.fromarray(self.table.images[i, 0].numpy()), int(self.table.labels[i])


@pytest.fixture(scope="module")
def table(
    tmp_path_factory: pytest.TempPathFactory, draw_classes: Callable[..., Path]
) -> ImageTable:
    names = [f"class {i}" for i in range(9)]
    return open_images(draw_classes(tmp_path_factory.mktemp("table") / "images", names))


def test_arrays_and_data_sets_are_taken_as_they_are(table: ImageTable) -> None:
    """In any order, by number or by name: the same model to the last bit."""
    mixed = np.random.default_rng(0).permutation(len(table))
    names = [table.classes[i] for i in table.labels.tolist()]
    forms = {
        "table": table,
        "arrays": (table.images.numpy()[:, 0], table.labels.numpy(), list(table.classes)),
        "tensors": (table.images, table.labels, table.classes),
        "names": (table.images.numpy(), names),
        "mapping": {name: table.images[table.rows_of(name)] for name in table.classes},
        "data set": DataSet(table),
    }
    models = {form: api.train(images, width=4, **SHORT) for form, images in forms.items()}
    assert {model.fingerprint for model in models.values()} == {models["table"].fingerprint}
    shuffled = api.train((table.images[mixed], [names[i] for i in mixed]), width=4, **SHORT)
    assert shuffled.classes == models["table"].classes


def test_model_is_updated_and_tested_with_arrays(life: list[Model], table: ImageTable) -> None:
    better = api.update(life[0], (table.images.numpy(), table.labels.numpy()), **SHORT)
    assert better.classes[-9:] == tuple(f"class {i:04}" for i in range(9))
    assert api.evaluate(better, DataSet(table), episode=EPISODE, n_episodes=20) == api.evaluate(
        better, table, episode=EPISODE, n_episodes=20
    )


def test_each_command_has_its_part_of_a_split(tmp_path: Path, table: ImageTable) -> None:
    """Training never reads "test", and tests read nothing else."""
    part = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2], dtype=torch.uint8)[table.labels]
    split = ImageTable(
        table.images, table.labels, table.classes, "split", ("train", "val", "test"), part
    )
    split.save(tmp_path / "split.images")
    model = api.train(tmp_path / "split.images", width=4, **SHORT)
    assert model.classes == table.classes[:4]
    own, val = (table.only((part == i).nonzero().flatten()) for i in range(2))
    assert model.fingerprint == api.train(own, val=val, width=4, **SHORT).fingerprint
    two_way = EpisodeShape(n_way=2, n_shot=2, n_query=3)
    test = table.only((part == 2).nonzero().flatten())
    assert api.evaluate(model, split, episode=two_way, n_episodes=20) == api.evaluate(
        model, test, episode=two_way, n_episodes=20
    )


# ── names, sizes and parts that are easily mistaken ──────────────────────────────────────────


def test_the_accuracy_of_naming_is_the_share_of_images_that_are_named_right(
    life: list[Model],
    draw_classes: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of some of the known classes, each with a number of images of its own, some at a time."""
    monkeypatch.setattr(api, "NAMED_AT_ONCE", 7)
    names = [*NAMES[2][:3], *NAMES[0][2:5], "another"]
    table = life[2].open(draw_classes(tmp_path / "images", names))
    given = {name: table.images[table.rows_of(name)[: 2 + 2 * i]] for i, name in enumerate(names)}
    score = api.evaluate(life[2], given, known=True)
    del given["another"]
    classifier = life[2].classifier()
    assert classifier.classes == life[2].classes
    said = {name: classifier.predict(images) for name, images in given.items()}
    right = [word == name for name, words in said.items() for word in words]
    assert 0 < sum(right) < len(right) == score.n
    assert score.mean == pytest.approx(100 * sum(right) / len(right))


def test_numbers_that_are_all_known_are_no_new_classes(table: ImageTable) -> None:
    """Two deliveries of arrays both count from 0: their classes are hardly the same."""
    delivered = table.images.numpy(), table.labels.numpy()
    base = api.train(delivered, width=4, **SHORT)
    for again in ((255 - delivered[0], delivered[1]), (delivered[0][:72], delivered[1][:72])):
        with pytest.raises(KedgeError, match=r"have no names, only numbers.*give them names"):
            api.update(base, again, **SHORT)
    named = api.update(base, (*delivered, [f"new {i}" for i in range(9)]), **SHORT)
    assert len(named.classes) == 18


def test_known_names_are_the_same_classes_and_that_is_said(
    life: list[Model], tmp_path: Path, draw_classes: Callable[..., Path], notes: list[str]
) -> None:
    some = draw_classes(tmp_path / "some", [*NAMES[0][:2], *(f"new {i}" for i in range(4))])
    better = api.update(life[0], some, **SHORT)
    back = (
        "2 of 6 classes are known to the model: they keep their names, and these images add to "
        "what is remembered of them"
    )
    assert [note.strip() for note in notes if "are known" in note] == [back]
    assert len(better.classes) == 6 + 4
    for name in NAMES[0]:
        same = torch.equal(better.anchors_of([name]), life[0].anchors_of([name]))
        assert same == (name not in NAMES[0][:2])
    notes.clear()
    all_known = draw_classes(tmp_path / "all", NAMES[0])  # with names of one's own it may be meant
    assert len(api.update(life[0], all_known, **SHORT).classes) == 6
    assert any("6 of 6 classes are known" in note for note in notes)
    notes.clear()
    api.update(life[0], draw_classes(tmp_path / "none", NAMES[1]), **SHORT)
    assert not any("are known" in note for note in notes)


def test_table_is_not_brought_to_another_size(table: ImageTable) -> None:
    with pytest.raises(KedgeError, match=r"packed at 16 px and cannot be brought to 20 px"):
        api.train(table, image_size=20, width=4, **SHORT)
    assert api.train(table, image_size=16, width=4, **SHORT).config.image_size == 16


def test_without_a_part_to_test_the_one_to_validate_is_tested(
    life: list[Model], table: ImageTable, notes: list[str]
) -> None:
    """Never that which was trained on."""
    part = torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 1], dtype=torch.uint8)[table.labels]
    split = ImageTable(table.images, table.labels, table.classes, "split", ("train", "val"), part)
    val = table.only((part == 1).nonzero().flatten())
    how = {"episode": EPISODE, "n_episodes": 20}
    assert api.evaluate(life[0], split, **how) == api.evaluate(life[0], val, **how)
    assert notes == ["split: of its parts, val is used"]


def test_kept_images_of_another_size_are_told(life: list[Model], first: Path, second: Path) -> None:
    other = api.train(first, width=4, image_size=20, **SHORT)
    kept = api.remember(other, first, method="EIML exemplars=4")
    with pytest.raises(KedgeError, match="EIML: the images that were kept are of another size"):
        api.update(life[0], second, method="EIML exemplars=4", memory=kept, **SHORT)


def test_too_few_images_to_remember_are_told(life: list[Model], first: Path) -> None:
    table = life[0].open(first)
    few = {name: table.images[table.rows_of(name)[:1]] for name in life[0].classes}
    with pytest.raises(KedgeError, match="no class has the 5 images of an episode"):
        api.remember(life[0], few, method="EIML")


def test_a_name_that_validates_does_not_cost_its_anchor(
    life: list[Model], first: Path, second: Path
) -> None:
    """One image of a known class was delivered; those of --val are others, and set nothing."""
    base, name = life[0], life[0].classes[0]
    known, new = base.open(first), base.open(second)
    mine = known.images[known.rows_of(name)]
    given = {c: new.images[new.rows_of(c)] for c in new.classes} | {name: mine[:1]}
    other = known.classes[1]
    val = {name: mine[1:], other: known.images[known.rows_of(other)]}
    shape = EpisodeShape(2, 2, 2)
    better = api.update(base, given, val=val, episode=shape, schedule=Schedule(1, 1, 1))
    assert torch.equal(better.anchors_of([name]), base.anchors_of([name]))


def test_a_negative_seed_is_told_where_images_are_kept(life: list[Model], first: Path) -> None:
    for method in ("EIML exemplars=4", "EWC episodes=1", "IDA"):
        with pytest.raises(KedgeError, match="seed is -1: it must not be negative"):
            api.remember(life[0], first, method=method, seed=-1)


def test_what_is_no_number_is_told(first: Path, plainly: Plainly) -> None:
    expected = {
        "seed='a'": "--seed is 'a': it must be a whole number.",
        "seed=1.5": "--seed is 1.5: it must be a whole number.",
        "image_size='32'": "--image-size is '32': it must be a whole number.",
        "width=8.0": "--width is 8.0: it must be a whole number.",
        "head=None": "--head is None: it must be a word.",
        "temperature='x'": "--temperature is 'x': it must be a number.",
        "head='ecm pace=abc'": "Head 'ecm pace=abc': pace must be a number.",
        "schedule=kedge.ScheduleWish(lr='x')": "--lr is 'x': it must be a number.",
        "episode=kedge.EpisodeWish(n_way=2.5)": (
            "--n-way is 2.5: it must be a whole number or two, a range."
        ),
    }
    found = plainly({given: f"kedge.train({str(first)!r}, {given})" for given in expected})
    assert {k: v["said"] for k, v in found.items()} == {
        given: f"KedgeError: {said}" for given, said in expected.items()
    }


NUMPY = """[
    (np := __import__("numpy")),
    (wish := kedge.EpisodeWish(n_way=np.int64(3), n_shot=(np.int8(1), np.int32(2)), n_query=2)),
    (plan := kedge.ScheduleWish(np.int64(1), np.int16(2), 4, lr=np.float32(1e-3))),
    (model := kedge.train(
        {first!r}, width=np.int64(4), temperature=np.float32(2), episode=wish, schedule=plan,
        seed=np.arange(4)[3],
    )),
    model.save({out!r}),
    kedge.evaluate(model, {first!r}, episode=wish, n_episodes=np.int64(4), seed=np.int64(1)).n,
    kedge.Model.load({out!r}).lineage[0].config["seed"],
][-2:]"""


def test_numbers_of_numpy_are_numbers(first: Path, tmp_path: Path, plainly: Plainly) -> None:
    call = NUMPY.format(first=str(first), out=str(tmp_path / "model.kedge"))
    assert plainly({"numpy": call})["numpy"]["said"] == "gave [4, 3]"


def test_a_backbone_that_is_handed_in_stays_as_it_is(first: Path, tmp_path: Path) -> None:
    def a_network() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(256, 8))

    own, other = a_network(), a_network()
    before = {name: value.clone() for name, value in own.state_dict().items()}
    model = api.train(first, backbone=own, **SHORT)
    model.save(tmp_path / "model.kedge")
    loaded = Model.load(tmp_path / "model.kedge", other)
    api.train(first, backbone=own, seed=1, **SHORT).save(tmp_path / "next.kedge")
    Model.load(tmp_path / "next.kedge", other)
    assert loaded.fingerprint == model.fingerprint
    for network in (own, other):
        assert network.training
        assert all(parameter.requires_grad for parameter in network.parameters())
        assert all(torch.equal(v, before[k]) for k, v in network.state_dict().items())
    with pytest.raises(KedgeError, match=r"width is 8: .* leave it out"):
        api.train(first, backbone=own, width=8, **SHORT)
    with pytest.raises(KedgeError, match="The backbone cannot take images of 1 channels and 16 px"):
        api.train(first, backbone=nn.Linear(3, 3), **SHORT)


def test_weights_that_are_frozen_are_trained_and_that_is_said(
    first: Path, notes: list[str]
) -> None:
    own = nn.Sequential(nn.Flatten(), nn.Linear(256, 8))
    api.train(first, backbone=own, **SHORT)
    assert not any("frozen" in note for note in notes)
    own[1].requires_grad_(False)
    model = api.train(first, backbone=own, **SHORT)
    assert any("some weights of the backbone are frozen" in note for note in notes)
    assert not torch.equal(model.embedding.state_dict()["backbone.1.weight"], own[1].weight)


class Odd(nn.Module):
    """A backbone that does with images what it is told to."""

    def __init__(self, forward: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.does = forward

    def forward(self, images: Tensor) -> object:
        return self.does(images)


def fails(images: Tensor) -> object:
    raise AssertionError("Input height (16) doesn't match model (224).")


@pytest.mark.parametrize(
    ("forward", "said"),
    [
        (fails, r"cannot take images of 1 channels and 16 px \(Input height .* model \(224\)\)"),
        (lambda images: (images.flatten(1),), "gives a tuple; it must give a tensor"),
        (lambda images: images, "gives 4 dimensions; it must give"),
    ],
)
def test_a_backbone_that_does_not_fit_is_told_why(
    first: Path, forward: Callable[[Tensor], object], said: str
) -> None:
    with pytest.raises(KedgeError, match=f"The backbone {said}"):
        api.train(first, backbone=Odd(forward), **SHORT)


def test_only_pixels_are_embedded(
    by_command: dict[str, Path], first: Path, plainly: Plainly
) -> None:
    start = f"[(m := kedge.Model.load({str(by_command['base'])!r})), (p := m.open({str(first)!r})"
    found = plainly(
        {wrong: f"{start}.images), m.embed({wrong})]" for wrong in ("p / 255", "p.numpy()")}
        | {"small": f"{start}.images), m.embed(p[:, :, :8])]"}
    )
    assert len(found) == 3
    assert all(v["said"].startswith("KedgeError: Images to embed") for v in found.values()), found


def test_remarks_go_to_the_logger(
    first: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(first, tmp_path / "first")
    next((tmp_path / "first").rglob("*.png")).write_bytes(b"no image")
    with caplog.at_level("INFO", "kedge"):
        api.train(tmp_path / "first", width=4, **SHORT)
    assert "could not be read" in caplog.text


def test_a_name_that_differs_in_case_alone_is_told(
    life: list[Model], tmp_path: Path, draw_classes: Callable[..., Path], notes: list[str]
) -> None:
    names = ["First 0", *(f"new {i}" for i in range(3))]
    api.update(life[0], draw_classes(tmp_path / "some", names), **SHORT)
    (said,) = [line for line in notes if "a class of its own" in line]
    assert "'First 0' becomes a class of its own beside 'first 0'" in said


def test_only_what_is_to_validate_validates(
    first: Path, table: ImageTable, notes: list[str]
) -> None:
    """What comes split has a part to test, which must not have chosen the weights."""
    part = torch.arange(len(table), dtype=torch.uint8) % 3
    for parts, validate in ((("train", "val", "test"), [1]), (("train", "more", "test"), [0, 1])):
        split = replace(table, parts=parts, part=part)
        chosen = open_validation(split, table)
        assert chosen is not None
        assert len(chosen) == sum(int((part == i).sum()) for i in validate)
        named = " and ".join(parts[i] for i in validate)
        assert notes.pop().endswith(f"of its parts, {named} validates")


def test_a_part_to_validate_that_does_not_validate_is_not_said_to(
    table: ImageTable, first: Path, notes: list[str]
) -> None:
    """Where other images are given to validate on, or where nothing is trained any more."""
    part = torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 1], dtype=torch.uint8)[table.labels]
    split = ImageTable(table.images, table.labels, table.classes, "split", ("train", "val"), part)

    def told(note: str) -> bool:
        found = f"split: of its parts, train is trained on{note}" in notes
        notes.clear()
        return found

    base = api.train(split, width=4, **SHORT)
    assert told(" and val validates")
    api.train(split, val=first, width=4, **SHORT)
    assert told("")
    api.update(base, split, val=first, **SHORT)
    assert told("")
    api.remember(base, split, method="EIML")
    assert told("")
