"""The model: backbone, head, one anchor for each class behind it, and where it came from.

It is one safetensors file, written atomically. It holds no image, and loading it runs no code.

    embedding.*   float32   the backbone's weights, and the mean and std of the training images
    head.*                  the head's own parameters, if it has any
    anchors       C × r     one row per class that was ever learned, in the order of `classes`
    metadata["kedge"]       JSON: format, config, classes, lineage, sha256 of the tensors
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor, nn

from kedge.backbones import build_backbone
from kedge.config import BackboneConfig, HeadConfig, from_dict, require, to_dict
from kedge.durable import digest, load_tensors, save_tensors, under
from kedge.errors import KedgeError
from kedge.heads import Head, build_head
from kedge.images.augment import plain
from kedge.images.pictures import Fit, Look
from kedge.images.rows import FileRows
from kedge.images.sources import open_images
from kedge.images.table import ImageTable
from kedge.pools import Pool
from kedge.progress import Tick, silent, task

MODEL_FORMAT = "kedge-model-1"
CUSTOM = "custom"  # the name of a backbone that the caller has handed in
EMBED_BATCH = 500  # images at a time when nothing trains


@dataclass(frozen=True)
class ModelConfig:
    """What is needed to rebuild the network before its weights are loaded."""

    backbone: BackboneConfig
    head: HeadConfig
    n_channels: int
    image_size: int
    n_features: int = 0  # found out when the network is first built
    fit: Fit = "crop"  # how pictures were made square, and
    inverted: bool = False  # whether dark and bright were exchanged: as in training, so later

    def __post_init__(self) -> None:
        require(self.n_channels in (1, 3), f"Images have {self.n_channels} channels, not 1 or 3.")
        require(
            16 <= self.image_size <= 4096,
            f"Images of {self.image_size} px: they must have 16 to 4096.",
        )
        require(
            self.fit in get_args(Fit) and isinstance(self.inverted, bool),
            f"Images that are made square by '{self.fit}', inverted '{self.inverted}'.",
        )


@dataclass(frozen=True)
class LineageEntry:
    """One round of a model's life."""

    round: int
    method: str
    classes: tuple[str, ...]
    images: int
    source: str
    config: dict[str, Any]
    best_epoch: int
    val_accuracy: float


def half_precision(device: torch.device) -> bool:
    """Convolutions in bf16 where a GPU has it; distances and losses are in fp32 everywhere."""
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


class Embedding(nn.Module):
    """Pixels in 0…1 to features: normalised by the data the model was first trained on."""

    mean: Tensor
    std: Tensor

    def __init__(self, backbone: nn.Module, n_channels: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.register_buffer("mean", torch.zeros(n_channels, 1, 1))
        self.register_buffer("std", torch.ones(n_channels, 1, 1))

    def forward(self, pixels: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d"]:
        # Distances and losses are computed in fp32, whatever the backbone computes in.
        return self.backbone((pixels - self.mean) / self.std).float()


@dataclass(frozen=True, eq=False)
class Model:
    """Immutable by convention: a round makes a new model and leaves its teacher as it was."""

    config: ModelConfig
    embedding: Embedding
    head: Head
    classes: tuple[str, ...]  # of the anchors
    anchors: Float[Tensor, "classes r"]
    lineage: tuple[LineageEntry, ...]

    @property
    def device(self) -> torch.device:
        return self.anchors.device

    def to(self, device: torch.device | str) -> Model:
        """This model there; a copy, so that nobody else's model moves away."""
        wanted = torch.device(device)
        if wanted.type == self.device.type and wanted.index in (None, self.device.index):
            return self
        return replace(
            self,
            embedding=copy.deepcopy(self.embedding).to(device),
            head=copy.deepcopy(self.head).to(device),
            anchors=self.anchors.to(device),
        )

    @torch.no_grad()
    def embed(
        self, images: UInt8[Tensor, "n c h w"] | FileRows, tick: Tick = silent
    ) -> Float[Tensor, "n d"]:
        """Features as everything but training sees them: eval mode, no augmentation."""
        training = self.embedding.training
        self.embedding.eval()
        parts = []
        for batch in images.split(EMBED_BATCH):
            with torch.autocast(self.device.type, torch.bfloat16, half_precision(self.device)):
                parts.append(self.embedding(plain(batch.to(self.device))))
            tick(len(batch))
        self.embedding.train(training)
        return torch.cat(parts)

    def embed_rows(
        self, table: ImageTable, rows: Int64[Tensor, " n"], tick: Tick = silent
    ) -> Float[Tensor, "n d"]:
        """Rows of a table that may be far larger than the memory."""
        batches = rows.split(EMBED_BATCH)
        return torch.cat([self.embed(table.take(batch), tick) for batch in batches])

    def class_features(self, pool: Pool) -> tuple[Float[Tensor, "_ d"], ...]:
        """The features of all images of each class of a pool."""
        with task("looking at every class: images", len(pool)) as tick:
            return self.embed_rows(pool.table, pool.rows, tick).split(pool.counts.tolist())

    def with_anchors_of(self, pool: Pool, rows: Float[Tensor, "classes r"] | None = None) -> Model:
        """One anchor for each class of the pool; a class that comes back gets a fresh one.

        `rows` are what the head has learned of these classes, if it learns such.
        """
        with torch.no_grad():
            fresh = self.head.anchors(self.class_features(pool), rows)
        kept = [i for i, name in enumerate(self.classes) if name not in set(pool.classes)]
        return replace(
            self,
            classes=(*(self.classes[i] for i in kept), *pool.classes),
            anchors=torch.cat([self.anchors[kept], fresh]) if kept else fresh,
        )

    def anchors_of(self, classes: Sequence[str]) -> Float[Tensor, "k r"]:
        place = {name: i for i, name in enumerate(self.classes)}
        return self.anchors[[place[name] for name in classes]]

    def weights(self) -> dict[str, Tensor]:
        """Every parameter of backbone and head, itself and no copy, by name."""
        parts = (("embedding", self.embedding), ("head", self.head))
        return {f"{p}.{k}": v for p, module in parts for k, v in module.named_parameters()}

    def classifier(self, support: Any) -> Classifier:
        """Learn any classes from any number of examples: a folder of class folders, a table,
        images by class name, or whatever else `open_images` takes."""
        table = self.open(support)
        empty = [
            name for name, n in zip(table.classes, table.counts.tolist(), strict=True) if n == 0
        ]
        if isinstance(support, Mapping):  # what has no image is not among the classes
            empty += [str(name) for name, images in support.items() if len(images) == 0]
        if empty:
            raise KedgeError(f"{table.source}: class '{empty[0]}' has no example.")
        features = self.embed(table.images).split(table.counts.tolist())
        padded = nn.utils.rnn.pad_sequence(list(features), batch_first=True)
        longest = torch.arange(padded.shape[1], device=self.device)
        present = longest < table.counts.to(self.device)[:, None]
        with torch.no_grad():
            return Classifier(self, table.classes, self.head.fit(padded, present))

    def open(self, source: Any) -> ImageTable:
        """Images from wherever they are, brought to the size that this model takes."""
        table = open_images(source, look=self.look)
        self.check_images(table)
        return table

    @property
    def look(self) -> Look:
        """What every picture is brought to, as those were that it was trained on."""
        config = self.config
        return Look(config.image_size, config.n_channels, config.fit, config.inverted)

    def check_images(self, table: ImageTable) -> None:
        want = (self.config.n_channels, self.config.image_size, self.config.image_size)
        if tuple(table.images.shape[1:]) != want:
            have = "×".join(map(str, table.images.shape[1:]))
            raise KedgeError(
                f"{table.source}: images are {have} (channels, height, width), but this model "
                f"takes {'×'.join(map(str, want))}."
            )

    def save(self, path: str | Path) -> None:
        about = {
            "format": MODEL_FORMAT,
            "config": to_dict(self.config),
            "classes": self.classes,
            "lineage": [asdict(entry) for entry in self.lineage],
        }
        tensors = self._tensors()
        save_tensors(Path(path), tensors, {**about, "sha256": _checksum(about, tensors)})

    @property
    def fingerprint(self) -> str:
        """Of every weight and anchor."""
        return digest(self._tensors())

    def _tensors(self) -> dict[str, Tensor]:
        return {
            # Clones, since a backbone of one's own may use a weight twice.
            **{f"embedding.{k}": v.clone() for k, v in self.embedding.state_dict().items()},
            **{f"head.{k}": v.clone() for k, v in self.head.state_dict().items()},
            "anchors": self.anchors,
        }

    @classmethod
    def load(cls, path: str | Path, backbone: nn.Module | None = None) -> Model:
        """Read a model file. A backbone of your own has to be handed in again."""
        about, mapped = load_tensors(Path(path), "kedge model")
        if about.get("format") != MODEL_FORMAT:
            raise KedgeError(f"{path}: not a kedge model; 'kedge train' makes one.")
        if about.pop("sha256", None) != _checksum(about, mapped):
            raise KedgeError(f"{path}: the checksum does not match; the file is damaged.")
        tensors = {key: value.clone() for key, value in mapped.items()}
        try:
            return _rebuild(about, tensors, backbone)
        except (KedgeError, KeyError, TypeError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error.args[0] if error.args else error).split()).rstrip(".")
            raise KedgeError(f"{path}: this model cannot be rebuilt ({reason}).") from None


def new_model(
    config: ModelConfig, pool: Pool, seed: int, backbone: nn.Module | None = None
) -> Model:
    """With fresh weights that depend on the seed alone, normalised by the pool's images."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = backbone or build_backbone(config.backbone, config.n_channels, config.image_size)
        embedding = Embedding(network, config.n_channels)
        embedding.mean, embedding.std = _mean_and_std(pool)
        config = replace(config, n_features=_n_features(embedding, config))
        head = build_head(config.head, config.n_features)
    return Model(config, embedding, head, (), torch.empty(0, 0), ())


@dataclass(frozen=True, eq=False)
class Classifier:
    """Names images as one of a few classes, each learned from a handful of examples."""

    model: Model
    classes: tuple[str, ...]
    representatives: Float[Tensor, "k r"]

    @torch.no_grad()
    def probabilities(self, images: Tensor | np.ndarray | FileRows) -> Float[Tensor, "n k"]:
        """Of each class for each image; uint8, N×C×H×W, N×H×W×C or N×H×W."""
        # One is enough of a file, whose images have one size.
        some = images[:1] if isinstance(images, FileRows) else images
        table = ImageTable.build(some, [0] * len(some), ["?"], "images")
        self.model.check_images(table)
        with task("classifying images", len(images)) as tick:
            pixels = images if isinstance(images, FileRows) else table.images
            features = self.model.embed(pixels, tick)
        return self.model.head.logits(features, self.representatives).softmax(-1)

    def predict(self, images: Tensor | np.ndarray | FileRows) -> list[str]:
        """The name of the likeliest class of each image."""
        return [self.classes[i] for i in self.probabilities(images).argmax(1).tolist()]


def _rebuild(
    about: dict[str, Any], tensors: dict[str, Tensor], backbone: nn.Module | None
) -> Model:
    config = from_dict(ModelConfig, about["config"])
    if config.backbone.backbone == CUSTOM and backbone is None:
        raise KeyError("it has a backbone of your own; hand it to Model.load(path, backbone=…)")
    # On the meta device nothing is allocated, so a forged size costs an error and no memory.
    with torch.device("meta"):
        network = backbone or build_backbone(config.backbone, config.n_channels, config.image_size)
        embedding = Embedding(network, config.n_channels)
        head = build_head(config.head, config.n_features)
    embedding.load_state_dict(under("embedding.", tensors), assign=True)
    head.load_state_dict(under("head.", tensors), assign=True)
    lineage = tuple(from_dict(LineageEntry, entry) for entry in about["lineage"])
    classes = tuple(about["classes"])
    if len(classes) != len(tensors["anchors"]):
        raise KeyError("classes and anchors differ in number")
    embedding.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    embedding.eval().requires_grad_(False)
    head.eval().requires_grad_(False)
    return Model(config, embedding, head, classes, tensors["anchors"], lineage)


def _checksum(about: dict[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Of every byte that counts: a flipped bit in a class name is damage too."""
    text = json.dumps(about, ensure_ascii=False, sort_keys=True)
    return hashlib.sha256((digest(tensors) + text).encode()).hexdigest()


def _mean_and_std(pool: Pool, most: int = 2000) -> tuple[Tensor, Tensor]:
    """Per channel, over an even selection of the images, in 0…1."""
    step = -(-len(pool) // most)
    pixels = pool.table.take(pool.rows[::step]).float() / 255
    mean, std = pixels.mean((0, 2, 3)), pixels.std((0, 2, 3)).clamp(min=1e-3)
    return mean[:, None, None], std[:, None, None]


@torch.no_grad()
def _n_features(embedding: Embedding, config: ModelConfig) -> int:
    example = torch.zeros(1, config.n_channels, config.image_size, config.image_size)
    features = embedding.eval()(example)
    embedding.train()
    if features.ndim != 2:
        raise KedgeError(f"The backbone gives {features.ndim} dimensions; it must give (b, d).")
    return int(features.shape[1])
