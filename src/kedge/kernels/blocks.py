"""Batch normalization, activation, shortcut, max-pooling and DropBlock of a convolutional block.

An activation is read as a matrix: its memory layout is channels-last, so each pixel of each image
is a row and each channel a column. Arithmetic is in float32; activations are stored in the type of
the input. Batch statistics and gradients of weights are sums over all rows: N_PARTS programs sum
some of the rows each, and a second kernel adds these partial sums in a fixed order.

Of the forward pass only the inputs and the batch statistics are kept; the backward pass computes
the rest again, since that is faster than reading it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

BLOCK_C = 64  # channels of a tile: 128 bytes in bf16
N_PARTS = 256  # programs of a sum, two for each multiprocessor of a large GPU
NORM_ROWS, SUM_ROWS, POOL_ROWS = 32, 64, 16  # rows of a tile
FINISH_COLS = 8  # channels for which one program adds partial sums
STRIP, MASK_PIXELS = 12, 16  # rows and columns of a DropBlock mask that one program makes

# Shapes change from block to block: one kernel for all of them, whether divisible by 16 or not.
SHAPES = ["M", "H", "W", "n_tiles", "n_parts", "numel", "block", "n_images"]
jit: Callable[[Any], Any] = triton.jit(do_not_specialize=SHAPES)


# ── kernels: batch normalization and activation ──────────────────────────────────────────────


@triton.jit
def _load(pointer, mask):
    return tl.load(pointer, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _normalization(mean, var, weight, bias, cols, in_c, eps):
    """Mean, 1/std, weight and bias of some channels."""
    rstd = tl.rsqrt(_load(var + cols, in_c) + eps)
    return _load(mean + cols, in_c), rstd, _load(weight + cols, in_c), _load(bias + cols, in_c)


@triton.jit
def _affine(x, mean, rstd, weight, bias):
    return (x - mean[None, :]) * (rstd * weight)[None, :] + bias[None, :]


@triton.jit
def _leaky(z, slope):
    return tl.where(z > 0, z, z * slope)


@jit
def _statistics(x, partial, M, C, n_tiles, n_parts, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Mean and sum of squared deviations of each channel over the tiles of one part.

    Starts from the last tile, which the convolution has written last and the cache may still have.
    """
    part = tl.program_id(0)
    cols = tl.program_id(1) * COLS + tl.arange(0, COLS)
    in_c = cols < C
    # Deviations from any value of the channel: sums of raw squares would cancel.
    shift = _load(x + (n_tiles - 1 - part) * ROWS * C + cols, in_c)
    total = tl.zeros([ROWS, COLS], tl.float32)
    squares = tl.zeros([ROWS, COLS], tl.float32)
    for tile in range(part, n_tiles, n_parts):
        rows = (n_tiles - 1 - tile) * ROWS + tl.arange(0, ROWS)
        mask = (rows < M)[:, None] & in_c[None, :]
        value = _load(x + rows[:, None] * C + cols[None, :], mask)
        value = tl.where(mask, value - shift[None, :], 0.0)
        total += value
        squares += value * value
    n = _rows_of_part(part, M, n_tiles, n_parts, ROWS)
    total_of_part = tl.sum(total, 0)
    mean = total_of_part / n
    tl.store(partial + part * C + cols, mean + shift, mask=in_c)
    deviations = tl.maximum(tl.sum(squares, 0) - total_of_part * mean, 0.0)
    tl.store(partial + (n_parts + part) * C + cols, deviations, mask=in_c)


@triton.jit
def _rows_of_part(part, M, n_tiles, n_parts, ROWS: tl.constexpr):
    """How many rows the tiles of a part have. The last M rows but not the first tile (number
    n_tiles − 1, counted from the end) may be incomplete: it belongs to part 0."""
    rows = (n_tiles - part + n_parts - 1) // n_parts * ROWS
    missing = n_tiles * ROWS - M
    return (rows - tl.where(part == 0, missing, 0)).to(tl.float32)


@jit
def _finish_statistics(
    partial,
    statistics,
    running_mean,
    running_var,
    counter,
    momentum,
    M,
    C,
    n_tiles,
    n_parts,
    ROWS: tl.constexpr,
    PARTS: tl.constexpr,
    COLS: tl.constexpr,
):
    """Mean and biased variance of each channel, combined from the parts by Chan's formula."""
    parts = tl.arange(0, PARTS)
    cols = tl.program_id(0) * COLS + tl.arange(0, COLS)
    in_c = cols < C
    mask = (parts < n_parts)[:, None] & in_c[None, :]
    offsets = parts[:, None] * C + cols[None, :]
    means = _load(partial + offsets, mask)
    deviations = _load(partial + n_parts * C + offsets, mask)
    n = tl.where(parts < n_parts, _rows_of_part(parts, M, n_tiles, n_parts, ROWS), 0.0)[:, None]
    mean = tl.sum(n * means, 0) / M
    between = means - mean[None, :]
    total = tl.sum(deviations + n * between * between, 0)
    tl.store(statistics + cols, mean, mask=in_c)
    tl.store(statistics + C + cols, total / M, mask=in_c)
    old_mean, old_var = _load(running_mean + cols, in_c), _load(running_var + cols, in_c)
    tl.store(running_mean + cols, old_mean + momentum * (mean - old_mean), mask=in_c)
    tl.store(running_var + cols, old_var + momentum * (total / (M - 1) - old_var), mask=in_c)
    if tl.program_id(0) == 0:
        tl.store(counter, tl.load(counter) + 1)


@jit
def _norm_act(
    x, y, mean, var, weight, bias, eps, slope, M, C, ROWS: tl.constexpr, COLS: tl.constexpr
):
    """y = leaky(batch norm of x)."""
    rows, cols = _tile(C, ROWS, COLS)
    in_c = cols < C
    mask = (rows < M)[:, None] & in_c[None, :]
    offsets = rows[:, None] * C + cols[None, :]
    value = _load(x + offsets, mask)
    mean, rstd, weight, bias = _normalization(mean, var, weight, bias, cols, in_c, eps)
    z = _affine(value, mean, rstd, weight, bias)
    tl.store(y + offsets, _leaky(z, slope).to(y.dtype.element_ty), mask=mask)


@triton.jit
def _tile(C, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Rows and columns of this program's tile, from left to right and then down."""
    n_cols = tl.cdiv(C, COLS)
    rows = tl.program_id(0) // n_cols * ROWS + tl.arange(0, ROWS)
    return rows, tl.program_id(0) % n_cols * COLS + tl.arange(0, COLS)


@jit
def _sum_norm_act_gradient(
    x,
    dy,
    partial,
    mean,
    var,
    weight,
    bias,
    eps,
    slope,
    M,
    C,
    n_tiles,
    n_parts,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    """Σ dz and Σ dz · x̂ of each channel over one part; z is the input of the activation."""
    part = tl.program_id(0)
    cols = tl.program_id(1) * COLS + tl.arange(0, COLS)
    in_c = cols < C
    mean, rstd, weight, bias = _normalization(mean, var, weight, bias, cols, in_c, eps)
    total = tl.zeros([ROWS, COLS], tl.float32)
    product = tl.zeros([ROWS, COLS], tl.float32)
    for tile in range(part, n_tiles, n_parts):
        rows = (n_tiles - 1 - tile) * ROWS + tl.arange(0, ROWS)
        mask = (rows < M)[:, None] & in_c[None, :]
        offsets = rows[:, None] * C + cols[None, :]
        value, gradient = _load(x + offsets, mask), _load(dy + offsets, mask)  # 0 outside
        z = _affine(value, mean, rstd, weight, bias)
        dz = tl.where(z > 0, gradient, gradient * slope)
        total += dz
        product += dz * (value - mean[None, :])
    tl.store(partial + part * C + cols, tl.sum(total, 0), mask=in_c)
    tl.store(partial + (n_parts + part) * C + cols, tl.sum(product, 0) * rstd, mask=in_c)


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
    total = tl.sum(_load(partial + offsets, mask), 0)
    tl.store(d_bias + cols, total, mask=in_c)
    product = tl.sum(_load(partial + n_parts * C + offsets, mask), 0)
    tl.store(d_weight + cols, product, mask=in_c)
    if SHORTCUT:
        tl.store(d_bias_2 + cols, total, mask=in_c)
        product = tl.sum(_load(partial + 2 * n_parts * C + offsets, mask), 0)
        tl.store(d_weight_2 + cols, product, mask=in_c)


@triton.jit
def _input_gradient(value, dz, mean, rstd, weight, d_bias, d_weight, n_rows):
    """Through the batch statistics: weight / std · (dz − mean(dz) − x̂ · mean(dz · x̂)).

    Statistics that are constants have infinitely many rows: weight / std · dz.
    """
    slope = d_weight * rstd / n_rows
    centred = dz - (d_bias / n_rows)[None, :] - (value - mean[None, :]) * slope[None, :]
    return centred * (rstd * weight)[None, :]


@jit
def _norm_act_gradient(
    x,
    dy,
    dx,
    mean,
    var,
    weight,
    bias,
    d_bias,
    d_weight,
    n_rows,
    eps,
    slope,
    M,
    C,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    """dx, given the gradients of weight and bias."""
    rows, cols = _tile(C, ROWS, COLS)
    in_c = cols < C
    mask = (rows < M)[:, None] & in_c[None, :]
    offsets = rows[:, None] * C + cols[None, :]
    value, gradient = _load(x + offsets, mask), _load(dy + offsets, mask)
    mean, rstd, weight, bias = _normalization(mean, var, weight, bias, cols, in_c, eps)
    z = _affine(value, mean, rstd, weight, bias)
    dz = tl.where(z > 0, gradient, gradient * slope)
    d_bias, d_weight = _load(d_bias + cols, in_c), _load(d_weight + cols, in_c)
    result = _input_gradient(value, dz, mean, rstd, weight, d_bias, d_weight, n_rows)
    tl.store(dx + offsets, result.to(dx.dtype.element_ty), mask=mask)


# ── kernels: the end of a block ──────────────────────────────────────────────────────────────
# z = norm(x) + norm(shortcut);  y = leaky(max of 2×2 of z) · kept · numel / n_kept


@triton.jit
def _window(rows, height, width, H, W, C):
    """Image rows, columns and first offset of 2×2 windows, which are `height` × `width`."""
    top = rows // width % height * 2
    left = rows % width * 2
    return top, left, ((rows // (width * height) * H + top) * W + left) * C


@triton.jit
def _exceeds(value, best):
    """As in PyTorch the first maximum counts, and NaN is larger than all."""
    return (value > best) | (value != value)


@triton.jit
def _drop_scale(n_kept, numel):
    return numel / tl.maximum(tl.load(n_kept), 1).to(tl.float32)


@jit
def _pool_act(
    x,
    x_2,
    y,
    mean,
    var,
    weight,
    bias,
    mean_2,
    var_2,
    weight_2,
    bias_2,
    kept,
    n_kept,
    numel,
    eps,
    slope,
    M,
    H,
    W,
    C,
    SHORTCUT: tl.constexpr,
    DROP: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    """y of M windows."""
    rows, cols = _tile(C, ROWS, COLS)
    in_c = cols < C
    mask = (rows < M)[:, None] & in_c[None, :]
    top, left, first = _window(rows, H // 2, W // 2, H, W, C)
    offsets = first[:, None] + cols[None, :]
    mean, rstd, weight, bias = _normalization(mean, var, weight, bias, cols, in_c, eps)
    if SHORTCUT:
        mean_2, rstd_2, weight_2, bias_2 = _normalization(
            mean_2, var_2, weight_2, bias_2, cols, in_c, eps
        )
    best = tl.full([ROWS, COLS], float("-inf"), tl.float32)
    for k in tl.static_range(4):
        at = offsets + (k // 2 * W + k % 2) * C
        z = _affine(_load(x + at, mask), mean, rstd, weight, bias)
        if SHORTCUT:
            z += _affine(_load(x_2 + at, mask), mean_2, rstd_2, weight_2, bias_2)
        best = tl.where(_exceeds(z, best), z, best)
    result = _leaky(best, slope)
    at = rows[:, None] * C + cols[None, :]
    if DROP:
        result *= tl.load(kept + at, mask=mask, other=0).to(tl.float32) * _drop_scale(n_kept, numel)
    tl.store(y + at, result.to(y.dtype.element_ty), mask=mask)


@jit
def _sum_pool_act_gradient(
    x,
    x_2,
    dy,
    partial,
    mean,
    var,
    weight,
    bias,
    mean_2,
    var_2,
    weight_2,
    bias_2,
    kept,
    n_kept,
    numel,
    eps,
    slope,
    M,
    H,
    W,
    C,
    n_tiles,
    n_parts,
    SHORTCUT: tl.constexpr,
    DROP: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    """Σ dz, Σ dz · x̂ and Σ dz · x̂_2 of each channel over the windows of one part. Only at the
    maximum of a window is dz not 0."""
    part = tl.program_id(0)
    cols = tl.program_id(1) * COLS + tl.arange(0, COLS)
    in_c = cols < C
    mean, rstd, weight, bias = _normalization(mean, var, weight, bias, cols, in_c, eps)
    total = tl.zeros([ROWS, COLS], tl.float32)
    product = tl.zeros([ROWS, COLS], tl.float32)
    product_2 = tl.zeros([ROWS, COLS], tl.float32)
    if SHORTCUT:
        mean_2, rstd_2, weight_2, bias_2 = _normalization(
            mean_2, var_2, weight_2, bias_2, cols, in_c, eps
        )
    if DROP:
        scale = _drop_scale(n_kept, numel)
    for tile in range(part, n_tiles, n_parts):
        rows = (n_tiles - 1 - tile) * ROWS + tl.arange(0, ROWS)
        mask = (rows < M)[:, None] & in_c[None, :]
        top, left, first = _window(rows, H // 2, W // 2, H, W, C)
        offsets = first[:, None] + cols[None, :]
        best = tl.full([ROWS, COLS], float("-inf"), tl.float32)
        chosen = tl.zeros([ROWS, COLS], tl.float32)
        chosen_2 = tl.zeros([ROWS, COLS], tl.float32)
        for k in tl.static_range(4):
            at = offsets + (k // 2 * W + k % 2) * C
            value = _load(x + at, mask)
            z = _affine(value, mean, rstd, weight, bias)
            if SHORTCUT:
                value_2 = _load(x_2 + at, mask)
                z += _affine(value_2, mean_2, rstd_2, weight_2, bias_2)
            larger = _exceeds(z, best)
            best = tl.where(larger, z, best)
            chosen = tl.where(larger, value, chosen)
            if SHORTCUT:
                chosen_2 = tl.where(larger, value_2, chosen_2)
        at = rows[:, None] * C + cols[None, :]
        dz = _load(dy + at, mask)
        if DROP:
            dz *= tl.load(kept + at, mask=mask, other=0).to(tl.float32) * scale
        dz = tl.where(best > 0, dz, dz * slope)
        total += dz
        product += dz * (chosen - mean[None, :])
        if SHORTCUT:
            product_2 += dz * (chosen_2 - mean_2[None, :])
    tl.store(partial + part * C + cols, tl.sum(total, 0), mask=in_c)
    tl.store(partial + (n_parts + part) * C + cols, tl.sum(product, 0) * rstd, mask=in_c)
    if SHORTCUT:
        sums = tl.sum(product_2, 0) * rstd_2
        tl.store(partial + (2 * n_parts + part) * C + cols, sums, mask=in_c)


@jit
def _pool_act_gradient(
    x,
    x_2,
    dy,
    dx,
    dx_2,
    mean,
    var,
    weight,
    bias,
    mean_2,
    var_2,
    weight_2,
    bias_2,
    d_bias,
    d_weight,
    d_weight_2,
    n_rows,
    kept,
    n_kept,
    numel,
    eps,
    slope,
    H,
    W,
    C,
    n_images,
    SHORTCUT: tl.constexpr,
    DROP: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    """Gradients of both inputs. If H or W is odd, the windows at the edge are incomplete, and are
    not pooled."""
    rows, cols = _tile(C, ROWS, COLS)
    in_c = cols < C
    height, width = (H + 1) // 2, (W + 1) // 2
    top, left, first = _window(rows, height, width, H, W, C)
    in_m = rows < n_images * height * width
    offsets = first[:, None] + cols[None, :]
    right, below = left + 1 < W, top + 1 < H
    mask_0 = in_m[:, None] & in_c[None, :]
    mask_1 = (in_m & right)[:, None] & in_c[None, :]
    mask_2 = (in_m & below)[:, None] & in_c[None, :]
    pooled = (in_m & right & below)[:, None] & in_c[None, :]
    at_0, at_1, at_2 = offsets, offsets + C, offsets + W * C
    at_3 = at_2 + C
    value_0, value_1 = _load(x + at_0, mask_0), _load(x + at_1, mask_1)
    value_2, value_3 = _load(x + at_2, mask_2), _load(x + at_3, pooled)
    mean, rstd, weight, bias = _normalization(mean, var, weight, bias, cols, in_c, eps)
    z_0 = _affine(value_0, mean, rstd, weight, bias)
    z_1 = _affine(value_1, mean, rstd, weight, bias)
    z_2 = _affine(value_2, mean, rstd, weight, bias)
    z_3 = _affine(value_3, mean, rstd, weight, bias)
    if SHORTCUT:
        other_0, other_1 = _load(x_2 + at_0, mask_0), _load(x_2 + at_1, mask_1)
        other_2, other_3 = _load(x_2 + at_2, mask_2), _load(x_2 + at_3, pooled)
        mean_2, rstd_2, weight_2, bias_2 = _normalization(
            mean_2, var_2, weight_2, bias_2, cols, in_c, eps
        )
        z_0 += _affine(other_0, mean_2, rstd_2, weight_2, bias_2)
        z_1 += _affine(other_1, mean_2, rstd_2, weight_2, bias_2)
        z_2 += _affine(other_2, mean_2, rstd_2, weight_2, bias_2)
        z_3 += _affine(other_3, mean_2, rstd_2, weight_2, bias_2)
    larger = _exceeds(z_1, z_0)
    best, chosen = tl.where(larger, z_1, z_0), tl.where(larger, 1, 0)
    larger = _exceeds(z_2, best)
    best, chosen = tl.where(larger, z_2, best), tl.where(larger, 2, chosen)
    larger = _exceeds(z_3, best)
    best, chosen = tl.where(larger, z_3, best), tl.where(larger, 3, chosen)

    output = (rows // (width * height) * (H // 2) + top // 2) * (W // 2) + left // 2
    at = output[:, None] * C + cols[None, :]
    dz = _load(dy + at, pooled)
    if DROP:
        dz *= tl.load(kept + at, mask=pooled, other=0).to(tl.float32) * _drop_scale(n_kept, numel)
    dz = tl.where(best > 0, dz, dz * slope)
    dz_0, dz_1 = tl.where(chosen == 0, dz, 0.0), tl.where(chosen == 1, dz, 0.0)
    dz_2, dz_3 = tl.where(chosen == 2, dz, 0.0), tl.where(chosen == 3, dz, 0.0)

    d_bias, d_weight = _load(d_bias + cols, in_c), _load(d_weight + cols, in_c)
    result = _input_gradient(value_0, dz_0, mean, rstd, weight, d_bias, d_weight, n_rows)
    tl.store(dx + at_0, result.to(dx.dtype.element_ty), mask=mask_0)
    result = _input_gradient(value_1, dz_1, mean, rstd, weight, d_bias, d_weight, n_rows)
    tl.store(dx + at_1, result.to(dx.dtype.element_ty), mask=mask_1)
    result = _input_gradient(value_2, dz_2, mean, rstd, weight, d_bias, d_weight, n_rows)
    tl.store(dx + at_2, result.to(dx.dtype.element_ty), mask=mask_2)
    result = _input_gradient(value_3, dz_3, mean, rstd, weight, d_bias, d_weight, n_rows)
    tl.store(dx + at_3, result.to(dx.dtype.element_ty), mask=pooled)
    if SHORTCUT:
        d_weight_2 = _load(d_weight_2 + cols, in_c)
        result = _input_gradient(other_0, dz_0, mean_2, rstd_2, weight_2, d_bias, d_weight_2, n_rows)
        tl.store(dx_2 + at_0, result.to(dx.dtype.element_ty), mask=mask_0)
        result = _input_gradient(other_1, dz_1, mean_2, rstd_2, weight_2, d_bias, d_weight_2, n_rows)
        tl.store(dx_2 + at_1, result.to(dx.dtype.element_ty), mask=mask_1)
        result = _input_gradient(other_2, dz_2, mean_2, rstd_2, weight_2, d_bias, d_weight_2, n_rows)
        tl.store(dx_2 + at_2, result.to(dx.dtype.element_ty), mask=mask_2)
        result = _input_gradient(other_3, dz_3, mean_2, rstd_2, weight_2, d_bias, d_weight_2, n_rows)
        tl.store(dx_2 + at_3, result.to(dx.dtype.element_ty), mask=pooled)


# ── kernel: DropBlock's mask ─────────────────────────────────────────────────────────────────


@jit
def _drop_block_mask(
    drawn,
    kept,
    n_kept,
    gamma,
    H,
    W,
    C,
    block,
    STRIP: tl.constexpr,
    BLOCK: tl.constexpr,
    PIXELS: tl.constexpr,
    COLS: tl.constexpr,
):
    """0 where a centre within the `block` entries before is less than gamma, in both directions.

    A program makes STRIP rows of some columns of one image. Bit r of `near` says whether row
    r − (BLOCK − 1) of the strip has such a centre within the `block` columns before.
    """
    n_cols = tl.cdiv(C, COLS)
    x = tl.program_id(0) // n_cols * PIXELS + tl.arange(0, PIXELS)
    cols = tl.program_id(0) % n_cols * COLS + tl.arange(0, COLS)
    first, image = tl.program_id(1) * STRIP, tl.program_id(2)
    in_c = cols < C
    centres_h, centres_w = H - block + 1, W - block + 1
    near = tl.zeros([PIXELS, COLS], tl.int32)
    for r in range(STRIP + BLOCK - 1):
        y = first + r - (BLOCK - 1)
        in_y = (y >= 0) & (y < centres_h)
        row = drawn + (image * centres_h + y) * centres_w * C
        found = tl.zeros([PIXELS, COLS], tl.int32)
        for k in tl.static_range(BLOCK):
            at = x - k
            valid = (at >= 0) & (at < centres_w) & (k < block) & in_y
            mask = valid[:, None] & in_c[None, :]
            value = tl.load(row + at[:, None] * C + cols[None, :], mask=mask, other=2.0)
            found |= (value < gamma).to(tl.int32)
        near |= found << r
    dropped = near
    for k in tl.static_range(1, BLOCK):
        dropped |= tl.where(k < block, near << k, 0)
    total = tl.zeros([PIXELS, COLS], tl.int32)
    for r in range(STRIP):
        y = first + r
        keep = 1 - ((dropped >> (r + BLOCK - 1)) & 1)
        mask = ((x < W) & (y < H))[:, None] & in_c[None, :]
        at = ((image * H + y) * W + x)[:, None] * C + cols[None, :]
        tl.store(kept + at, keep.to(tl.uint8), mask=mask)
        total += tl.where(mask, keep, 0)
    tl.atomic_add(n_kept, tl.sum(total))  # of integers: the order does not matter


# ── what networks call ───────────────────────────────────────────────────────────────────────


def norm_act(x: Tensor, norm: nn.BatchNorm2d, slope: float) -> Tensor:
    """leaky_relu(norm(x)), as the modules compute it in their current mode."""
    return _NormAct.apply(x, norm.weight, norm.bias, norm, slope)


def pool_act(
    x: Tensor,
    norm: nn.BatchNorm2d,
    slope: float,
    shortcut: tuple[Tensor, nn.BatchNorm2d] | None = None,
    drop: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """leaky_relu(max_pool2d(norm(x) + its norm(shortcut), 2)), then DropBlock.

    The norms are in the same mode. `drop` is what `drop_block_mask` returns.
    """
    if shortcut is None:
        return _PoolAct.apply(x, norm.weight, norm.bias, None, None, None, (norm,), slope, drop)
    second, norm_2 = shortcut
    norms, weights = (norm, norm_2), (norm_2.weight, norm_2.bias)
    return _PoolAct.apply(x, norm.weight, norm.bias, second, *weights, norms, slope, drop)


def drop_block_mask(
    drawn: Tensor, gamma: float, block: int, max_block: int
) -> tuple[Tensor, Tensor]:
    """1 for each entry (b h w c) that is kept and 0 for others, and how many are kept.

    `drawn` (b h−block+1 w−block+1 c) are uniform numbers; each below gamma drops the block of
    `block` × `block` entries that starts there. The code is specialized for `max_block`.
    """
    b, h, w, c = drawn.shape
    h, w = h + block - 1, w + block - 1
    kept = torch.empty(b, h, w, c, dtype=torch.uint8, device=drawn.device)
    n_kept = torch.zeros(1, dtype=torch.int32, device=drawn.device)
    cols = _cols(c)
    grid = (triton.cdiv(w, MASK_PIXELS) * triton.cdiv(c, cols), triton.cdiv(h, STRIP), b)
    sizes = (h, w, c, block, STRIP, max_block, MASK_PIXELS, cols)
    _drop_block_mask[grid](drawn, kept, n_kept, gamma, *sizes, num_warps=4)
    return kept, n_kept


# ── autograd ─────────────────────────────────────────────────────────────────────────────────


class _NormAct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, norm: nn.BatchNorm2d, slope: float
    ) -> Tensor:
        x = _channels_last(x)
        mean, var, ctx.n_rows = _statistics_of(x, norm)
        ctx.save_for_backward(x, mean, var, weight, bias)
        ctx.numbers = (norm.eps, slope, *_matrix(x))
        y = torch.empty_like(x)
        rows, cols = NORM_ROWS, _cols(x.shape[1])
        _norm_act[_grid(*_matrix(x), rows)](
            x, y, mean, var, weight, bias, *ctx.numbers, rows, cols, num_warps=4
        )
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, *parameters = ctx.saved_tensors
        dy, (m, c), cols = _channels_last(dy), _matrix(x), _cols(x.shape[1])
        n_tiles, n_parts = _parts(m, c, SUM_ROWS)
        partial = x.new_empty((2, n_parts, c), dtype=torch.float32)
        sizes = (n_tiles, n_parts, SUM_ROWS, cols)
        _sum_norm_act_gradient[n_parts, triton.cdiv(c, cols)](
            x, dy, partial, *parameters, *ctx.numbers, *sizes, num_warps=8
        )
        d_bias, d_weight = _sum_parts(partial)
        dx, gradients = torch.empty_like(x), (d_bias, d_weight, ctx.n_rows)
        _norm_act_gradient[_grid(m, c, NORM_ROWS)](
            x, dy, dx, *parameters, *gradients, *ctx.numbers, NORM_ROWS, cols, num_warps=4
        )
        return dx, d_weight, d_bias, None, None


class _PoolAct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        shortcut: Tensor | None,
        weight_2: Tensor | None,
        bias_2: Tensor | None,
        norms: tuple[nn.BatchNorm2d, ...],
        slope: float,
        drop: tuple[Tensor, Tensor] | None,
    ) -> Tensor:
        x = second = _channels_last(x)
        mean, var, ctx.n_rows = _statistics_of(x, norms[0])
        parameters = (mean, var, weight, bias) * 2  # of the second input too, if there is one
        if shortcut is not None:
            second = _channels_last(shortcut)
            mean, var, _ = _statistics_of(second, norms[1])
            parameters = (*parameters[:4], mean, var, weight_2, bias_2)
        ctx.save_for_backward(x, second, *parameters, *(drop or ()))
        ctx.flags = (shortcut is not None, drop is not None)
        n, c, h, w = x.shape
        h, w = h // 2, w // 2
        ctx.numbers = (n * c * h * w, norms[0].eps, slope)
        y = x.new_empty((n, h, w, c)).permute(0, 3, 1, 2)
        m, rows = n * h * w, POOL_ROWS
        _pool_act[_grid(m, c, rows)](
            x,
            second,
            y,
            *parameters,
            *(drop or (x, x)),
            *ctx.numbers,
            m,
            *x.shape[2:],
            c,
            *ctx.flags,
            rows,
            _cols(c),
            num_warps=4,
        )
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, second, *rest = ctx.saved_tensors
        parameters, drop = rest[:8], rest[8:] or (x, x)
        dy, (n, c, h, w), rows = _channels_last(dy), x.shape, POOL_ROWS
        cols, has_shortcut, m = _cols(c), ctx.flags[0], n * (h // 2) * (w // 2)
        n_tiles, n_parts = _parts(m, c, rows)
        partial = x.new_empty((2 + has_shortcut, n_parts, c), dtype=torch.float32)
        _sum_pool_act_gradient[n_parts, triton.cdiv(c, cols)](
            x,
            second,
            dy,
            partial,
            *parameters,
            *drop,
            *ctx.numbers,
            m,
            h,
            w,
            c,
            n_tiles,
            n_parts,
            *ctx.flags,
            rows,
            cols,
            num_warps=4,
        )
        d_bias, d_weight, *others = _sum_parts(partial)
        d_bias_2, d_weight_2 = others or (None, None)
        dx = torch.empty_like(x)
        dx_2 = torch.empty_like(x) if has_shortcut else None
        _pool_act_gradient[_grid(n * ((h + 1) // 2) * ((w + 1) // 2), c, rows)](
            x,
            second,
            dy,
            dx,
            dx if dx_2 is None else dx_2,
            *parameters,
            d_bias,
            d_weight,
            d_weight if d_weight_2 is None else d_weight_2,
            ctx.n_rows,
            *drop,
            *ctx.numbers,
            h,
            w,
            c,
            n,
            *ctx.flags,
            rows,
            cols,
            num_warps=4,
        )
        return dx, d_weight, d_bias, dx_2, d_weight_2, d_bias_2, None, None, None


# ── launching ────────────────────────────────────────────────────────────────────────────────


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def _matrix(x: Tensor) -> tuple[int, int]:
    """Numbers of rows and columns of an activation."""
    return x.numel() // x.shape[1], x.shape[1]


def _cols(c: int) -> int:
    """Columns of a tile: a power of two that divides the channels, unless that is too small."""
    common = min(BLOCK_C, c & -c)
    return common if common >= 16 else min(BLOCK_C, triton.next_power_of_2(c))


def _grid(m: int, c: int, rows: int) -> tuple[int]:
    return (triton.cdiv(m, rows) * triton.cdiv(c, _cols(c)),)


def _parts(m: int, c: int, rows: int) -> tuple[int, int]:
    """Numbers of tiles of so many rows, and of parts that the tiles are divided into."""
    n_tiles = triton.cdiv(m, rows)
    return n_tiles, min(n_tiles, max(1, N_PARTS // triton.cdiv(c, _cols(c))))


def _statistics_of(x: Tensor, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor, float]:
    """Mean and variance of each channel, and of how many rows; infinitely many if the statistics
    are constants. In train mode moves the running statistics as the module does."""
    running = (norm.running_mean, norm.running_var)
    if not norm.training:
        return *running, math.inf  # type: ignore[return-value]
    m, c = _matrix(x)
    n_tiles, n_parts = _parts(m, c, SUM_ROWS)
    partial = x.new_empty((2, n_parts, c), dtype=torch.float32)
    statistics = x.new_empty((2, c), dtype=torch.float32)
    cols, sizes = _cols(c), (m, c, n_tiles, n_parts, SUM_ROWS)
    _statistics[n_parts, triton.cdiv(c, cols)](x, partial, *sizes, cols, num_warps=8)
    changed = (*running, norm.num_batches_tracked, norm.momentum)
    _finish_statistics[(triton.cdiv(c, FINISH_COLS),)](
        partial, statistics, *changed, *sizes, N_PARTS, FINISH_COLS, num_warps=4
    )
    mean, var = statistics
    return mean, var, float(m)


def _sum_parts(partial: Tensor) -> list[Tensor]:
    """Gradients of bias and weight of one BatchNorm, or of two, from 2 or 3 sums."""
    n_sums, n_parts, c = partial.shape
    gradients = [partial.new_empty(c) for _ in range(2 * (n_sums - 1))]
    targets = (*gradients, *gradients)[:4]
    _finish_gradients[(triton.cdiv(c, FINISH_COLS),)](
        partial, *targets, c, n_parts, n_sums == 3, N_PARTS, FINISH_COLS, num_warps=4
    )
    return gradients
