"""Random crop, flip and colour jitter of a batch, on any device.

The random choices are drawn on the CPU together with the episodes of an epoch, so a run sees the
same pixels on any device and a training step holds no random state.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor

PADDING = 8 / 84  # of the image's side: 8 pixels at the paper's 84
JITTER = 0.4  # brightness, contrast and saturation factors lie in 1 ± 0.4
ImagesOrMaps = UInt8[Tensor, "b c h w"] | Float[Tensor, "b views ..."]  # see `augment`
GREY = (0.299, 0.587, 0.114)  # weights of R, G, B in luminance (ITU-R BT.601)


@dataclass(frozen=True, eq=False)
class Augmentation:
    """The crop, flip and colour factors of each image."""

    top: Int64[Tensor, "*batch"]
    left: Int64[Tensor, "*batch"]
    mirrored: Bool[Tensor, "*batch"]
    colour: Float[Tensor, "*batch 3"]  # factors of brightness, contrast, saturation
    view: Int64[Tensor, "*batch"]  # of those made in advance, if images come as such

    def of(self, episode: int, n_images: int) -> Augmentation:
        """For the first `n_images` images of one episode."""
        return Augmentation(*(part[episode, :n_images] for part in vars(self).values()))

    def select(self, images: Bool[Tensor, " n"]) -> Augmentation:
        """For some of the images of one episode."""
        return Augmentation(*(part[images] for part in vars(self).values()))

    def to(self, device: torch.device) -> Augmentation:
        return Augmentation(*(part.to(device, non_blocking=True) for part in vars(self).values()))


def draw_augmentation(
    rng: np.random.Generator, n_episodes: int, n_images: int, image_size: int, n_views: int = 1
) -> Augmentation:
    """Random crops, reflections and colours, and one of `n_views` views, for each image."""
    shape, n_offsets = (n_episodes, n_images), 2 * padding(image_size) + 1
    top, left = rng.integers(0, n_offsets, shape), rng.integers(0, n_offsets, shape)
    mirrored = rng.random(shape) < 0.5
    colour = rng.uniform(1 - JITTER, 1 + JITTER, (*shape, 3)).astype(np.float32)
    view = rng.integers(0, n_views, shape) if n_views > 1 else np.zeros(shape, np.int64)
    return Augmentation(*map(torch.from_numpy, (top, left, mirrored, colour, view)))


def padding(image_size: int) -> int:
    return round(PADDING * image_size)


def augment(images: ImagesOrMaps, drawn: Augmentation) -> Float[Tensor, "b ..."]:
    """Crop from the zero-padded image, mirror, jitter (colour images only); values in 0…1.

    Of maps, which are made from images augmented in advance, one view is chosen.
    """
    if images.is_floating_point():
        return images[torch.arange(len(images), device=images.device), drawn.view].float()
    b, c, h, w = images.shape
    pad, device = padding(h), images.device
    y = drawn.top[:, None] + torch.arange(h, device=device)
    x = torch.arange(w, device=device).expand(b, w)
    x = drawn.left[:, None] + torch.where(drawn.mirrored[:, None], w - 1 - x, x)
    padded = F.pad(images, (pad, pad, pad, pad))
    batch = torch.arange(b, device=device)[:, None, None]
    # The result is channels-last in memory, the layout that convolutions prefer.
    cropped = padded[batch, :, y[:, :, None], x[:, None, :]].permute(0, 3, 1, 2)
    pixels = cropped.to(torch.float32) / 255
    return jitter(pixels, drawn.colour) if c == 3 else pixels


def jitter(
    pixels: Float[Tensor, "b 3 h w"], factors: Float[Tensor, "b 3"]
) -> Float[Tensor, "b 3 h w"]:
    """Brightness, then contrast, then saturation, clamped to 0…1 after each."""
    brightness, contrast, saturation = (f[:, None, None, None] for f in factors.unbind(1))
    pixels = (pixels * brightness).clamp(0, 1)
    mean = luminance(pixels).mean((2, 3), keepdim=True)
    pixels = (mean + contrast * (pixels - mean)).clamp(0, 1)
    grey = luminance(pixels)
    return (grey + saturation * (pixels - grey)).clamp(0, 1)


def luminance(pixels: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b 1 h w"]:
    red, green, blue = pixels.split(1, dim=1)
    return GREY[0] * red + GREY[1] * green + GREY[2] * blue


def to_float(images: ImagesOrMaps) -> Float[Tensor, "b ..."]:
    """Images without augmentation, in 0…1; of maps (see `augment`) the first view."""
    if images.is_floating_point():
        return images[:, 0].float()
    return images.to(torch.float32, memory_format=torch.channels_last) / 255
