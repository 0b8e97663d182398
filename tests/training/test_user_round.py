"""After a round on a user's images every delivered class has an anchor and can be predicted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from kedge import api
from kedge.config import RoundOptions
from kedge.data.drawings import load_drawings
from kedge.data.table import ImageTable
from kedge.episodes.train_val_split import split_train_val
from kedge.errors import KedgeError
from kedge.models.embedding import WeightsOrigin
from kedge.models.model import Model
from kedge.training import duration
from kedge.utils import progress

KINDS = ["apple", "axe", "bicycle", "cactus", "ladder", "moon", "snake", "The Eiffel Tower"]
SMALL, NEW = "zebra", ["pants", "star"]
SHAPE = {"n_way": 3, "n_shot": 2, "n_query": 2}
ONE_EPOCH = {"epochs": 1, "episodes": 2, "val_episodes": 2}
QUICK = {"width": 4, **SHAPE, **ONE_EPOCH}


def drawings(counts: dict[str, int], first: int = 0) -> ImageTable:
    table = load_drawings()
    rows = [table.rows_of(name)[first : first + n] for name, n in sorted(counts.items())]
    labels = np.repeat(np.arange(len(rows)), [len(of_class) for of_class in rows])
    return ImageTable.build(table.images[torch.cat(rows)], labels, sorted(counts), "drawings")


def predict(model: Model, kinds: Sequence[str], **known: object) -> tuple[float, list[str]]:
    """Accuracy on held-out drawings, from 0 to 1, and the predicted names."""
    table = drawings(dict.fromkeys(kinds, 30), first=60)
    predicted = model.classifier(**known).predict(table.images)
    truth = [table.classes[i] for i in table.labels.tolist()]
    return float(np.mean([a == b for a, b in zip(predicted, truth, strict=True)])), predicted


@pytest.fixture(scope="module", params=["prototype", "ecm", "ridge"])
def model(request: pytest.FixtureRequest) -> Model:
    """Trained on eight kinds; a ninth was too small to train on."""
    table = drawings({**dict.fromkeys(KINDS, 40), SMALL: 3})
    schedule = {"epochs": 3, "episodes": 40, "val_episodes": 10}
    shape = {"n_way": 5, "n_shot": 3, "n_query": 3}
    return api.train(table, width=16, head=request.param, **shape, **schedule)


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    texts: list[str] = []
    monkeypatch.setattr(progress, "note", texts.append)
    return texts


# ── predicting known classes ─────────────────────────────────────────────────────────────────


def test_known_classes_are_predicted_without_examples(model: Model) -> None:
    assert sorted(model.classes) == sorted([*KINDS, SMALL])
    assert SMALL not in model.lineage[0].classes
    accuracy, predicted = predict(model, KINDS)
    assert accuracy > 0.45  # chance is 11%
    assert predicted.count(SMALL) < 0.25 * len(predicted), "a class hardly seen wins everything"
    assert predict(model, [SMALL])[0] > 0.1
    score = api.evaluate(model, drawings(dict.fromkeys([*KINDS, *NEW], 30), 60), known=True)
    assert (score.n, score.mean) == (30 * len(KINDS), pytest.approx(100 * accuracy))


@pytest.mark.parametrize("new", [NEW, NEW[:1]])
def test_known_and_new_classes_are_predicted_together(model: Model, new: list[str]) -> None:
    both = {"support": drawings(dict.fromkeys(new, 5)), "known": True}
    assert model.classifier(**both).classes == (*model.classes, *new)
    assert predict(model, KINDS, **both)[0] > 0.35  # chance is 9%
    assert predict(model, new, **both)[0] > 0.15


def test_which_known_classes_take_part(model: Model, notes: list[str]) -> None:
    support = drawings({KINDS[0]: 5, **dict.fromkeys(NEW, 5)})
    both = model.classifier(support, known=True)
    assert both.classes == (*(c for c in model.classes if c != KINDS[0]), *support.classes)
    assert notes, "a class that is known and has examples is mentioned"
    few = model.classifier(known=[*KINDS[2:4], KINDS[2]])
    assert few.classes == tuple(KINDS[2:4])
    means = model.class_means_of(KINDS[2:4])
    assert torch.equal(few.representatives, model.head.representatives_from(means.split(1)))
    for known, message in (
        (KINDS[2], "list"),
        ([*KINDS, "unicorn"], "'unicorn'"),
        (False, "examples"),
        ([], "examples"),
    ):
        with pytest.raises(KedgeError, match=message):
            model.classifier(known=known)


def test_model_without_class_means_or_classes(model: Model) -> None:
    early, new = replace(model, class_means=None), drawings(dict.fromkeys(NEW, 5))
    if not model.head.anchors_are_means:
        assert torch.equal(early.classifier().representatives, model.anchors)
        with pytest.raises(KedgeError, match="cannot be compared"):
            early.classifier(new, known=True)
    assert early.classifier(new).classes == tuple(NEW)
    if model.config.head.head == "ridge":  # defines a class by its difference from others
        _, predicted = predict(early, KINDS)
        assert predicted.count(SMALL) < 0.25 * len(predicted), "an anchor made without contrast"
    empty = replace(model, classes=(), anchors=model.anchors[:0], class_means=None)
    with pytest.raises(KedgeError, match="knows no class"):
        empty.classifier()


# ── anchors ──────────────────────────────────────────────────────────────────────────────────


def test_anchor_is_the_mean_of_the_training_images() -> None:
    """Images that were set apart for validation do not count."""
    table = drawings(dict.fromkeys(KINDS, 20))
    model = api.train(table, **QUICK)
    split = split_train_val(table, None, RoundOptions(**SHAPE), 0)
    assert split.train.classes == model.classes == table.classes
    assert len(split.train) == model.lineage[0].images < len(table)
    for anchor, rows in zip(model.anchors, split.train.class_rows, strict=True):
        assert torch.allclose(anchor, model.embed(table.images[rows]).mean(0), atol=1e-5)


@pytest.mark.parametrize("head", ["prototype", "ridge"])
def test_where_validation_only_reports_anchors_are_of_all_images(head: str) -> None:
    """With a cosine the last epoch is kept, whatever validation says; few images are precious."""
    first = drawings({**dict.fromkeys(KINDS[:4], 10), SMALL: 3})
    model = api.train(first, head=head, annealing="cosine", **QUICK)
    made = model.head.anchors(model.embed(first.images).split(first.counts.tolist()))
    assert torch.allclose(model.anchors_of(first.classes), made, atol=1e-5)
    assert model.calibration is not None
    assert model.calibration.counts == dict(zip(first.classes, [10] * 4 + [3], strict=True))
    again = drawings({**dict.fromkeys(KINDS[4:], 10), SMALL: 2}, first=20)
    later = api.update(model, again, annealing="cosine", **SHAPE, **ONE_EPOCH)
    kept = model.anchors_of([SMALL])
    assert torch.equal(later.anchors_of([SMALL]), kept), "too small for an episode"
    plateau = api.train(first, head=head, **QUICK)
    assert set(plateau.calibration.counts.values()) == {10 - 4, 3}, "not those of validation"


def test_duration_is_told_before_training_and_changes_nothing(
    notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = drawings(dict.fromkeys(KINDS[:4], 10))
    quiet = api.train(table, **QUICK).fingerprint
    assert not any("expected duration" in note for note in notes), "a short round"
    monkeypatch.setattr(duration, "WORTH_TELLING", 0)
    assert api.train(table, **QUICK).fingerprint == quiet
    [told] = [note for note in notes if "expected duration" in note]
    assert "2 steps of" in told


def test_round_without_training_claims_no_alignment(notes: list[str]) -> None:
    base = api.train(drawings(dict.fromkeys(KINDS, 10)), **QUICK)
    notes.clear()
    model = api.update(base, drawings({SMALL: 1}), epochs=0)
    assert model.lineage[-1].method == "anchors only"
    assert not any("--method" in note or "--train" in note for note in notes)
    kept = api.remember(base, drawings(dict.fromkeys(KINDS, 10)), method="EIML")
    few = drawings({SMALL: 1})  # too few for an episode
    assert api.remember(model, few, method="EIML", before=kept) == kept


def test_classes_that_only_validate_have_anchors_of_all_their_images() -> None:
    table = drawings(dict.fromkeys(load_drawings().classes[:32], 20))
    model = api.train(table, **QUICK)
    rest = [name for name in table.classes if name not in model.lineage[0].classes]
    assert len(rest) == 6
    for name in rest:
        expected = model.embed(table.images[table.rows_of(name)]).mean(0)
        assert torch.allclose(model.anchors_of([name])[0], expected, atol=1e-5)


@pytest.mark.parametrize("head", ["ecm", "ridge"])
def test_anchors_that_were_not_trained_do_not_win_images_of_others(head: str) -> None:
    """These heads compute anchors of untrained classes in another way."""
    table = drawings(dict.fromkeys(load_drawings().classes[:32], 20))
    schedule = {"epochs": 2, "episodes": 40, "val_episodes": 5}
    model = api.train(table, width=8, head=head, n_way=5, n_shot=3, n_query=3, **schedule)
    trained = set(model.lineage[0].classes)
    _, predicted = predict(model, sorted(trained))
    assert np.mean([name not in trained for name in predicted]) < 0.35  # 6 of 32 classes


def test_class_that_is_delivered_again_moves_to_the_end_with_a_new_anchor() -> None:
    base = api.train(drawings(dict.fromkeys(KINDS[:4], 12)), **QUICK)
    new = drawings(dict.fromkeys([KINDS[1], *NEW], 12), first=12)
    better = api.update(base, new, **SHAPE, **ONE_EPOCH)
    kept = (KINDS[0], *KINDS[2:4])
    assert better.classes == (*kept, *new.classes)
    assert torch.equal(better.anchors_of(kept), base.anchors_of(kept))
    split = split_train_val(new, None, RoundOptions(**SHAPE), 0)
    rows = split.train.class_rows[split.train.classes.index(KINDS[1])]
    expected = better.embed(new.images[rows]).mean(0)
    assert torch.allclose(better.anchors_of([KINDS[1]])[0], expected, atol=1e-5)
    assert [entry.classes for entry in better.lineage] == [base.classes, new.classes]


def test_an_update_is_by_ida_plus_with_the_users_own_settings() -> None:
    base = api.train(drawings(dict.fromkeys(KINDS[:4], 12)), **QUICK)
    origin = WeightsOrigin("conv4", "1", "weights.pt", "0" * 64)
    pretrained = replace(base, config=replace(base.config, pretrained=origin))
    new, methods = drawings(dict.fromkeys(NEW, 12)), []
    options = {**SHAPE, "n_way": 2, **ONE_EPOCH}
    for start, own in ((base, {}), (pretrained, {}), (pretrained, {"ema": 0.5})):
        entry = api.update(start, new, **options, **own).lineage[-1]
        assert entry.config["schedule"]["dropout"] == "off"
        methods.append((entry.method, entry.config["schedule"].get("ema", 0)))
    assert methods == [("IDA+", 0), ("IDA+", 0.99), ("IDA+", 0.5)]


@pytest.mark.parametrize("inverted", [False, True])
def test_a_delivery_with_dark_and_bright_exchanged_draws_a_remark(
    inverted: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    base = api.train(drawings(dict.fromkeys(KINDS[:4], 12)), **QUICK)
    new = drawings(dict.fromkeys(NEW, 12))
    new = replace(new, images=255 - new.images) if inverted else new
    capsys.readouterr()
    api.update(base, new, epochs=0)
    assert ("exchanged" in capsys.readouterr().err) == inverted


# ── methods that rehearse ────────────────────────────────────────────────────────────────────


def test_shots_are_limited_by_the_memory(notes: list[str]) -> None:
    """3 images of each old class allow old episodes of 2 shots; the new classes have 20 images."""
    table = drawings({**dict.fromkeys(KINDS, 20), SMALL: 2})
    base = api.train(table, **QUICK)
    memory = api.remember(base, table, method="EIML exemplars=3")
    assert memory["counts"].tolist() == [3] * len(KINDS), "the small class was not trained on"
    new = drawings(dict.fromkeys(KINDS, 20), first=20)
    how = {"method": "EIML exemplars=3", "memory": memory, **ONE_EPOCH}
    notes.clear()
    better = api.update(base, new, **how)
    assert better.lineage[-1].config["episode"]["n_shot"] == 2
    assert [note for note in notes if note.startswith("  n_shot=2: ")]
    with pytest.raises(KedgeError, match="3 shots"):
        api.update(base, new, n_shot=3, **how)
