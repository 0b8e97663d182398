"""The network from pixels to features (normalization and backbone) and its configuration."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from kedge.config import ADDED, BackboneConfig, HeadConfig, Side
from kedge.data.augment import ImagesOrMaps, to_float
from kedge.data.decode import Interpolation
from kedge.data.image_codec import ResizeMode
from kedge.data.pools import Pool
from kedge.errors import KedgeError, require
from kedge.models.backbones import build_backbone
from kedge.models.heads import head_kind
from kedge.utils.config_io import normalize
from kedge.utils.progress import Tick
from kedge.utils.ranges import Range

Statistics = tuple[Sequence[float], Sequence[float]]  # mean and std of each channel
MAX_FEATURES = 1 << 20
CUSTOM = "custom"  # the name of a backbone that is the caller's own module
SCRATCH = ("conv4", "resnet12", "resnet12-wide")  # networks that have a width


@dataclass(frozen=True)
class WeightsOrigin:
    """Where the weights came from that a model was started with."""

    architecture: str  # "efficientnet-lite0", "timm:vit_tiny_patch16_224", "my_net:build"
    version: str  # of the code that defines the architecture; empty for a user's own
    file: str  # its name, without the folder; empty if a user's module came with its weights
    sha256: str  # of the file, or of the module's weights; empty if these are random


@dataclass(frozen=True)
class ModelConfig:
    """What is needed to rebuild the network before its weights are loaded."""

    backbone: BackboneConfig
    head: HeadConfig
    n_channels: int
    image_size: Side
    n_features: Annotated[int, Range(0, MAX_FEATURES)] = 0  # known once the network has been built
    resize: ResizeMode = field(default="crop", metadata={"saved_as": "fit"})
    inverted: bool = False  # whether dark and bright are exchanged in the images
    interpolation: Interpolation = field(default="bicubic", metadata=ADDED)  # when resizing
    pretrained: WeightsOrigin | None = field(default=None, metadata=ADDED)
    # Modules and weights of a user's own backbone that never train (requires_grad=False).
    frozen: tuple[str, ...] = field(default=(), metadata=ADDED)

    @property
    def is_pretrained(self) -> bool:
        """Whether training started from weights that were not random."""
        return self.pretrained is not None and bool(self.pretrained.sha256)

    @property
    def network_name(self) -> str:
        """'conv4 of width 32', 'efficientnet-lite0', 'your own: resnet50'."""
        name = self.backbone.backbone
        if name == CUSTOM:
            origin = self.pretrained
            return "your own" if origin is None else f"your own: {origin.architecture}"
        return f"{name} of width {self.backbone.width}" if name in SCRATCH else name

    def __post_init__(self) -> None:
        require(self.n_channels in (1, 3), f"Images have {self.n_channels} channels, not 1 or 3.")
        normalize(self)
        known = self.resize in get_args(ResizeMode) and isinstance(self.inverted, bool)
        require(known, f"Images resized by '{self.resize}', inverted '{self.inverted}'.")
        known = self.interpolation in get_args(Interpolation)
        require(known, f"Images resized by '{self.interpolation}' interpolation.")


def half_precision(device: torch.device) -> bool:
    """Whether convolutions run in bf16: on every GPU that has it. All else is in fp32."""
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


class Embedding(nn.Module):
    """Normalizes pixels in 0…1 by fixed statistics (those of the first training images, or those
    that a pretrained network expects), then embeds them. Features have length 1 if the head asks
    for it."""

    takes_maps = False  # whether the inputs are outputs of frozen layers, not images
    mean: Tensor
    std: Tensor

    def __init__(self, config: ModelConfig, backbone: nn.Module | None = None) -> None:
        """A network with new weights, or with the caller's own backbone, which is not copied."""
        super().__init__()
        channels, size = config.n_channels, config.image_size
        self.backbone = backbone or build_backbone(config.backbone, channels, size)
        self.unit_features = head_kind(config.head).unit_features
        self.register_buffer("mean", torch.zeros(channels, 1, 1))
        self.register_buffer("std", torch.ones(channels, 1, 1))

    def forward(self, pixels: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d"]:
        return self.to_features((pixels - self.mean) / self.std)

    def to_features(self, inputs: Float[Tensor, "b ..."]) -> Float[Tensor, "b d"]:
        """Features of the backbone's inputs."""
        # Distances and losses are computed in fp32, whatever the backbone computes in.
        features = self.backbone(inputs).float()
        return F.normalize(features, dim=1) if self.unit_features else features

    @torch.no_grad()
    def embed_batches(
        self, n: int, batches: Iterable[ImagesOrMaps], tick: Tick
    ) -> Float[Tensor, "n d"]:
        """Features of n images in eval mode, without augmentation."""
        features, done, device = torch.empty(0), 0, self.mean.device
        with eval_mode(self):
            for batch in batches:
                pixels = to_float(batch.to(device))
                with torch.autocast(device.type, torch.bfloat16, half_precision(device)):
                    part = self(pixels)
                if done == 0:
                    # Allocated once: small results kept between the batches' large temporary
                    # tensors would fragment the memory.
                    features = part.new_empty((n, part.shape[1]))
                features[done : done + len(part)] = part
                done += len(part)
                tick(len(part))
        return features

    def set_statistics(self, statistics: Statistics) -> None:
        """Normalize by these means and standard deviations of the channels."""
        self.mean, self.std = (torch.tensor(each)[:, None, None] for each in statistics)

    @torch.no_grad()
    def count_features(self, config: ModelConfig) -> int:
        """d, found by embedding an empty image; raises if the backbone does not give (b, d)."""
        example = torch.zeros(1, config.n_channels, config.image_size, config.image_size)
        try:
            features = self.eval().backbone(example)
        except Exception as error:  # the caller's own backbone may raise anything
            reason = textwrap.shorten(str(error) or type(error).__name__, 300).rstrip(".")
            shape = "×".join(map(str, example.shape[1:]))
            raise KedgeError(f"The backbone cannot take images of {shape} ({reason}).") from None
        self.train()
        given = features.shape if isinstance(features, Tensor) else type(features).__name__
        valid = isinstance(features, Tensor) and features.ndim == 2
        require(valid, f"The backbone gives {given}; it must give a tensor of shape (b, d).")
        return int(features.shape[1])


def channel_statistics(pool: Pool, max_images: int = 2000) -> Statistics:
    """Mean and standard deviation of each channel, over evenly spaced images of a pool."""
    step = -(-len(pool) // max_images)
    pixels = pool.table.take(pool.rows[::step]).float() / 255
    mean, std = pixels.mean((0, 2, 3)), pixels.std((0, 2, 3)).clamp(min=1e-3)
    return mean.tolist(), std.tolist()


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """Switch to eval mode; afterwards every submodule has its previous mode again."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode
