"""Batch normalization and activation."""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from kedge.kernels.common import (
    FINISH_COLS,
    N_PARTS,
    NORM_ROWS,
    SUM_ROWS,
    affine,
    as_matrix,
    channels_last,
    grid_of,
    input_gradient,
    jit,
    leaky,
    load,
    normalization,
    own_tile,
    split_rows,
    sum_parts,
    tile_cols,
)


def norm_act(
    x: Tensor, norm: nn.BatchNorm2d, slope: float = 1.0, upper: float = math.inf
) -> Tensor:
    """min(leaky_relu(norm(x)), upper), as the modules compute it in their current mode. By default
    there is no activation."""
    return _NormAct.apply(x, norm.weight, norm.bias, norm, slope, upper)


class _NormAct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        norm: nn.BatchNorm2d,
        slope: float,
        upper: float,
    ) -> Tensor:
        x = channels_last(x)
        mean, var, ctx.n_rows = statistics_of(x, norm)
        ctx.save_for_backward(x, mean, var, weight, bias)
        ctx.numbers = (norm.eps, slope, upper, *as_matrix(x))
        y = torch.empty_like(x)
        rows, cols = NORM_ROWS, tile_cols(x.shape[1])
        _norm_act[grid_of(*as_matrix(x), rows)](
            x, y, mean, var, weight, bias, *ctx.numbers, rows, cols, num_warps=4
        )
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, *parameters = ctx.saved_tensors
        dy, (m, c), cols = channels_last(dy), as_matrix(x), tile_cols(x.shape[1])
        n_tiles, n_parts = split_rows(m, c, SUM_ROWS)
        partial = x.new_empty((2, n_parts, c), dtype=torch.float32)
        sizes = (n_tiles, n_parts, SUM_ROWS, cols)
        _sum_norm_act_gradient[n_parts, triton.cdiv(c, cols)](
            x, dy, partial, *parameters, *ctx.numbers, *sizes, num_warps=8
        )
        d_bias, d_weight = sum_parts(partial)
        dx, gradients = torch.empty_like(x), (d_bias, d_weight, ctx.n_rows)
        _norm_act_gradient[grid_of(m, c, NORM_ROWS)](
            x, dy, dx, *parameters, *gradients, *ctx.numbers, NORM_ROWS, cols, num_warps=4
        )
        return dx, d_weight, d_bias, None, None, None


def statistics_of(x: Tensor, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor, float]:
    """Mean and variance of each channel, and the number of rows they come from: infinitely many if
    the statistics are constants. In train mode moves the running statistics as the module does."""
    running = (norm.running_mean, norm.running_var)
    if not norm.training:
        return *running, math.inf  # type: ignore[return-value]
    m, c = as_matrix(x)
    n_tiles, n_parts = split_rows(m, c, SUM_ROWS)
    partial = x.new_empty((2, n_parts, c), dtype=torch.float32)
    statistics = x.new_empty((2, c), dtype=torch.float32)
    cols, sizes = tile_cols(c), (m, c, n_tiles, n_parts, SUM_ROWS)
    _statistics[n_parts, triton.cdiv(c, cols)](x, partial, *sizes, cols, num_warps=8)
    changed = (*running, norm.num_batches_tracked, norm.momentum)
    _finish_statistics[(triton.cdiv(c, FINISH_COLS),)](
        partial, statistics, *changed, *sizes, N_PARTS, FINISH_COLS, num_warps=4
    )
    mean, var = statistics
    return mean, var, float(m)


@jit
def _statistics(x, partial, M, C, n_tiles, n_parts, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Mean and sum of squared deviations of each channel over the tiles of one part.

    Starts from the last tile, which the convolution has written last and the cache may still have.
    """
    part = tl.program_id(0)
    cols = tl.program_id(1) * COLS + tl.arange(0, COLS)
    in_c = cols < C
    # Deviations from any value of the channel: sums of raw squares would cancel.
    shift = load(x + (n_tiles - 1 - part) * ROWS * C + cols, in_c)
    total = tl.zeros([ROWS, COLS], tl.float32)
    squares = tl.zeros([ROWS, COLS], tl.float32)
    for tile in range(part, n_tiles, n_parts):
        rows = (n_tiles - 1 - tile) * ROWS + tl.arange(0, ROWS)
        mask = (rows < M)[:, None] & in_c[None, :]
        value = load(x + rows[:, None] * C + cols[None, :], mask)
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
    """How many rows the tiles of a part have. Only the tile with the last rows of the matrix can be
    incomplete; tiles are counted from the end, so it belongs to part 0."""
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
    means = load(partial + offsets, mask)
    deviations = load(partial + n_parts * C + offsets, mask)
    n = tl.where(parts < n_parts, _rows_of_part(parts, M, n_tiles, n_parts, ROWS), 0.0)[:, None]
    mean = tl.sum(n * means, 0) / M
    between = means - mean[None, :]
    total = tl.sum(deviations + n * between * between, 0)
    tl.store(statistics + cols, mean, mask=in_c)
    tl.store(statistics + C + cols, total / M, mask=in_c)
    old_mean, old_var = load(running_mean + cols, in_c), load(running_var + cols, in_c)
    tl.store(running_mean + cols, old_mean + momentum * (mean - old_mean), mask=in_c)
    tl.store(running_var + cols, old_var + momentum * (total / (M - 1) - old_var), mask=in_c)
    if tl.program_id(0) == 0:
        tl.store(counter, tl.load(counter) + 1)


@jit
def _norm_act(
    x, y, mean, var, weight, bias, eps, slope, upper, M, C, ROWS: tl.constexpr, COLS: tl.constexpr
):
    """y = min(leaky(batch norm of x), upper)."""
    rows, cols = own_tile(C, ROWS, COLS)
    in_c = cols < C
    mask = (rows < M)[:, None] & in_c[None, :]
    offsets = rows[:, None] * C + cols[None, :]
    value = load(x + offsets, mask)
    mean, rstd, weight, bias = normalization(mean, var, weight, bias, cols, in_c, eps)
    z = affine(value, mean, rstd, weight, bias)
    z = leaky(z, slope)
    z = tl.where(z > upper, upper, z)  # unlike a minimum, keeps NaN
    tl.store(y + offsets, z.to(y.dtype.element_ty), mask=mask)


@triton.jit
def _activation_gradient(z, gradient, slope, upper):
    return tl.where(z > 0, tl.where(z < upper, gradient, 0.0), gradient * slope)


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
    upper,
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
    mean, rstd, weight, bias = normalization(mean, var, weight, bias, cols, in_c, eps)
    total = tl.zeros([ROWS, COLS], tl.float32)
    product = tl.zeros([ROWS, COLS], tl.float32)
    for tile in range(part, n_tiles, n_parts):
        rows = (n_tiles - 1 - tile) * ROWS + tl.arange(0, ROWS)
        mask = (rows < M)[:, None] & in_c[None, :]
        offsets = rows[:, None] * C + cols[None, :]
        value, gradient = load(x + offsets, mask), load(dy + offsets, mask)  # 0 outside
        z = affine(value, mean, rstd, weight, bias)
        dz = _activation_gradient(z, gradient, slope, upper)
        total += dz
        product += dz * (value - mean[None, :])
    tl.store(partial + part * C + cols, tl.sum(total, 0), mask=in_c)
    tl.store(partial + (n_parts + part) * C + cols, tl.sum(product, 0) * rstd, mask=in_c)


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
    upper,
    M,
    C,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    """dx, given the gradients of weight and bias."""
    rows, cols = own_tile(C, ROWS, COLS)
    in_c = cols < C
    mask = (rows < M)[:, None] & in_c[None, :]
    offsets = rows[:, None] * C + cols[None, :]
    value, gradient = load(x + offsets, mask), load(dy + offsets, mask)
    mean, rstd, weight, bias = normalization(mean, var, weight, bias, cols, in_c, eps)
    z = affine(value, mean, rstd, weight, bias)
    dz = _activation_gradient(z, gradient, slope, upper)
    d_bias, d_weight = load(d_bias + cols, in_c), load(d_weight + cols, in_c)
    result = input_gradient(value, dz, mean, rstd, weight, d_bias, d_weight, n_rows)
    tl.store(dx + offsets, result.to(dx.dtype.element_ty), mask=mask)
