"""What the kernels of a block share.

An activation is read as a matrix: its memory layout is channels-last, so each pixel of each image
is a row and each channel a column. Arithmetic is in float32; activations are stored in the type of
the input. Sums over all rows are made by up to N_PARTS programs of some rows each, and a second
kernel adds these partial sums in a fixed order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK_C = 64  # channels of a tile: 128 bytes in bf16
N_PARTS = 256  # programs of a sum, two for each multiprocessor of a large GPU
NORM_ROWS, SUM_ROWS, POOL_ROWS = 32, 64, 16  # rows of a tile
FINISH_COLS = 8  # channels for which one program adds partial sums

# Shapes change from block to block: one kernel for all of them, whether divisible by 16 or not.
SHAPES = ["M", "H", "W", "n_tiles", "n_parts", "numel", "block", "n_images"]
jit: Callable[[Any], Any] = triton.jit(do_not_specialize=SHAPES)


@triton.jit
def load(pointer, mask):
    return tl.load(pointer, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def normalization(mean, var, weight, bias, cols, in_c, eps):
    """Mean, 1/std, weight and bias of some channels."""
    rstd = tl.rsqrt(load(var + cols, in_c) + eps)
    return load(mean + cols, in_c), rstd, load(weight + cols, in_c), load(bias + cols, in_c)


@triton.jit
def affine(x, mean, rstd, weight, bias):
    return (x - mean[None, :]) * (rstd * weight)[None, :] + bias[None, :]


@triton.jit
def leaky(z, slope):
    return tl.where(z > 0, z, z * slope)


@triton.jit
def own_tile(C, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Rows and columns of this program's tile, from left to right and then down."""
    n_cols = tl.cdiv(C, COLS)
    rows = tl.program_id(0) // n_cols * ROWS + tl.arange(0, ROWS)
    return rows, tl.program_id(0) % n_cols * COLS + tl.arange(0, COLS)


@triton.jit
def input_gradient(value, dz, mean, rstd, weight, d_bias, d_weight, n_rows):
    """Through the batch statistics: weight / std · (dz − mean(dz) − x̂ · mean(dz · x̂)).

    Statistics that are constants have infinitely many rows: weight / std · dz.
    """
    slope = d_weight * rstd / n_rows
    centred = dz - (d_bias / n_rows)[None, :] - (value - mean[None, :]) * slope[None, :]
    return centred * (rstd * weight)[None, :]


@jit
def _finish_gradients(
    partial,
    d_bias,
    d_weight,
    d_bias_2,
    d_weight_2,
    C,
    n_parts,
    SHORTCUT: tl.constexpr,
    PARTS: tl.constexpr,
    COLS: tl.constexpr,
):
    """The sums over all parts: gradients of the biases, which are equal, and of the weights."""
    parts = tl.arange(0, PARTS)
    cols = tl.program_id(0) * COLS + tl.arange(0, COLS)
    in_c = cols < C
    mask = (parts < n_parts)[:, None] & in_c[None, :]
    offsets = parts[:, None] * C + cols[None, :]
    total = tl.sum(load(partial + offsets, mask), 0)
    tl.store(d_bias + cols, total, mask=in_c)
    product = tl.sum(load(partial + n_parts * C + offsets, mask), 0)
    tl.store(d_weight + cols, product, mask=in_c)
    if SHORTCUT:
        tl.store(d_bias_2 + cols, total, mask=in_c)
        product = tl.sum(load(partial + 2 * n_parts * C + offsets, mask), 0)
        tl.store(d_weight_2 + cols, product, mask=in_c)


def sum_parts(partial: Tensor) -> list[Tensor]:
    """Gradients of bias and weight of one BatchNorm, or of two, from 2 or 3 sums."""
    n_sums, n_parts, c = partial.shape
    gradients = [partial.new_empty(c) for _ in range(2 * (n_sums - 1))]
    targets = (*gradients, *gradients)[:4]
    _finish_gradients[(triton.cdiv(c, FINISH_COLS),)](
        partial, *targets, c, n_parts, n_sums == 3, N_PARTS, FINISH_COLS, num_warps=4
    )
    return gradients


def channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def as_matrix(x: Tensor) -> tuple[int, int]:
    """Numbers of rows and columns of an activation."""
    return x.numel() // x.shape[1], x.shape[1]


def tile_cols(c: int) -> int:
    """Columns of a tile: a power of two that divides the channels, unless that is too small."""
    common = min(BLOCK_C, c & -c)
    return common if common >= 16 else min(BLOCK_C, triton.next_power_of_2(c))


def grid_of(m: int, c: int, rows: int) -> tuple[int]:
    return (triton.cdiv(m, rows) * triton.cdiv(c, tile_cols(c)),)


def split_rows(m: int, c: int, rows: int) -> tuple[int, int]:
    """Numbers of tiles of so many rows, and of parts that the tiles are divided into."""
    n_tiles = triton.cdiv(m, rows)
    return n_tiles, min(n_tiles, max(1, N_PARTS // triton.cdiv(c, tile_cols(c))))
