"""A scikit-learn estimator, for pipelines, cross-validation and searches.

classifier = kedge.KedgeClassifier(epochs=20).fit(X, y)
classifier.partial_fit(X2, y2)  # a round: new classes, without the images of the old ones
classifier.predict(X3)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from numbers import Number
from typing import Any, Self

import numpy as np
from torch import nn

from kedge import api
from kedge.config import (
    Annealing,
    BatchNormMode,
    Count,
    DropoutMode,
    RoundOptions,
    Sampling,
    Trained,
    TrainOptions,
)
from kedge.data.in_memory.objects import is_array, to_numpy
from kedge.errors import KedgeError, require
from kedge.models.model import Model
from kedge.utils import progress
from kedge.utils.text import normalize_name, pip_install

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils import Tags, check_consistent_length, column_or_1d
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, check_non_negative, validate_data
except ImportError:
    raise KedgeError(
        f"kedge.KedgeClassifier needs scikit-learn: {pip_install('sklearn')}."
    ) from None


TEXT = "OSU"  # kinds of dtypes


class InvalidInputError(KedgeError, ValueError):
    """A `KedgeError` that is also a ValueError, as scikit-learn's tools expect of wrong data."""


class KedgeClassifier(ClassifierMixin, BaseEstimator):
    """A classifier of images with scikit-learn's interface (`pip install 'kedge[sklearn]'`).

    `fit` trains a model as `train` does, and `partial_fit` updates it as `update` does: it takes
    new classes, or more images of known ones, and needs no earlier image. `predict` names all
    classes learned so far.

    X holds images in any form that `train` takes: an array N×H×W or N×H×W×C (uint8, or floats from
    0 to 1), or a list of paths, Pillow images, arrays or tensors. The rows of a two-dimensional X,
    as in scikit-learn's own data sets, are images whose pixels are in one line. y holds labels of
    any type, which `classes_` and `predict` give back.

    Args:
        method: how `partial_fit` updates; see `update`.
        image_shape: (height, width) or (height, width, channels) of the images in the rows of a
            two-dimensional X; by default they are grey and square.
        random_state: the option `seed`, a whole number.
        verbose: whether progress, choices and notes are shown.

    The other arguments are the options of `train`; what is None is inferred from the images. Those
    of a round are used by `partial_fit` too. Attributes after `fit`: `classes_`, the labels in
    order; `model_`, the `Model`; and for a two-dimensional X `n_features_in_`.
    """

    classes_: np.ndarray
    model_: Model
    _names: dict[Any, str]  # of classes of the model, by label

    def __init__(
        self,
        *,
        method: str | None = None,
        backbone: str | nn.Module | None = None,
        weights: str | None = None,
        width: int | None = None,
        head: str | None = None,
        temperature: float | None = None,
        image_size: int | None = None,
        image_shape: tuple[int, ...] | None = None,
        n_way: Count | None = None,
        n_shot: Count | None = None,
        n_query: int | None = None,
        epochs: int | None = None,
        episodes: int | None = None,
        val_episodes: int = 200,
        lr: float | None = None,
        patience: int = 3,
        sampling: Sampling = "uniform",
        tasks_per_step: int = 1,
        annealing: Annealing | None = None,
        train: Trained | None = None,
        batch_norm: BatchNormMode | None = None,
        dropout: DropoutMode | None = None,
        ema: float | None = None,
        random_state: int = 0,
        verbose: bool = True,
    ) -> None:
        self.method = method
        self.backbone = backbone
        self.weights = weights
        self.width = width
        self.head = head
        self.temperature = temperature
        self.image_size = image_size
        self.image_shape = image_shape
        self.n_way = n_way
        self.n_shot = n_shot
        self.n_query = n_query
        self.epochs = epochs
        self.episodes = episodes
        self.val_episodes = val_episodes
        self.lr = lr
        self.patience = patience
        self.sampling = sampling
        self.tasks_per_step = tasks_per_step
        self.annealing = annealing
        self.train = train
        self.batch_norm = batch_norm
        self.dropout = dropout
        self.ema = ema
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any) -> Self:
        """Train a new model, whatever was learned before."""
        with self._showing():
            images, labels = self._check(X, y, reset=True)
            names = _named({}, labels)
            given = (images, [names[label] for label in labels.tolist()])
            how: dict[str, Any] = {"backbone": self.backbone, "same_class": "none"}
            self.model_ = api.train(given, **how, **self._options(TrainOptions))
            self._set_classes(names, labels)
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Update the model with a round of new classes or images; the first call is `fit`.

        For a single class, only its anchor is learned. `classes`, which scikit-learn's other
        estimators need to know in the first call, is ignored: classes may come at any time.
        """
        if not hasattr(self, "model_"):
            return self.fit(X, y)
        with self._showing():
            images, labels = self._check(X, y, reset=False)
            names = _named(self._names, labels)
            given = (images, [names[label] for label in labels.tolist()])
            options = self._options(RoundOptions)
            if len(np.unique(labels)) == 1:
                options["epochs"] = 0
            how: dict[str, Any] = {"method": self.method, "same_class": "none"}
            self.model_ = api.update(self.model_, given, **how, **options)
            self._set_classes(names, np.concatenate([self.classes_, labels]))
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The most probable label of each image."""
        best = self.predict_proba(X).argmax(1)
        return self.classes_[best]

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of each label for each image, in the order of `classes_`."""
        check_is_fitted(self)
        with self._showing():
            images = self._images(X, reset=False)
            position = {name: i for i, name in enumerate(self.model_.classes)}
            columns = [position[self._names[label]] for label in self.classes_.tolist()]
            probabilities = self.model_.predict_proba(images)[:, columns]
        return probabilities.cpu().numpy().astype(np.float64)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.input_tags.positive_only = True
        return tags

    @contextmanager
    def _showing(self) -> Iterator[None]:
        """Show progress if the user wants it; errors are such as scikit-learn's tools expect."""
        with progress.display(python=True, hidden=not self.verbose):
            try:
                yield
            except KedgeError as error:
                raise InvalidInputError(str(error)) from error

    def _options(self, kind: type[RoundOptions]) -> dict[str, Any]:
        """The options of a round, or of the first one."""
        given = {**self.get_params(deep=False), "seed": self.random_state}
        names = {field.name for field in fields(kind)} - {"backbone"}
        return {name: value for name, value in given.items() if name in names}

    def _set_classes(self, names: dict[Any, str], labels: np.ndarray) -> None:
        """Set the labels of the classes that the model knows, which are all but those of which no
        image could be read."""
        known, distinct = set(self.model_.classes), np.unique(labels)
        self._names = {label: name for label, name in names.items() if name in known}
        self.classes_ = distinct[[label in self._names for label in distinct.tolist()]]

    def _check(self, X: Any, y: Any, *, reset: bool) -> tuple[Any, np.ndarray]:
        """Images as kedge takes them, and labels."""
        labels = column_or_1d(y, warn=True)
        check_classification_targets(labels)
        if reset:
            several = len(np.unique(labels)) > 1
            require(several, "y has only one class: the first model needs at least 2 classes.")
        else:
            alike = (labels.dtype.kind in TEXT) == (self.classes_.dtype.kind in TEXT)
            kinds = f"{labels.dtype}, but the labels before were of {self.classes_.dtype}"
            require(alike, f"y is of {kinds}: give labels of one type.")
        images = self._images(X, reset=reset)
        check_consistent_length(images, labels)
        return images, labels

    def _images(self, X: Any, *, reset: bool) -> Any:
        """X as it is, or the images in the rows of a table."""
        if hasattr(X, "__array__") and not hasattr(X, "shape"):
            X = np.asarray(X)
        if not _is_table(X):
            return X
        table = validate_data(self, to_numpy(X) if is_array(X) else X, reset=reset)
        check_non_negative(table, type(self).__name__)
        require(table.shape[1] > 1, "X has n_features = 1: a row of one value is no image.")
        return self._images_in_rows(table)

    def _images_in_rows(self, table: np.ndarray) -> np.ndarray:
        side, n_values = math.isqrt(table.shape[1]), table.shape[1]
        shape = self.image_shape or (side, side)
        require(
            math.prod(shape) == n_values,
            f"A row of X has {n_values} values, which are no image of {'×'.join(map(str, shape))}; "
            "give image_shape=(height, width) or (height, width, channels).",
        )
        return table.reshape(len(table), *shape[:2], -1)


def _is_table(X: Any) -> bool:
    """Whether X is two-dimensional, or is meant to be: a data frame, a sparse matrix, lists."""
    if hasattr(X, "iloc") or hasattr(X, "toarray"):
        return True
    if is_array(X):
        return X.ndim == 2 or (X.ndim < 2 and to_numpy(X).dtype.kind not in "OU")
    first: Any = X[0] if isinstance(X, Sequence) and not isinstance(X, str) and len(X) else None
    is_row = isinstance(first, list | tuple) or (is_array(first) and first.ndim == 1)
    return is_row or isinstance(first, Number)


def _named(names: dict[Any, str], labels: np.ndarray) -> dict[Any, str]:
    """The class name of each label; new labels are named by their text, if it is not taken."""
    names, taken = dict(names), set(names.values())
    for label in np.unique(labels).tolist():
        if label not in names:
            name = normalize_name(str(label).strip() or repr(label))
            while name in taken:
                name += "'"
            names[label] = name
            taken.add(name)
    return names
