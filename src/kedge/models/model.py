"""The model: backbone, head, one anchor for each class learned so far, and its lineage."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from kedge.config import Privacy
from kedge.data.augment import ImagesOrMaps
from kedge.data.decode import ImageSpec
from kedge.data.delivery import Delivery
from kedge.data.open import open_images
from kedge.data.packed_file import LazyImages
from kedge.data.pools import Pool
from kedge.data.table import ImageTable
from kedge.errors import KedgeError, require
from kedge.models import model_file
from kedge.models.calibration import Calibration, calibration_after
from kedge.models.classifier import Classifier, DistanceMeans
from kedge.models.embedding import Embedding, ModelConfig, Statistics, channel_statistics
from kedge.models.heads import Head, build_head
from kedge.models.model_file import LineageEntry
from kedge.models.model_text import model_text
from kedge.utils import progress
from kedge.utils.atomic_io import save_tensors, tensors_digest
from kedge.utils.progress import Tick, no_tick, task

EMBED_BATCH = 500  # images at a time when nothing trains
# Side of images in pixels; of larger ones fewer, so that they fit into caches or a GPU's memory.
EMBED_SIDE = {"cpu": 28, "cuda": 160}
VIRTUAL_SAMPLES = 10  # images, as which a stored class mean counts beside new examples


@dataclass(frozen=True, eq=False)
class Model:
    """Immutable by convention: a round makes a new model and leaves its teacher unchanged."""

    config: ModelConfig
    embedding: Embedding
    head: Head
    classes: tuple[str, ...]  # in the order of the anchors
    anchors: Float[Tensor, "classes r"]
    lineage: tuple[LineageEntry, ...]
    # Current mean features (kedge.models.drift_compensation). None: the anchors are the means, or
    # the model's file is of an early version.
    class_means: Float[Tensor, "classes d"] | None = None
    calibration: Calibration | None = None  # None: a file of an early version
    privacy: Privacy | None = None  # None: not private
    # Directions in which images differ from their class means (kedge.models.spread), in the space
    # where distances are measured.
    spread: Float[Tensor, "q _"] | None = None  # None: private, or a file of an early version

    def __repr__(self) -> str:
        return model_text(self.config, self.classes, self.lineage)

    @property
    def device(self) -> torch.device:
        return self.anchors.device

    @property
    def image_spec(self) -> ImageSpec:
        """Size and channels of the images that this model takes, and how they are made so."""
        config = self.config
        shape, resize = (config.image_size, config.n_channels), config.resize
        return ImageSpec(*shape, resize, config.inverted, config.interpolation)

    @property
    def embed_batch_size(self) -> int:
        """How many images are embedded at a time."""
        area = (EMBED_SIDE.get(self.device.type, 84) / self.config.image_size) ** 2
        return max(1, int(EMBED_BATCH * min(1, area)))

    def to(self, device: torch.device | str) -> Model:
        """This model if it is on the device already, else a copy there."""
        wanted = torch.device(device)
        if wanted.type == self.device.type and wanted.index in (None, self.device.index):
            return self
        return replace(
            self,
            embedding=copy.deepcopy(self.embedding).to(device),
            head=copy.deepcopy(self.head).to(device),
            anchors=self.anchors.to(device),
            class_means=None if self.class_means is None else self.class_means.to(device),
            spread=None if self.spread is None else self.spread.to(device),
        )

    def embed(
        self, images: ImagesOrMaps | LazyImages, tick: Tick = no_tick
    ) -> Float[Tensor, "n d"]:
        """Features in eval mode, without augmentation."""
        if not self.embedding.takes_maps:
            require(
                isinstance(images, Tensor | LazyImages) and images.dtype == torch.uint8,
                "Images to embed must be a tensor of uint8, as kedge.open_images(…).images has "
                "them.",
            )
            self._check_shape("Images to embed", images.shape)
        batches = images.split(self.embed_batch_size)
        return self.embedding.embed_batches(len(images), batches, tick)

    def embed_rows(
        self, table: ImageTable, rows: Int64[Tensor, " n"], tick: Tick = no_tick
    ) -> Float[Tensor, "n d"]:
        """Features of some rows of a table, which may be larger than the memory."""
        batches = map(table.take, rows.split(self.embed_batch_size))
        return self.embedding.embed_batches(len(rows), batches, tick)

    def class_features(self, pool: Pool) -> tuple[Float[Tensor, "_ d"], ...]:
        """The features of all images of a pool, class by class."""
        with task("embedding every class: images", len(pool)) as tick:
            return self.embed_rows(pool.table, pool.rows, tick).split(pool.counts.tolist())

    def with_anchors_of(
        self, pool: Pool, class_embeddings: Float[Tensor, "classes r"] | None = None
    ) -> Model:
        """A model with an anchor for each class of the pool; those of known classes are replaced.
        `class_embeddings` are what the head has learned for these classes, if it learns them."""
        features = self.class_features(pool)
        with torch.no_grad():
            anchors = self.head.anchors(features, class_embeddings)
            calibration = calibration_after(self.calibration, self.head, pool.classes, features)
        replaced = set(pool.classes)
        kept = [i for i, name in enumerate(self.classes) if name not in replaced]
        return replace(
            self,
            classes=(*(self.classes[i] for i in kept), *pool.classes),
            anchors=torch.cat([self.anchors[kept], anchors]) if kept else anchors,
            class_means=None,  # recomputed when the round has ended
            calibration=calibration,
        )

    def anchors_of(self, classes: Sequence[str]) -> Float[Tensor, "k r"]:
        return self.anchors[self._indices(classes)]

    def class_means_of(self, classes: Sequence[str]) -> Float[Tensor, "k d"] | None:
        """Current mean features of these classes; None if a file of an early version lacks them."""
        means = self.class_means
        if means is None and self.head.anchors_are_means:
            means = self.anchors
        return None if means is None else means[self._indices(classes)]

    def _indices(self, classes: Sequence[str]) -> list[int]:
        index = {name: i for i, name in enumerate(self.classes)}
        return [index[name] for name in classes]

    def weights(self) -> dict[str, Tensor]:
        """Every parameter of embedding and head by name, not copied."""
        return dict(self._network().named_parameters())

    def state_dict(self) -> dict[str, Tensor]:
        """Parameters and running statistics of embedding and head by name, not copied."""
        return self._network().state_dict()

    def _network(self) -> nn.ModuleDict:
        return nn.ModuleDict({"embedding": self.embedding, "head": self.head})

    def tensors(self) -> dict[str, Tensor]:
        """All tensors of its file, by their names there."""
        found = {"anchors": self.anchors, "places": self.class_means, "spread": self.spread}
        # Cloned, since safetensors refuses a weight that a custom backbone uses twice.
        weights = {name: tensor.clone() for name, tensor in self.state_dict().items()}
        return weights | {name: tensor for name, tensor in found.items() if tensor is not None}

    @property
    def fingerprint(self) -> str:
        """A checksum of all weights, anchors, class means and the spread."""
        return tensors_digest(self.tensors())

    def predict(self, images: Any, *, reject: float | None = None) -> list[Any]:
        """The most probable of the known classes for each image; see `Classifier.predict`."""
        classifier = self.classifier()
        return classifier.predict(images, **({} if reject is None else {"reject": reject}))

    def predict_proba(self, images: Any) -> Float[Tensor, "n k"]:
        """The probability of each known class for each image, in the order of `classes`."""
        return self.classifier().predict_proba(images)

    def score(self, images: Any, labels: Any) -> float:
        """The share of images, from 0 to 1, that get the right name among all known classes."""
        return self.classifier().score(images, labels)

    @progress.shown
    def classifier(
        self, support: Any = None, *, known: bool | Sequence[str] | None = None
    ) -> Classifier:
        """A classifier among the classes of `support`, known classes, or both.

        Args:
            support: examples, any number for each class: a folder of class folders, a table, images
                by class name, or anything else that `open_images` takes.
            known: whether to include the known classes, or which of them; by default all of them if
                there is no support. A known class that has examples too is learned from these and
                from its stored mean, which counts as 10 of them.
        """
        known = support is None if known is None else known
        require(not isinstance(known, str), f"known='{known}': give a list of class names.")
        names = self.classes if known is True else tuple(dict.fromkeys(known or ()))
        if unknown := set(names) - set(self.classes):
            raise KedgeError(f"The model does not know a class named '{min(unknown)}'.")
        examples: dict[str, Tensor] = {}
        if support is not None:
            table = self._open_support(support)
            features = self.embed(table.images).split(table.counts.tolist())
            examples = dict(zip(table.classes, features, strict=True))
        chosen = bool(names or examples)
        require(chosen, "The model knows no class, or none is chosen: give examples of some.")
        with torch.no_grad():
            if names:
                return self.classifier_from_features(examples, names)
            z = nn.utils.rnn.pad_sequence(list(examples.values()), batch_first=True)
            counts = torch.tensor([len(each) for each in examples.values()], device=z.device)
            mask = torch.arange(z.shape[1], device=z.device) < counts[:, None]
            representatives = self.head.fit(z, mask)
        means = self.head.anchors_are_means  # other heads fit the examples of all classes together
        sizes = [float(n) for n in counts.tolist()]
        offsets = self._offsets(sizes) if means else None
        distances = self._distance_means(list(examples.values()), sizes)
        return Classifier(self, tuple(examples), representatives, offsets, distances)

    def anchor_classifier(self) -> Classifier:
        """A classifier among all known classes by their anchors as they were stored, not by class
        means that were compensated for drift."""
        means = self.head.anchors_are_means
        offsets = self._offsets(self._known_counts(self.classes).values()) if means else None
        return Classifier(self, self.classes, self.anchors, offsets)

    def _known_counts(self, known: Sequence[str]) -> dict[str, float]:
        """How many images the means of these classes come from; infinite if that is not known."""
        counts = {} if self.calibration is None else self.calibration.counts
        return {name: float(counts.get(name, math.inf)) for name in known}

    def _offsets(self, counts: Iterable[float]) -> Float[Tensor, " k"] | None:
        """What is added to the logits of classes with these numbers of examples; None if they are
        all the same, since only differences matter, or if the model has no calibration."""
        each = torch.tensor(list(counts), device=self.device)
        if self.calibration is None or len(each.unique()) == 1:
            return None
        with torch.no_grad():
            return self.head.offsets(each, self.calibration.variance)

    @torch.no_grad()
    def classifier_from_features(
        self, examples: Mapping[str, Float[Tensor, "_ d"]], known: Sequence[str] = ()
    ) -> Classifier:
        """A classifier among known classes and classes of which there are features of examples. The
        stored mean of a known class is one more example of it."""
        means = self.class_means_of(known) if known else ()
        if means is None:
            require(
                not examples,
                "Known classes cannot be compared with examples, since this model's file is of an "
                "early version without class means: leave them out, or give examples of them.",
            )
            return Classifier(self, tuple(known), self.anchors_of(known))
        counts = self._known_counts(known)
        mean_of = dict(zip(known, means, strict=True))
        features = {name: mean_of[name][None] for name in known if name not in examples}
        if n_both := len(known) - len(features):
            progress.note(f"{n_both} known classes have examples, which are added to their means")
        for name, of_class in examples.items():
            features[name] = pool_with_mean(of_class, mean_of.get(name))
            counts[name] = float(len(features[name]))
        # Not `fit`, which is for episodes: there may be thousands of known classes.
        representatives = self.head.representatives_from(list(features.values()))
        sizes = [counts[name] for name in features]
        distances = self._distance_means(list(features.values()), sizes)
        return Classifier(self, tuple(features), representatives, self._offsets(sizes), distances)

    def _distance_means(
        self, features: Sequence[Float[Tensor, "_ d"]], counts: Sequence[float]
    ) -> DistanceMeans | None:
        """The class means that distances are measured to; None without a calibration."""
        if self.calibration is None:
            return None
        means = self.head.distance_features(torch.stack([each.mean(0) for each in features]))
        return DistanceMeans(means, torch.tensor(counts, device=means.device))

    def _open_support(self, support: Any) -> ImageTable:
        """The examples. Every class must have one: otherwise its images would get a wrong class."""
        table = self.open(support)
        counts = zip(table.classes, table.counts.tolist(), strict=True)
        empty = [*(name for name, n in counts if n == 0), *table.empty_classes]
        if empty:
            raise KedgeError(f"{table.source}: class '{empty[0]}' has no readable example.")
        return table

    @progress.shown
    def open(self, source: Any) -> ImageTable:
        """Images from any source, brought to the size that this model takes."""
        delivery = replace(Delivery.of(source), known_classes=self.classes)
        table = open_images(delivery, spec=self.image_spec)
        self._check_shape(f"{table.source}: images", table.images.shape)
        return table

    def _check_shape(self, what: str, shape: Sequence[int]) -> None:
        expected = (self.config.n_channels, self.config.image_size, self.config.image_size)
        require(
            tuple(shape[1:]) == expected,
            f"{what} are {'×'.join(map(str, shape[1:]))} (channels, height, width), but this "
            f"model takes {'×'.join(map(str, expected))}.",
        )

    def save(self, path: str | Path, *, replace: bool = True) -> None:
        """Write a model file, atomically. Without `replace` an existing one raises KedgeError."""
        about = model_file.describe(
            self.config, self.classes, self.lineage, self.calibration, self.privacy
        )
        save_tensors(Path(path), self.tensors(), about, replace)

    @classmethod
    def load(cls, path: str | Path, backbone: nn.Module | None = None) -> Model:
        """Read a model file or a hub's folder. A backbone of your own has to be passed in again."""
        return cls(*model_file.load(Path(path), backbone))


def pool_with_mean(
    features: Float[Tensor, "n d"], mean: Float[Tensor, " d"] | None
) -> Float[Tensor, "m d"]:
    """Features of a class, with its stored mean added as virtual samples if there is one."""
    return features if mean is None else torch.cat([features, mean.expand(VIRTUAL_SAMPLES, -1)])


def new_model(
    config: ModelConfig,
    pool: Pool,
    seed: int,
    backbone: nn.Module | None = None,
    statistics: Statistics | None = None,
) -> Model:
    """A model without classes. Its weights depend on the seed only, its normalization on the pool,
    unless they are given: a backbone, which is copied, and mean and std of each channel."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        embedding = Embedding(config, copy.deepcopy(backbone))
        embedding.set_statistics(statistics or channel_statistics(pool))
        config = replace(config, n_features=embedding.count_features(config))
        head = build_head(config.head, config.n_features)
    return Model(config, embedding, head, (), torch.empty(0, 0), ())
