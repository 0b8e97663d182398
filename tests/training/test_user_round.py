"""After a round, every class that was delivered has an anchor, and can be named by it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kedge.episodes.defaults import EpisodeWish
from PIL import Image

from kedge import api
from kedge.config import EpisodeShape, Schedule
from kedge.data.drawings import load_drawings
from kedge.data.table import ImageTable
from kedge.episodes.train_val_split import split_train_val
from kedge.errors import KedgeError
from kedge.models.model import Model
from kedge.utils import progress

KINDS = ["apple", "axe", "bicycle", "cactus", "ladder", "moon", "snake", "The Eiffel Tower"]
SMALL, NEW = "zebra", ["pants", "star"]
HEADS = ["prototype", "ecm", "ridge"]

Ready = Any  # of conftest.py, which cannot be imported


def drawings(counts: dict[str, int], first: int = 0) -> ImageTable:
    table = load_drawings()
    rows = [table.rows_of(name)[first : first + n] for name, n in sorted(counts.items())]
    labels = np.repeat(np.arange(len(rows)), [len(of_class) for of_class in rows])
    return ImageTable.build(table.images[torch.cat(rows)], labels, sorted(counts), "drawings")


def held_out(kinds: Sequence[str]) -> ImageTable:
    return drawings(dict.fromkeys(kinds, 30), first=60)


def named(model: Model, kinds: Sequence[str], **known: object) -> tuple[float, list[str]]:
    """How many held-out drawings are named right, from 0 to 1, and what they were named."""
    table = held_out(kinds)
    said = model.classifier(**known).predict(table.images)
    truth = [table.classes[i] for i in table.labels.tolist()]
    return float(np.mean([a == b for a, b in zip(said, truth, strict=True)])), said


@pytest.fixture(scope="module", params=HEADS)
def model(request: pytest.FixtureRequest) -> Model:
    """Eight kinds that were practised on, and one that was too small for that."""
    table = drawings({**dict.fromkeys(KINDS, 40), SMALL: 3})
    how = {"episode": EpisodeShape(5, 3, 3), "schedule": Schedule(3, 40, 10)}
    return api.train(table, width=16, head=request.param, **how)


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(progress, "note", said.append)
    return said


# ── known classes, without examples ──────────────────────────────────────────────────────────


def test_a_model_names_what_it_has_learned_without_examples(model: Model) -> None:
    assert sorted(model.classes) == sorted([*KINDS, SMALL])
    assert SMALL not in model.lineage[0].classes
    right, said = named(model, KINDS)
    assert right > 0.45  # a guess is right in 11%
    assert said.count(SMALL) < 0.25 * len(said), "a class that was hardly seen wins everything"
    assert named(model, [SMALL])[0] > 0.1


def test_known_and_new_classes_are_named_together(model: Model) -> None:
    both = {"support": drawings(dict.fromkeys(NEW, 5)), "known": True}
    assert model.classifier(**both).classes == (*model.classes, *NEW)
    assert named(model, KINDS, **both)[0] > 0.35  # a guess is right in 9%
    assert named(model, NEW, **both)[0] > 0.15


def test_one_new_class_beside_the_known_ones(model: Model) -> None:
    both = {"support": drawings({NEW[0]: 5}), "known": True}
    assert named(model, KINDS, **both)[0] > 0.45
    assert named(model, NEW[:1], **both)[0] > 0.15


def test_a_class_that_is_known_and_shown_is_named_once(model: Model, notes: list[str]) -> None:
    support = drawings({KINDS[0]: 5, **dict.fromkeys(NEW, 5)})
    both = model.classifier(support, known=True)
    assert both.classes == (*(c for c in model.classes if c != KINDS[0]), *support.classes)
    assert any("of 1 of the known classes there are examples" in n for n in notes)


def test_some_of_the_known_classes_can_be_asked_for(model: Model) -> None:
    few = model.classifier(known=[*KINDS[2:4], KINDS[2]])
    assert few.classes == tuple(KINDS[2:4])
    places = model.class_means_of(KINDS[2:4])
    assert torch.equal(few.representatives, model.head.representatives_from(places.split(1)))
    with pytest.raises(KedgeError, match="as a list"):
        model.classifier(known=KINDS[2])
    for wrong in (["unicorn"], [*KINDS, "unicorn"]):
        with pytest.raises(KedgeError, match="does not know a class named 'unicorn'"):
            model.classifier(known=wrong)
    for nothing in (False, []):
        with pytest.raises(KedgeError, match="give it examples"):
            model.classifier(known=nothing)


def test_a_model_of_an_early_version_names_by_its_anchors(model: Model) -> None:
    early = replace(model, class_means=None)
    if not model.head.anchors_are_means:
        assert torch.equal(early.classifier().representatives, model.anchors)
        with pytest.raises(KedgeError, match="cannot be compared with examples"):
            early.classifier(drawings(dict.fromkeys(NEW, 5)), known=True)
    assert early.classifier(drawings(dict.fromkeys(NEW, 5))).classes == tuple(NEW)


def test_a_model_that_knows_nothing_says_so(model: Model) -> None:
    empty = replace(model, classes=(), anchors=model.anchors[:0], class_means=None)
    with pytest.raises(KedgeError, match="knows no class yet"):
        empty.classifier()


def test_the_likeliest_classes_come_first(model: Model) -> None:
    images = held_out(KINDS[:2]).images
    classifier = model.classifier()
    everything = classifier.probabilities(images)
    for n in (1, 3, 100):
        top = classifier.top(images, n)
        assert len(top) == len(images)
        for best, p in zip(top, everything, strict=True):
            assert len(best) == min(n, len(model.classes))
            assert [value for _, value in best] == sorted(p.tolist(), reverse=True)[:n]
            assert [classifier.classes.index(name) for name, _ in best] == p.argsort(
                descending=True, stable=True
            ).tolist()[:n]
    assert classifier.predict(images) == [best[0][0] for best in classifier.top(images, 1)]


def test_photos_are_named_wherever_they_are(model: Model, tmp_path: Path) -> None:
    images, classifier = held_out(KINDS[:2]).images[::7], model.classifier()
    pillow = [Image.fromarray(image[0].numpy()) for image in images]
    paths = [tmp_path / f"{i}.png" for i in range(len(pillow))]
    for picture, path in zip(pillow, paths, strict=True):
        picture.save(path)
    said = classifier.predict(images)
    assert classifier.predict(paths) == said
    assert classifier.predict(tuple(pillow)) == said
    assert classifier.predict(str(paths[0])) == said[:1]
    assert classifier.top(pillow[1], 1)[0][0][0] == said[1]
    (tmp_path / "bad.png").write_bytes(b"no picture")
    for wrong, why in (
        ([*paths, tmp_path / "bad.png"], f"1 of {len(paths) + 1} images"),
        ([], "No image"),
        ([tmp_path / "none.png"], "none.png"),
    ):
        with pytest.raises(KedgeError, match=why):
            classifier.predict(wrong)
    with pytest.raises(KedgeError, match="n is 0"):
        classifier.top(images, 0)


def test_known_images_are_measured(model: Model) -> None:
    score = api.evaluate(model, held_out([*KINDS, *NEW]), known=True)  # new ones are left aside
    assert score.n == 30 * len(KINDS)
    assert score.mean == pytest.approx(100 * named(model, KINDS)[0])
    with pytest.raises(KedgeError, match="knows none of these 2 classes"):
        api.evaluate(model, held_out(NEW), known=True)


# ── anchors ──────────────────────────────────────────────────────────────────────────────────

WISH = EpisodeWish(n_way=3, n_shot=2, n_query=2)
QUICK = {"width": 4, "episode": WISH, "schedule": Schedule(1, 2, 2)}


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images are looked at for anchors, each time."""
    from kedge.models import model

    totals: list[int] = []
    task = model.task

    def counting(description: str, total: int) -> object:
        if description.startswith("embedding every class"):
            totals.append(total)
        return task(description, total)

    monkeypatch.setattr(model, "task", counting)
    return totals


def test_an_anchor_is_made_of_training_images_and_those_once(looked_at: list[int]) -> None:
    """Some images of every class were set apart to validate: these do not count."""
    table = drawings(dict.fromkeys(KINDS, 20))
    model = api.train(table, **QUICK)
    shared = split_train_val(table, None, WISH, 0)
    assert shared.train.classes == model.classes == table.classes
    assert looked_at == [len(shared.train)] == [model.lineage[0].images]
    for anchor, rows in zip(model.anchors, shared.train.class_rows, strict=True):
        assert torch.allclose(anchor, model.embed(table.images[rows]).mean(0), atol=1e-5)
    everything = model.embed(table.images[table.rows_of(table.classes[0])]).mean(0)
    assert not torch.allclose(model.anchors[0], everything, atol=1e-3)


def test_classes_that_only_validate_have_anchors_of_all_their_images(looked_at: list[int]) -> None:
    table = drawings(dict.fromkeys(load_drawings().classes[:32], 20))
    model = api.train(table, **QUICK)
    trained = model.lineage[0].classes
    rest = [name for name in table.classes if name not in trained]
    assert len(rest) == 6
    assert looked_at[0] == 20 * 26
    assert looked_at[1:] <= [20 * 6 + 500]
    for name in rest:
        expected = model.embed(table.images[table.rows_of(name)]).mean(0)
        assert torch.allclose(model.anchors_of([name])[0], expected, atol=1e-5)


@pytest.mark.parametrize("head", ["ecm", "ridge"])
def test_anchors_of_classes_that_only_validate_stand_beside_the_others(head: str) -> None:
    """Such heads make anchors otherwise, and neither kind may win the images of the other."""
    table = drawings(dict.fromkeys(load_drawings().classes[:32], 20))
    how = {"episode": EpisodeShape(5, 3, 3), "schedule": Schedule(2, 40, 5)}
    model = api.train(table, width=8, head=head, **how)
    trained = set(model.lineage[0].classes)
    _, said = named(model, sorted(trained))
    wrong = np.mean([name not in trained for name in said])
    assert wrong < 0.35  # 6 of 32 classes


def test_classes_that_were_never_practised_on_are_told(
    model: Model, ready: Ready, tmp_path: Path
) -> None:
    model.save(tmp_path / "m.kedge")
    said = ready.kedge("show", "m.kedge", cwd=tmp_path).out
    assert "9 classes known (1 by anchors alone, never practised on): " in said


# ── classes that come back ───────────────────────────────────────────────────────────────────


def test_a_class_that_comes_back_keeps_its_name_and_gets_a_fresh_anchor(
    tmp_path: Path, draw_classes: Callable[..., Path]
) -> None:
    """Through files. Classes stand in the order in which they were last delivered."""
    first = draw_classes(tmp_path / "first", ["a", "b", "c", "d"])
    api.train(first, **QUICK).save(tmp_path / "base.kedge")
    second = draw_classes(tmp_path / "second", ["aa", "b", "z"])
    base = Model.load(tmp_path / "base.kedge")
    more = {key: QUICK[key] for key in ("episode", "schedule")}
    api.update(base, second, **more).save(tmp_path / "next.kedge")
    better = Model.load(tmp_path / "next.kedge")
    assert base.classes == ("a", "b", "c", "d")
    assert better.classes == ("a", "c", "d", "aa", "b", "z")
    for name in ("a", "c", "d"):
        assert torch.equal(better.anchors_of([name]), base.anchors_of([name]))
    shared = split_train_val(better.open(second), None, WISH, 0)
    rows = shared.train.class_rows[shared.train.classes.index("b")]
    fresh = better.embed(shared.train.table.images[rows]).mean(0)
    assert torch.allclose(better.anchors_of(["b"])[0], fresh, atol=1e-5)
    assert not torch.allclose(better.anchors_of(["b"]), base.anchors_of(["b"]), atol=1e-3)
    assert [entry.classes for entry in better.lineage] == [base.classes, ("aa", "b", "z")]


# ── methods that rehearse ────────────────────────────────────────────────────────────────────


def test_shots_are_lowered_to_what_was_kept(notes: list[str]) -> None:
    """Of old classes 3 images were kept, so that an old task has 2 shots; new ones have 20."""
    table = drawings(dict.fromkeys(KINDS, 20))
    base = api.train(table, **QUICK)
    kept = api.remember(base, table, method="EIML exemplars=3")
    new = drawings(dict.fromkeys(KINDS, 20), first=20)
    how = {"method": "EIML exemplars=3", "memory": kept, "schedule": Schedule(1, 1, 1)}
    notes.clear()
    better = api.update(base, new, **how)
    assert better.lineage[-1].config["episode"]["n_shot"] == 2
    assert [note for note in notes if note.startswith("  --n-shot 2: ")]
    with pytest.raises(KedgeError, match="too few for old tasks of 3 shots"):
        api.update(base, new, episode=EpisodeWish(n_shot=3), **how)


def test_classes_that_were_too_small_are_not_remembered() -> None:
    table = drawings({**dict.fromkeys(KINDS, 20), SMALL: 2})
    base = api.train(table, **QUICK)
    assert SMALL in base.classes
    kept = api.remember(base, table, method="EIML exemplars=6")
    assert kept["counts"].tolist() == [6] * len(KINDS)
