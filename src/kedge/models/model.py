"""The model: backbone, head, one anchor for each class learned so far, and its lineage."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor, nn

from kedge.data.decode import ImageSpec
from kedge.data.lazy_images import LazyImages
from kedge.data.open import open_images
from kedge.data.pools import Pool
from kedge.data.table import ImageTable
from kedge.errors import KedgeError, require
from kedge.models import model_file
from kedge.models.classifier import Classifier, build_classifier
from kedge.models.embedding import Embedding
from kedge.models.heads import Head, build_head
from kedge.models.model_config import LineageEntry, ModelConfig
from kedge.utils.atomic_io import tensors_digest
from kedge.utils.progress import Tick, no_tick, task

EMBED_BATCH = 500  # images at a time when nothing trains
EMBED_SIDE = {"cpu": 28, "cuda": 84}  # px; of larger images fewer, so that they fit into caches


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

    @property
    def device(self) -> torch.device:
        return self.anchors.device

    @property
    def image_spec(self) -> ImageSpec:
        """Size and channels of the images that this model takes, and how they are made so."""
        config = self.config
        return ImageSpec(config.image_size, config.n_channels, config.resize, config.inverted)

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
        )

    def embed(
        self, images: UInt8[Tensor, "n c h w"] | LazyImages, tick: Tick = no_tick
    ) -> Float[Tensor, "n d"]:
        """Features in eval mode, without augmentation."""
        require(
            isinstance(images, Tensor | LazyImages) and images.dtype == torch.uint8,
            "Images to embed must be a tensor of uint8, as kedge.open_images(…).images has them.",
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

        `class_embeddings` are what the head has learned for these classes, if it learns them.
        """
        with torch.no_grad():
            anchors = self.head.anchors(self.class_features(pool), class_embeddings)
        kept = [i for i, name in enumerate(self.classes) if name not in set(pool.classes)]
        return replace(
            self,
            classes=(*(self.classes[i] for i in kept), *pool.classes),
            anchors=torch.cat([self.anchors[kept], anchors]) if kept else anchors,
            class_means=None,  # recomputed when the round has ended
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
        parts = (("embedding", self.embedding), ("head", self.head))
        return {f"{p}.{k}": v for p, module in parts for k, v in module.named_parameters()}

    def state_dict(self) -> dict[str, Tensor]:
        """Parameters and running statistics of embedding and head by name, not copied."""
        parts = (("embedding", self.embedding), ("head", self.head))
        return {f"{p}.{k}": v for p, module in parts for k, v in module.state_dict().items()}

    def tensors(self) -> dict[str, Tensor]:
        """All tensors of its file, by their names there."""
        means = {} if self.class_means is None else {"places": self.class_means}
        # Cloned, since safetensors refuses a weight that a custom backbone uses twice.
        weights = {name: tensor.clone() for name, tensor in self.state_dict().items()}
        return {**weights, "anchors": self.anchors, **means}

    @property
    def fingerprint(self) -> str:
        """A checksum of all weights, anchors and class means."""
        return tensors_digest(self.tensors())

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
        return build_classifier(self, support, known)

    def open(self, source: Any) -> ImageTable:
        """Images from any source, brought to the size that this model takes."""
        table = open_images(source, spec=self.image_spec)
        self.check_images(table)
        return table

    def check_images(self, table: ImageTable) -> None:
        """Raise if the images do not have the shape that this model takes."""
        self._check_shape(f"{table.source}: images", table.images.shape)

    def _check_shape(self, what: str, shape: Sequence[int]) -> None:
        expected = (self.config.n_channels, self.config.image_size, self.config.image_size)
        if tuple(shape[1:]) != expected:
            raise KedgeError(
                f"{what} are {'×'.join(map(str, shape[1:]))} (channels, height, width), but this "
                f"model takes {'×'.join(map(str, expected))}."
            )

    def save(self, path: str | Path) -> None:
        """Write a model file, atomically. An existing file is replaced, unlike by the commands."""
        model_file.save(Path(path), self.config, self.classes, self.lineage, self.tensors())

    @classmethod
    def load(cls, path: str | Path, backbone: nn.Module | None = None) -> Model:
        """Read a model file. A backbone of your own has to be passed in again."""
        return cls(*model_file.load(Path(path), backbone))


def trainable_copy(model: Model) -> Model:
    """A model with copies of embedding and head, all of whose weights require gradients."""
    return replace(
        model,
        embedding=copy.deepcopy(model.embedding).requires_grad_(True),
        head=copy.deepcopy(model.head).requires_grad_(True),
    )


def new_model(
    config: ModelConfig, pool: Pool, seed: int, backbone: nn.Module | None = None
) -> Model:
    """A model without classes. Its weights depend on the seed only, its normalization on the pool.

    A backbone of the caller's own is copied.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        embedding = Embedding(config, copy.deepcopy(backbone))
        embedding.set_statistics(pool)
        config = replace(config, n_features=embedding.count_features(config))
        head = build_head(config.head, config.n_features)
    return Model(config, embedding, head, (), torch.empty(0, 0), ())
