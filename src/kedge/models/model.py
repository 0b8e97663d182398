"""The model: backbone, head, one anchor for each class behind it, and where it came from."""

from __future__ import annotations

import copy
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor, nn

from kedge.config import (
    BackboneConfig,
    HeadConfig,
    require,
)
from kedge.data.augment import plain
from kedge.data.decode import ImageSpec, ResizeMode
from kedge.data.lazy_images import LazyImages
from kedge.data.open import open_images
from kedge.data.pools import Pool
from kedge.data.table import ImageTable
from kedge.errors import KedgeError
from kedge.models.backbones import build_backbone
from kedge.models.heads import Head, build_head
from kedge.utils.atomic_io import digest
from kedge.utils.progress import (
    Tick,
    silent,
    task,
)

if TYPE_CHECKING:
    from kedge.models.classifier import Classifier

CUSTOM = "custom"  # the name of a backbone that the caller has handed in
EMBED_BATCH = 500  # images at a time when nothing trains
EMBED_SIDE = {"cpu": 28, "cuda": 84}  # px; larger images fewer at a time, most of all for a cache


@dataclass(frozen=True)
class ModelConfig:
    """What is needed to rebuild the network before its weights are loaded."""

    backbone: BackboneConfig
    head: HeadConfig
    n_channels: int
    image_size: int
    n_features: int = 0  # found out when the network is first built
    fit: ResizeMode = "crop"  # how pictures were made square, and
    inverted: bool = False  # whether dark and bright were exchanged: as in training, so later

    def __post_init__(self) -> None:
        require(self.n_channels in (1, 3), f"Images have {self.n_channels} channels, not 1 or 3.")
        require(
            16 <= self.image_size <= 4096,
            f"Images of {self.image_size} px: they must have 16 to 4096.",
        )
        require(
            self.fit in get_args(ResizeMode) and isinstance(self.inverted, bool),
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


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """Every part is afterwards in the mode that it was in."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


@dataclass(frozen=True, eq=False)
class Model:
    """Immutable by convention: a round makes a new model and leaves its teacher as it was."""

    config: ModelConfig
    embedding: Embedding
    head: Head
    classes: tuple[str, ...]  # of the anchors
    anchors: Float[Tensor, "classes r"]
    lineage: tuple[LineageEntry, ...]
    places: Float[Tensor, "classes d"] | None = (
        None  # see kedge.models.drift_compensation; None: as the anchors
    )

    @property
    def device(self) -> torch.device:
        return self.anchors.device

    @property
    def embed_batch(self) -> int:
        """How many images of its size are embedded at a time."""
        whole = (EMBED_SIDE.get(self.device.type, 84) / self.config.image_size) ** 2
        return max(1, int(EMBED_BATCH * min(1, whole)))

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
            places=None if self.places is None else self.places.to(device),
        )

    def embed(
        self, images: UInt8[Tensor, "n c h w"] | LazyImages, tick: Tick = silent
    ) -> Float[Tensor, "n d"]:
        """Features as everything but training sees them: eval mode, no augmentation."""
        require(
            isinstance(images, Tensor | LazyImages) and images.dtype == torch.uint8,
            "Images to embed must be a tensor of uint8, as kedge.open_images(…).images has them.",
        )
        self._check_shape("Images to embed", images.shape)
        return self._embedded(len(images), images.split(self.embed_batch), tick)

    def embed_rows(
        self, table: ImageTable, rows: Int64[Tensor, " n"], tick: Tick = silent
    ) -> Float[Tensor, "n d"]:
        """Rows of a table that may be far larger than the memory."""
        batches = map(table.take, rows.split(self.embed_batch))
        return self._embedded(len(rows), batches, tick)

    @torch.no_grad()
    def _embedded(
        self, n: int, batches: Iterable[UInt8[Tensor, "_ c h w"]], tick: Tick
    ) -> Float[Tensor, "n d"]:
        features, done = torch.empty(0), 0
        with eval_mode(self.embedding):
            for batch in batches:
                pixels = plain(batch.to(self.device))
                with torch.autocast(self.device.type, torch.bfloat16, half_precision(self.device)):
                    some = self.embedding(pixels)
                if done == 0:
                    # At once: kept piece by piece, they would lie between the room that each batch
                    # takes and gives back, and none of that could be used again.
                    features = some.new_empty((n, some.shape[1]))
                features[done : done + len(some)] = some
                done += len(some)
                tick(len(some))
        return features

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
            places=None,  # a round that has ended says where classes are now
        )

    def anchors_of(self, classes: Sequence[str]) -> Float[Tensor, "k r"]:
        place = {name: i for i, name in enumerate(self.classes)}
        return self.anchors[[place[name] for name in classes]]

    def places_of(self, classes: Sequence[str]) -> Float[Tensor, "k d"] | None:
        """Where the means of these classes are by now; None if the model cannot tell."""
        where = self.places
        if where is None and self.head.anchors_are_means:
            where = self.anchors
        return None if where is None else replace(self, anchors=where).anchors_of(classes)

    def weights(self) -> dict[str, Tensor]:
        """Every parameter of backbone and head, itself and no copy, by name."""
        parts = (("embedding", self.embedding), ("head", self.head))
        return {f"{p}.{k}": v for p, module in parts for k, v in module.named_parameters()}

    def classifier(
        self, support: Any = None, *, known: bool | Sequence[str] | None = None
    ) -> Classifier:
        """Names images as one of some classes: those of `support`, each learned from any number of
        examples, and those that the model knows, without any.

        `support` is a folder of class folders, a table, images by class name, or whatever else
        `open_images` takes. `known` says whether, or which of, the known classes are meant; by
        default all, if there is no support. A class that is in both is learned from its examples
        and from what is remembered of it, which counts as ten more.
        """
        from kedge.models.classifier import build_classifier

        return build_classifier(self, support, known)

    def open(self, source: Any) -> ImageTable:
        """Images from wherever they are, brought to the size that this model takes."""
        table = open_images(source, look=self.look)
        self.check_images(table)
        return table

    @property
    def look(self) -> ImageSpec:
        """What every picture is brought to, as those were that it was trained on."""
        config = self.config
        return ImageSpec(config.image_size, config.n_channels, config.fit, config.inverted)

    def check_images(self, table: ImageTable) -> None:
        self._check_shape(f"{table.source}: images", table.images.shape)

    def _check_shape(self, what: str, shape: Sequence[int]) -> None:
        want = (self.config.n_channels, self.config.image_size, self.config.image_size)
        if tuple(shape[1:]) != want:
            have = "×".join(map(str, shape[1:]))
            raise KedgeError(
                f"{what} are {have} (channels, height, width), but this model takes "
                f"{'×'.join(map(str, want))}."
            )

    def save(self, path: str | Path) -> None:
        """Write a model file. Unlike the commands it takes the place of what lies there, but only
        once it is complete."""
        from kedge.models import model_file

        model_file.save(self, Path(path))

    @property
    def fingerprint(self) -> str:
        """Of every weight and anchor."""
        return digest(self.tensors())

    def tensors(self) -> dict[str, Tensor]:
        """All that a file of it holds."""
        return {
            # Clones, since a backbone of one's own may use a weight twice.
            **{name: tensor.clone() for name, tensor in state_of(self).items()},
            "anchors": self.anchors,
            **({} if self.places is None else {"places": self.places}),
        }

    @classmethod
    def load(cls, path: str | Path, backbone: nn.Module | None = None) -> Model:
        """Read a model file. A backbone of your own has to be handed in again."""
        from kedge.models import model_file

        return model_file.load(Path(path), backbone)


def state_of(model: Model) -> dict[str, Tensor]:
    """Weights and running statistics of backbone and head, themselves and no copies, by name."""
    parts = (("embedding", model.embedding), ("head", model.head))
    return {f"{p}.{k}": v for p, module in parts for k, v in module.state_dict().items()}


def trainable_copy(model: Model) -> Model:
    """Backbone and head again, all of whose weights may learn; the model stays as it is."""
    return replace(
        model,
        embedding=copy.deepcopy(model.embedding).requires_grad_(True),
        head=copy.deepcopy(model.head).requires_grad_(True),
    )


def new_model(
    config: ModelConfig, pool: Pool, seed: int, backbone: nn.Module | None = None
) -> Model:
    """With fresh weights that depend on the seed alone, normalised by the pool's images."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        own = copy.deepcopy(backbone)  # what is handed in stays as it is
        network = own or build_backbone(config.backbone, config.n_channels, config.image_size)
        embedding = Embedding(network, config.n_channels)
        embedding.mean, embedding.std = _mean_and_std(pool)
        config = replace(config, n_features=_n_features(embedding, config))
        head = build_head(config.head, config.n_features)
    return Model(config, embedding, head, (), torch.empty(0, 0), ())


def _mean_and_std(pool: Pool, most: int = 2000) -> tuple[Tensor, Tensor]:
    """Per channel, over an even selection of the images, in 0…1."""
    step = -(-len(pool) // most)
    pixels = pool.table.take(pool.rows[::step]).float() / 255
    mean, std = pixels.mean((0, 2, 3)), pixels.std((0, 2, 3)).clamp(min=1e-3)
    return mean[:, None, None], std[:, None, None]


@torch.no_grad()
def _n_features(embedding: Embedding, config: ModelConfig) -> int:
    example = torch.zeros(1, config.n_channels, config.image_size, config.image_size)
    try:
        features = embedding.eval().backbone(example)
    except Exception as error:  # one of the caller's own may raise anything
        reason = textwrap.shorten(str(error) or type(error).__name__, 300).rstrip(".")
        raise KedgeError(
            f"The backbone cannot take images of {config.n_channels} channels and "
            f"{config.image_size} px ({reason})."
        ) from None
    embedding.train()
    if not isinstance(features, Tensor):
        kind = type(features).__name__
        raise KedgeError(f"The backbone gives a {kind}; it must give a tensor of shape (b, d).")
    if features.ndim != 2:
        raise KedgeError(f"The backbone gives {features.ndim} dimensions; it must give (b, d).")
    return int(features.shape[1])
