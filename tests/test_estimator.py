"""The scikit-learn estimator: its own tests of estimators, rounds, labels, searches and copies."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from PIL import Image
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.utils.estimator_checks import check_estimator

import kedge
from kedge.config import TrainOptions
from kedge.errors import KedgeError
from kedge.estimator import KedgeClassifier

SHAPE: dict[str, Any] = {"n_way": 2, "n_shot": 1, "n_query": 1}
QUICK: dict[str, Any] = {**SHAPE, "width": 8, "epochs": 2, "episodes": 10, "val_episodes": 5}
NO_IMAGES = "the rows of this check's X are no images: they have 2, 3, 5 or 10 values of any size"
# check_classifiers_train is run with three kinds of X, check_estimators_pickle with two.
EXPECTED_FAILURES = """
    check_classifier_data_not_an_array check_classifiers_classes check_classifiers_train
    check_dict_unchanged check_dont_overwrite_parameters check_dtype_object check_estimators_dtypes
    check_estimators_fit_returns_self check_estimators_nan_inf check_estimators_overwrite_params
    check_estimators_partial_fit_n_features check_estimators_pickle
    check_f_contiguous_array_estimator check_fit2d_predict1d check_fit_check_is_fitted
    check_fit_idempotent check_fit_score_takes_y check_methods_sample_order_invariance
    check_methods_subset_invariance check_n_features_in check_n_features_in_after_fitting
    check_pipeline_consistency check_readonly_memmap_input check_supervised_y_2d
""".split()  # noqa: SIM905


class TablesAsImages(KedgeClassifier):
    """For scikit-learn's checks, whose X are tables: every value becomes a grey square, brighter
    the larger it is. Everything else is the estimator's own."""

    def _images_in_rows(self, table: np.ndarray) -> np.ndarray:
        side = math.ceil(math.sqrt(table.shape[1]))
        squares = np.zeros((len(table), side * side))
        squares[:, : table.shape[1]] = 1 / (1 + np.exp(-table.astype(float)))
        return np.kron(squares.reshape(-1, side, side), np.ones((1, 16 // side, 16 // side)))


def run_checks(estimator: KedgeClassifier, **options: Any) -> dict[str, set[str]]:
    """The names of the checks by how they ended."""
    ended: dict[str, set[str]] = {}
    for result in check_estimator(estimator, on_fail=None, on_skip=None, **options):
        ended.setdefault(result["status"], set()).add(result["check_name"])
    return ended


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # scikit-learn's checks give warnings by design
def test_scikit_learns_checks() -> None:
    """As it is, on X that are images; and everything but that, on X that are made to images."""
    ended = run_checks(TablesAsImages(**QUICK, backbone="conv4"))
    # One needs an option of SciPy, the other pandas.
    assert ended.pop("skipped", set()) <= {
        "check_array_api_input",
        "check_classifier_data_not_an_array",
    }
    assert set(ended) == {"passed"}
    assert len(ended["passed"]) > 45
    reasons = dict.fromkeys(EXPECTED_FAILURES, NO_IMAGES)
    ended = run_checks(KedgeClassifier(**QUICK), expected_failed_checks=reasons)
    assert set(ended) <= {"passed", "skipped", "xfail"}
    assert ended["xfail"] == set(EXPECTED_FAILURES)
    assert len(ended["passed"]) > 25
    failed = run_checks(KedgeClassifier(**QUICK))["failed"]
    assert failed == ended["xfail"], "no check that passes is expected to fail"


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    """Rows of 8 × 8 values, of ten classes."""
    X, y = load_digits(return_X_y=True)
    return X[:600] / 16, y[:600]


def test_partial_fit_is_a_round(digits: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = digits
    old = y < 5
    classifier = KedgeClassifier(**QUICK | {"epochs": 3, "episodes": 30})
    with pytest.raises(NotFittedError):
        classifier.predict(X)
    assert classifier.partial_fit(X[old], y[old]) is classifier
    assert classifier.classes_.tolist() == [0, 1, 2, 3, 4]
    assert classifier.score(X[old], y[old]) > 0.6
    first = classifier.model_
    classifier.partial_fit(X[~old & (y < 9)], y[~old & (y < 9)]).partial_fit(X[y == 9], y[y == 9])
    assert classifier.classes_.tolist() == list(range(10))
    assert [entry.round for entry in classifier.model_.lineage] == [0, 1, 2]
    assert first.classes == tuple("01234")
    assert classifier.score(X, y) > 0.3  # chance is 0.1
    probabilities = classifier.predict_proba(X[:50])
    assert np.array_equal(classifier.classes_[probabilities.argmax(1)], classifier.predict(X[:50]))
    classifier.fit(X[~old], y[~old])
    assert classifier.classes_.tolist() == [5, 6, 7, 8, 9]
    for wrong in (y[old].astype(str), y[old][1:], np.full(old.sum(), 0.5)):
        with pytest.raises(ValueError, match=r"labels|inconsistent|continuous"):
            classifier.partial_fit(X[old], wrong)


@pytest.mark.parametrize(
    "labels",
    [
        [10, 9, 2],
        [-1, 0, 1],
        [True, False, True],
        ["b ", "a", "b"],
        ["Rose", "rose", "ROSE"],
        [2.0, 1.0, 3.0],
    ],
)
def test_labels_come_back(labels: list[Any]) -> None:
    X = np.random.default_rng(0).integers(0, 256, (30, 16, 16), dtype=np.uint8)
    y = np.repeat(np.array(labels), 10)
    classifier = KedgeClassifier(**QUICK, verbose=False).fit(X, y)
    assert classifier.classes_.tolist() == sorted(set(labels))
    assert classifier.predict(X).dtype == y.dtype
    assert set(classifier.predict(X)) <= set(labels)
    if isinstance(labels[0], str):  # as pandas has them
        classifier.partial_fit(X, np.repeat(np.array(["x", "y", "x"], dtype=object), 10))
        assert classifier.classes_.tolist() == sorted({*labels, "x", "y"})


def test_images_in_every_form(tmp_path: Path) -> None:
    colour = np.random.default_rng(0).integers(0, 256, (20, 16, 16, 3), dtype=np.uint8)
    y = ["a"] * 10 + ["b"] * 10
    paths = [tmp_path / f"{i}.png" for i in range(20)]
    for path, image in zip(paths, colour, strict=True):
        Image.fromarray(image).save(path)
    rows = colour.reshape(20, -1)
    how = {**QUICK, "backbone": "conv4"}
    expected = KedgeClassifier(**how).fit(colour, y).predict_proba(colour)
    forms: list[Any] = [colour / 255, list(colour), paths, np.array(list(map(str, paths)))]
    forms += [[Image.fromarray(image) for image in colour]]
    for X in forms:
        assert np.array_equal(KedgeClassifier(**how).fit(X, y).predict_proba(X), expected)
    flat = KedgeClassifier(**how, image_shape=(16, 16, 3)).fit(rows, y)
    assert np.array_equal(flat.predict_proba(rows / 255), expected)
    assert flat.n_features_in_ == 768
    with pytest.raises(ValueError, match="image_shape"):
        KedgeClassifier(**how).fit(rows, y)
    with pytest.raises(ValueError, match="768 features"):
        flat.predict(rows[:, :-3])


def test_searches_and_copies(digits: tuple[np.ndarray, np.ndarray], capsys: Any) -> None:
    X, y = (each[digits[1] < 3][:90] for each in digits)
    quiet = KedgeClassifier(**QUICK, verbose=False)
    search = GridSearchCV(quiet, {"width": [4, 8]}, cv=2).fit(X, y)
    assert search.best_params_["width"] in (4, 8)
    assert search.best_estimator_.model_.config.backbone.width == search.best_params_["width"]
    assert len(cross_val_score(quiet, X, y, cv=2)) == 2
    assert capsys.readouterr().err == ""
    fitted = search.best_estimator_
    file = io.BytesIO()
    joblib.dump(fitted, file)
    file.seek(0)
    again = joblib.load(file)
    assert np.array_equal(again.predict_proba(X), fitted.predict_proba(X))
    assert again.partial_fit(X, y + 3).classes_.tolist() == [0, 1, 2, 3, 4, 5]
    copy = clone(fitted).set_params(width=6)
    assert (copy.get_params()["width"], hasattr(copy, "model_")) == (6, False)


def test_errors_are_value_errors_and_kedges() -> None:
    X = np.zeros((20, 16, 16), np.uint8)
    for y, how in (([1] * 20, {}), (None, {}), ([1, 2] * 10, {"n_way": 1})):
        with pytest.raises(ValueError, match=r"class|y should|--n-way"):
            KedgeClassifier(**how).fit(X, y)
    with pytest.raises(KedgeError, match="expected 0 to 1"):
        KedgeClassifier(**QUICK).fit(X + 5.0, [1, 2] * 10)


def test_arguments_are_the_options_of_train() -> None:
    own = {"method", "image_shape", "random_state", "verbose"}
    options = {*TrainOptions.__dataclass_fields__} - {"seed"}
    assert set(kedge.KedgeClassifier().get_params()) == options | own
    defaults = TrainOptions()
    for name, value in KedgeClassifier().get_params().items():
        assert name in own or getattr(defaults, name) == value, name
