"""The version in use: a classifier of the classes that it knows and of those taught since.

What answers a question is one immutable `Snapshot`, so that a version can be exchanged, or a class
taught, while others ask.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from kedge.models.classifier import Classifier
from kedge.models.model import VIRTUAL_SAMPLES, Model
from kedge.serve.classes import ClassRow
from kedge.serve.limits import Refused
from kedge.serve.project import Project
from kedge.training.step import default_device

MOST_MAPPED = 500  # classes that decide the axes of the map
FARTHEST = 1.5  # position of an asked picture on the map, where classes are within ±1


@dataclass(frozen=True, eq=False)
class Map:
    """The two directions along which the class means differ most."""

    centre: Tensor
    axes: Tensor  # d × 2
    scale: float
    explained: float  # the share of the variance of the class means
    positions: dict[int, tuple[float, float]]  # by class id

    def place(self, points: Tensor) -> list[tuple[float, float]]:
        found = ((points - self.centre) @ self.axes / self.scale).clamp(-FARTHEST, FARTHEST)
        return [(round(x, 4), round(y, 4)) for x, y in found.tolist()]


@dataclass(frozen=True, eq=False)
class Snapshot:
    """What answers questions at one moment."""

    version: int
    model: Model  # on the CPU
    on_device: Model
    classifier: Classifier | None  # None: there are no classes yet
    classes: tuple[ClassRow, ...]  # in the order of the classifier's
    means: Tensor  # of these classes, where distances are measured

    def check_can_answer(self) -> Classifier:
        if self.classifier is None or len(self.classes) < 2:
            raise Refused(409, "Teach at least two classes first: add pictures of each.")
        return self.classifier

    @property
    def can_refuse(self) -> bool:
        """Whether it can say "none of these"."""
        calibration = self.model.calibration
        return calibration is not None and bool(calibration.novelty) and len(self.classes) > 1

    @cached_property
    def map(self) -> Map | None:
        if len(self.classes) < 2:
            return None
        means = self.means.double()
        chosen = means[:: -(-len(means) // MOST_MAPPED)]
        centre = chosen.mean(0)
        centred = chosen - centre
        values, vectors = torch.linalg.eigh(centred @ centred.T)  # ascending
        axes = centred.T @ vectors[:, -2:].flip(1)
        axes = axes / axes.norm(dim=0).clamp_min(1e-12)
        coordinates = (means - centre) @ axes
        largest = coordinates.abs().argmax(0)
        signs = coordinates[largest, torch.arange(axes.shape[1])].sign()
        axes, coordinates = axes * signs, coordinates * signs  # no mirror images of each other
        scale = float(coordinates.abs().max().clamp_min(1e-12))
        explained = float(values[-2:].sum() / values.clamp_min(0).sum().clamp_min(1e-12))
        ids = [each.id for each in self.classes]
        rounded = [(round(x, 4), round(y, 4)) for x, y in (coordinates / scale).tolist()]
        positions = dict(zip(ids, rounded, strict=True))
        return Map(centre.float(), axes.float(), scale, min(1.0, explained), positions)


class Examples:
    """Features of the taught pictures of a class. Heads that need means alone keep no others."""

    def __init__(self, mean_is_enough: bool) -> None:
        self.mean_is_enough, self.n = mean_is_enough, 0
        self.sum: np.ndarray | float = 0.0
        self.all: list[np.ndarray] = []

    def add(self, features: np.ndarray) -> None:
        self.n += 1
        self.sum = self.sum + features.astype(np.float64)
        if not self.mean_is_enough:
            self.all.append(features)

    @property
    def mean(self) -> Tensor:
        return torch.from_numpy(np.asarray(self.sum / self.n, np.float32))

    @property
    def features(self) -> Tensor:
        """n × d; n times the mean where that is enough, which takes no memory."""
        if self.mean_is_enough:
            return self.mean.expand(self.n, -1)
        return torch.from_numpy(np.stack(self.all))


class ActiveModel:
    def __init__(self, project: Project) -> None:
        self.project = project
        self._lock = threading.RLock()
        self._snapshot: Snapshot | None = None  # None: something has changed since
        self.load(project.versions.active)

    def load(self, version: int, model: Model | None = None) -> None:
        """Use a version; pictures taught since must have features under it."""
        if model is None:
            model = self.project.versions.load(version)
        line = self.project.versions.ancestry(version)
        trained = self.project.versions.trained_pictures(line)
        examples: dict[int, Examples] = {}
        for class_id, features in self._stored(version, trained):
            self._examples_of(examples, model, class_id).add(features)
        with self._lock:
            self.version, self.model, self.trained = version, model, trained
            self.on_device = model.to(default_device())
            self.examples = examples
            self._snapshot = None

    def _stored(
        self, version: int, trained: set[int], class_id: int | None = None
    ) -> Iterable[tuple[int, np.ndarray]]:
        rows = self.project.database.rows(
            "SELECT pictures.id, class, vector FROM features JOIN pictures ON id = picture "
            "WHERE version = ? AND (? IS NULL OR class = ?)",
            (version, class_id, class_id),
        )
        for row in rows:
            if row["id"] not in trained:
                yield row["class"], np.frombuffer(row["vector"], "<f4")

    def _examples_of(self, examples: dict[int, Examples], model: Model, class_id: int) -> Examples:
        if class_id not in examples:
            examples[class_id] = Examples(model.head.anchors_are_means)
        return examples[class_id]

    def add(self, version: int, class_id: int, features: Sequence[np.ndarray]) -> None:
        """Use features of pictures that have just been stored."""
        with self._lock:
            if version != self.version:  # exchanged meanwhile
                self.reload_class(class_id)
                return
            for each in features:
                self._examples_of(self.examples, self.model, class_id).add(each)
            self._snapshot = None

    def reload_class(self, class_id: int) -> None:
        """Read the features of a class again, after some were deleted."""
        with self._lock:
            self.examples.pop(class_id, None)
            for _, features in self._stored(self.version, self.trained, class_id):
                self._examples_of(self.examples, self.model, class_id).add(features)
            self._snapshot = None

    def changed(self) -> None:
        """Names or classes have changed."""
        with self._lock:
            self._snapshot = None

    def snapshot(self) -> Snapshot:
        snapshot = self._snapshot
        if snapshot is None:
            with self._lock:
                snapshot = self._snapshot = self._snapshot or self._build()
        return snapshot

    def _build(self) -> Snapshot:
        model, rows = self.model, {each.key: each for each in self.project.classes.all()}
        known = [key for key in model.classes if key in rows]
        by_id = {each.id: key for key, each in rows.items()}
        examples = {by_id[i]: each for i, each in self.examples.items() if i in by_id and each.n}
        classifier, means = None, torch.empty(0, model.config.n_features)
        classes: tuple[ClassRow, ...] = ()
        if known or examples:
            features = {key: each.features for key, each in examples.items()}
            classifier = model.classifier_from_features(features, known)
            classes = tuple(rows[key] for key in classifier.classes)
            means = self._means(classifier.classes, known, examples)
        return Snapshot(self.version, model, self.on_device, classifier, classes, means)

    @torch.no_grad()
    def _means(
        self, order: Sequence[str], known: Sequence[str], examples: Mapping[str, Examples]
    ) -> Tensor:
        stored = self.model.class_means_of(known) if known else None
        mean_of = {} if stored is None else dict(zip(known, stored, strict=True))
        means = []
        for key in order:
            mean, each = mean_of.get(key), examples.get(key)
            if each is None:
                assert mean is not None
            elif mean is None:
                mean = each.mean
            else:
                total = each.n * each.mean + VIRTUAL_SAMPLES * mean
                mean = total / (each.n + VIRTUAL_SAMPLES)
            means.append(mean)
        return self.model.head.distance_features(torch.stack(means))
