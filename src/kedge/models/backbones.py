"""Networks from images to features: Conv-4, ResNet-12, and DropBlock.

Conv-4: Vinyals et al., Matching Networks, 2016. ResNet-12: Oreshkin et al., TADAM, 2018, in the
form of Lee et al., 2019. DropBlock: Ghiasi et al., 2018.

On a GPU with Triton, Conv-4 and ResNet-12 compute what lies between their convolutions by
`kedge.kernels`. The modules here define the result, and do the work elsewhere. Both are
`never_compiled` by torch.compile, which would gain nothing.

Any module from images (b c h w) to features (b d) can take their place. If it has a `last_block`,
Task2Vec uses the filters in it (`kedge.training.task2vec`).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor, nn

from kedge.config import BackboneConfig
from kedge.errors import require
from kedge.kernels import use_for
from kedge.models.efficientnet import EfficientNetLite0
from kedge.models.timm_backbone import TIMM, TimmBackbone
from kedge.utils.text import display_name


class Conv4(nn.Module):
    """Four times 3×3 convolution, BatchNorm, ReLU and 2×2 max-pooling, then flattened. ReLU is
    monotonic, so pooling goes first: same result, a quarter of the work."""

    never_compiled = True

    def __init__(self, in_channels: int, width: int) -> None:
        super().__init__()
        self.width = width
        blocks: list[nn.Module] = []
        for channels in (in_channels, width, width, width):
            blocks.append(Conv2d(channels, width, 3, padding=1, bias=False))
            blocks += [nn.BatchNorm2d(width), nn.MaxPool2d(2), nn.ReLU()]
        self.blocks = nn.Sequential(*blocks)

    @property
    def last_block(self) -> nn.Module:
        return self.blocks[-4]  # the last convolution

    def n_features(self, image_size: int) -> int:
        """Number of features of an image with this side, which is halved four times."""
        return self.width * (image_size // 16) ** 2

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d"]:
        layers = _layers_for_kernels(self, images)
        if layers is None:
            return self.blocks(images).flatten(1)
        from kedge.kernels.pool_act import pool_act

        for convolution, norm in zip(*layers, strict=True):
            images = pool_act(convolution(images), norm, 0.0)
        return images.flatten(1)


def _layers_for_kernels(
    module: nn.Module, x: Tensor
) -> tuple[list[Conv2d], list[nn.BatchNorm2d]] | None:
    """Convolutions and norms in the order of their definition, if kernels compute the module with
    this input; otherwise None."""
    if not x.is_cuda:
        return None
    parts = list(module.modules())
    convolutions = [part for part in parts if isinstance(part, Conv2d)]
    norms = [part for part in parts if isinstance(part, nn.BatchNorm2d)]
    as_built = len(norms) == len(convolutions)  # a user may have replaced norms
    return (convolutions, norms) if as_built and use_for(x, *norms) else None


class Conv2d(nn.Conv2d):
    """Pads the input channels with zeros to a multiple of 8 on a GPU, as tensor cores need. The
    input may have been padded before."""

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c2 h2 w2"]:
        missing = -self.in_channels % 8
        if not x.is_cuda or missing == 0:
            return super().forward(x)
        weight = _pad_channels(self.weight)
        return F.conv2d(_pad_channels(x), weight, self.bias, self.stride, self.padding)


def _pad_channels(x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c2 h w"]:
    missing = -x.shape[1] % 8
    return F.pad(x, (0, 0, 0, 0, 0, missing)) if missing else x


Mask = tuple[UInt8[Tensor, "b h w c"], Int[Tensor, " 1"]]


class DropBlock(nn.Module):
    """Drops square regions of each feature map in training, and scales up the rest."""

    def __init__(self, keep: float = 0.9, block: int = 5) -> None:
        super().__init__()
        self.keep, self.block = keep, block

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        if not self.training or self.keep == 1:
            return x
        drawn, gamma, block = self._draw(x.shape, x.device)
        centres = (drawn < gamma).permute(0, 3, 1, 2)
        kept = ~_dilate(_dilate(centres, 2, block), 3, block)
        scale = kept.numel() / kept.sum().clamp(min=1)
        return x * kept * scale.to(x.dtype)

    def mask(self, shape: Sequence[int], device: torch.device) -> Mask | None:
        """For a feature map of this shape on a GPU: which entries are kept, drawn as in `forward`,
        and how many are; None if all are."""
        if not self.training or self.keep == 1:
            return None
        from kedge.kernels.drop_block import drop_block_mask

        return drop_block_mask(*self._draw(shape, device), self.block)

    def _draw(
        self, shape: Sequence[int], device: torch.device
    ) -> tuple[Float[Tensor, "b h2 w2 c"], float, int]:
        """Uniform numbers in channels-last order, the memory layout of the feature map; the bound
        below which one is the centre of a block; and the side of a block."""
        b, c, h, w = shape
        block = min(self.block, h, w)
        centres_h, centres_w = h - block + 1, w - block + 1
        # The rate of centres, each of which drops one block, such that 1 − keep is dropped.
        gamma = (1 - self.keep) / block**2 * (h * w) / (centres_h * centres_w)
        return torch.rand(b, centres_h, centres_w, c, device=device), gamma, block


def _dilate(centres: Bool[Tensor, "b c h w"], axis: int, block: int) -> Bool[Tensor, "b c h2 w2"]:
    """Dilate along one axis: each centre becomes `block` entries. A max-pool would need floats."""
    edge = block - 1
    padded = F.pad(centres, (edge, edge) if axis == 3 else (0, 0, edge, edge))
    n = centres.shape[axis] + edge
    return functools.reduce(torch.logical_or, (padded.narrow(axis, i, n) for i in range(block)))


SLOPE = 0.1  # of leaky ReLU


class ResidualBlock(nn.Module):
    """Three 3×3 convolutions plus a 1×1 shortcut; max-pooling; activation; DropBlock."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for size in (in_channels, channels, channels):
            layers.append(Conv2d(size, channels, 3, padding=1, bias=False))
            layers += [nn.BatchNorm2d(channels), nn.LeakyReLU(SLOPE)]
        self.body = nn.Sequential(*layers[:-1])
        convolution = Conv2d(in_channels, channels, 1, bias=False)
        self.shortcut = nn.Sequential(convolution, nn.BatchNorm2d(channels))
        self.drop = DropBlock()

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c2 h2 w2"]:
        layers = _layers_for_kernels(self, x)
        if layers is None:
            x = F.max_pool2d(self.body(x) + self.shortcut(x), 2)
            return self.drop(F.leaky_relu(x, SLOPE))
        convolutions, norms = layers
        from kedge.kernels.norm_act import norm_act
        from kedge.kernels.pool_act import pool_act

        b, _, h, w = x.shape
        drop = self.drop.mask((b, norms[0].num_features, h // 2, w // 2), x.device)
        if x.shape[1] % 8:  # once for both convolutions, and as few bytes as possible
            half = torch.is_autocast_enabled("cuda")
            x = _pad_channels(x.to(torch.get_autocast_dtype("cuda")) if half else x)
        y = norm_act(convolutions[0](x), norms[0], SLOPE)
        y = norm_act(convolutions[1](y), norms[1], SLOPE)
        return pool_act(convolutions[2](y), norms[2], SLOPE, (convolutions[3](x), norms[3]), drop)


class ResNet12(nn.Module):
    """Four residual blocks, then the global average."""

    never_compiled = True

    def __init__(self, in_channels: int, widths: Sequence[int]) -> None:
        super().__init__()
        self.widths = tuple(widths)
        channels = (in_channels, *widths)
        self.blocks = nn.Sequential(*(ResidualBlock(a, b) for a, b in itertools.pairwise(channels)))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, a=SLOPE, mode="fan_out")  # for leaky ReLU

    @property
    def last_block(self) -> nn.Module:
        return self.blocks[-1]

    def n_features(self, image_size: int) -> int:
        """The same for every image size."""
        return self.widths[-1]

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d"]:
        return self.blocks(images).mean((2, 3))


PRETRAINED = "efficientnet-lite0"  # its weights come with kedge[pretrained]
BACKBONES = {
    PRETRAINED: lambda c, w: EfficientNetLite0(c),
    "conv4": lambda c, w: Conv4(c, w),
    "resnet12": lambda c, w: ResNet12(c, (w, 2 * w, 4 * w, 8 * w)),
    "resnet12-wide": lambda c, w: ResNet12(c, (w, 5 * w // 2, 5 * w, 10 * w)),
}


def build_backbone(config: BackboneConfig, in_channels: int, image_size: int) -> nn.Module:
    """A backbone with random weights, drawn from PyTorch's current random state.

    The name may come from a file: nothing is imported because of it but timm, and nothing fetched.
    """
    name, known = config.backbone, ", ".join((*BACKBONES, f"{TIMM}NAME"))
    require(image_size >= 16, f"Images of {image_size} px are too small; use at least 16 px.")
    if name.startswith(TIMM):
        network: nn.Module = TimmBackbone(name.removeprefix(TIMM), in_channels, image_size)
    else:
        require(
            name in BACKBONES,
            f"There is no backbone '{display_name(name)}'; choose one of {known}.",
        )
        network = BACKBONES[name](in_channels, config.width)
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
