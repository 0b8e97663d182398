"""Random crop, flip and colour jitter of a batch of images in one kernel, for a GPU."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kedge.data.augment import GREY, Augmentation, augment, padding

PIXELS = 1024  # that a program handles at a time


@triton.jit
def _brightened(images, at, plane, valid, brightness):
    """Red, green, blue of some pixels as floats, after the first change of colours."""
    red = tl.load(images + at, mask=valid, other=0).to(tl.float32)
    green = tl.load(images + plane + at, mask=valid, other=0).to(tl.float32)
    blue = tl.load(images + 2 * plane + at, mask=valid, other=0).to(tl.float32)
    return (
        _clamp(red / 255 * brightness),
        _clamp(green / 255 * brightness),
        _clamp(blue / 255 * brightness),
    )


@triton.jit
def _clamp(x):
    return tl.minimum(tl.maximum(x, 0.0), 1.0)


@triton.jit
def _luminance(red, green, blue, RED: tl.constexpr, GREEN: tl.constexpr, BLUE: tl.constexpr):
    return RED * red + GREEN * green + BLUE * blue


@triton.jit
def _source(pixel, H, W, top, left, mirrored):
    """Where pixels of the crop lie in the image, and which lie in it."""
    x = pixel % W
    y, x = pixel // W + top, tl.where(mirrored, W - 1 - x, x) + left
    return y * W + x, (pixel < H * W) & (y >= 0) & (y < H) & (x >= 0) & (x < W)


@triton.jit(do_not_specialize=["H", "W", "pad"])
def _augment(
    images,
    top,
    left,
    mirrored,
    colour,
    result,
    H,
    W,
    pad,
    COLOUR: tl.constexpr,
    RED: tl.constexpr,
    GREEN: tl.constexpr,
    BLUE: tl.constexpr,
    PIXELS: tl.constexpr,
):
    """One image: first the mean luminance that contrast needs, then the result (h w c)."""
    image = tl.program_id(0)
    top, left = (
        (tl.load(top + image) - pad).to(tl.int32),
        (tl.load(left + image) - pad).to(tl.int32),
    )
    mirrored = tl.load(mirrored + image) != 0
    plane = H * W
    block = tl.arange(0, PIXELS)
    if COLOUR:
        images += image * 3 * plane
        result += image * 3 * plane
        brightness, contrast = tl.load(colour + 3 * image), tl.load(colour + 3 * image + 1)
        saturation = tl.load(colour + 3 * image + 2)
        total = tl.zeros([PIXELS], tl.float32)
        for first in range(0, plane, PIXELS):
            at, valid = _source(first + block, H, W, top, left, mirrored)
            red, green, blue = _brightened(images, at, plane, valid, brightness)
            total += _luminance(red, green, blue, RED, GREEN, BLUE)
        mean = tl.sum(total, 0) / plane
        for first in range(0, plane, PIXELS):
            pixel = first + block
            at, valid = _source(pixel, H, W, top, left, mirrored)
            red, green, blue = _brightened(images, at, plane, valid, brightness)
            red = _clamp(mean + contrast * (red - mean))
            green = _clamp(mean + contrast * (green - mean))
            blue = _clamp(mean + contrast * (blue - mean))
            grey = _luminance(red, green, blue, RED, GREEN, BLUE)
            target = result + 3 * pixel
            inside = pixel < plane
            tl.store(target, _clamp(grey + saturation * (red - grey)), mask=inside)
            tl.store(target + 1, _clamp(grey + saturation * (green - grey)), mask=inside)
            tl.store(target + 2, _clamp(grey + saturation * (blue - grey)), mask=inside)
    else:
        images += image * plane
        result += image * plane
        for first in range(0, plane, PIXELS):
            pixel = first + block
            at, valid = _source(pixel, H, W, top, left, mirrored)
            value = tl.load(images + at, mask=valid, other=0).to(tl.float32) / 255
            tl.store(result + pixel, value, mask=pixel < plane)


def fused_augment(images: Tensor, drawn: Augmentation) -> Tensor:
    """The result of `kedge.data.augment.augment`, up to rounding."""
    if images.is_floating_point() or images.shape[1] not in (1, 3):
        return augment(images, drawn)
    b, c, h, w = images.shape
    result = torch.empty((b, h, w, c), dtype=torch.float32, device=images.device)
    choices = (drawn.top, drawn.left, drawn.mirrored, drawn.colour.contiguous())
    sizes = (h, w, padding(h), c == 3, *GREY, PIXELS)
    _augment[(b,)](images.contiguous(), *choices, result, *sizes, num_warps=8)
    return result.permute(0, 3, 1, 2)
