"""Class names that are almost the same: a question in training, a remark elsewhere."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kedge import api
from kedge.data.class_names import SameClass, name_key
from kedge.data.delivery import Delivery
from kedge.data.open import open_images
from kedge.data.remarks import problems
from kedge.data.table import ImageTable
from kedge.errors import KedgeError
from kedge.models.model import Model

# What is wrong with images is asserted by their remarks; warnings are tested in test_progress.py.
pytestmark = pytest.mark.filterwarnings("ignore::kedge.errors.KedgeWarning")

Draw = Callable[..., Path]
TINY: dict[str, Any] = {"train": "none", "width": 4, "backbone": "conv4"}


@pytest.mark.parametrize(
    ("a", "b"),
    [
        *(("Rose", "rose"), ("red rose", "red_rose"), ("red-rose", "RedRose"), ("a b", "a  b")),
        *(("stra\u00dfe", "STRASSE"), ("x\u00b2", "x2"), ("caf\u00e9", "CAFE\u0301")),
        ("red\u2013rose", "red rose"),
    ],
)
def test_names_that_are_alike(a: str, b: str) -> None:
    assert name_key(a) == name_key(b)


@pytest.mark.parametrize(
    ("a", "b"), [("1-2", "12"), ("rose", "roses"), ("cafe", "caf\u00e9"), ("-", "_"), ("a1", "a2")]
)
def test_names_that_are_not(a: str, b: str) -> None:
    assert name_key(a) != name_key(b)


@pytest.fixture
def garden(tmp_path: Path, draw_classes: Draw) -> Path:
    return draw_classes(tmp_path / "garden", ["Oak", "Rose", "rose", "tulip"])


def test_training_asks_and_takes_the_answer(garden: Path) -> None:
    with pytest.raises(KedgeError, match=r"--same-class rose=Rose.*--same-class none") as caught:
        api.train(garden, **TINY)
    assert "'rose' and 'Rose'" in str(caught.value)
    joined = api.train(garden, same_class={"rose": "Rose"}, **TINY)
    assert joined.classes == ("Oak", "Rose", "tulip")
    assert joined.calibration is not None
    assert joined.calibration.counts["Rose"] == 2 * joined.calibration.counts["Oak"]
    assert api.train(garden, same_class="none", **TINY).classes == ("Oak", "Rose", "rose", "tulip")
    with pytest.raises(KedgeError, match="no class 'Rosse'"):
        api.train(garden, same_class={"rose": "Rosse"}, **TINY)


def test_all_names_that_are_alike_can_be_joined_at_once(
    tmp_path: Path, draw_classes: Draw, cli: Any
) -> None:
    """As when someone else has written all names in another way."""
    first = draw_classes(tmp_path / "first", ["red rose", "white oak", "elm"])
    model = api.train(first, **TINY)
    new = draw_classes(tmp_path / "new", ["Red_Rose", "red-rose", "White_Oak", "fir"])
    with pytest.raises(KedgeError, match="--same-class all"):
        api.update(model, new, epochs=0)
    joined = api.update(model, new, same_class="all", epochs=0)
    assert set(joined.classes) == {*model.classes, "fir"}
    ended = cli("data", "inspect", new, "--same-class", "all", "--strict")
    assert (ended.rc, "'red-rose' with 'Red_Rose'" in ended.out) == (0, True)
    with pytest.raises(KedgeError, match="leave one of them out"):
        api.train(new, same_class=["all", "none"], **TINY)


def test_validation_images_get_the_names_of_the_trained_classes(tmp_path: Path) -> None:
    val = Delivery.of("first", same_class="all").to_validate("val", ["Rose"])
    assert val is not None
    assert val.settle_names("val", ["ROSE", "rose"], [9, 1])[0] == ["Rose", "Rose"]


def test_a_packed_file_and_a_table_are_asked_about_too(garden: Path, tmp_path: Path) -> None:
    images = open_images(garden)
    images.save(tmp_path / "garden.images")
    joined = open_images(garden, same_class="rose=Rose")
    for source in (tmp_path / "garden.images", images):
        with pytest.raises(KedgeError, match="--same-class"):
            api.train(source, **TINY)
        again = open_images(source, same_class="rose=Rose")
        assert again.classes == joined.classes
        assert again.counts.tolist() == joined.counts.tolist()
        assert {p.tobytes() for p in again.take(again.rows_of("Rose")).numpy()} == {
            p.tobytes() for p in joined.take(joined.rows_of("Rose")).numpy()
        }


def test_update_compares_with_the_names_that_the_model_knows(
    tmp_path: Path, draw_classes: Draw
) -> None:
    model = api.train(draw_classes(tmp_path / "first", ["Rose", "Oak"]), **TINY)
    new = draw_classes(tmp_path / "new", ["rose ", "o-a-k", "elm"])
    how = {"epochs": 0}
    with pytest.raises(KedgeError, match="the known 'Rose'") as caught:
        api.update(model, new, **how)
    answers = re.findall(r"--same-class '?([^' ;]+=[^' ;]+)'?", str(caught.value))
    assert sorted(answers) == ["o-a-k=Oak", "rose=Rose"]
    with pytest.raises(KedgeError, match="'rose' and the known 'Rose'"):
        api.update(model, new, same_class=["o-a-k=Oak"], **how)
    assert set(api.update(model, new, same_class=answers, **how).classes) == {"Rose", "Oak", "elm"}
    mixed = api.update(model, new, same_class=["o-a-k=Oak", "none"], **how)
    assert set(mixed.classes) == {"Rose", "rose", "Oak", "elm"}
    _only_a_remark(model, new)


def _only_a_remark(model: Model, new: Path) -> None:
    """Where nothing is learned, images may be used as they are."""
    table = model.open(new)
    assert isinstance(table, ImageTable)
    assert len(problems(table.remarks)) == 1
    assert problems(model.open(Delivery.of(new, same_class="none")).remarks) == []


@pytest.mark.parametrize("text", ["rose", "=rose", "rose=", ""])
def test_wrong_answers(text: str) -> None:
    with pytest.raises(KedgeError, match="--same-class"):
        SameClass.parse([text])


def test_chains_are_refused() -> None:
    with pytest.raises(KedgeError, match="final name"):
        SameClass.parse({"a": "b", "b": "c"})
