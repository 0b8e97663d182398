"""The end of a convolutional block: normalization, shortcut, max-pooling, activation, DropBlock."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from kedge.kernels.common import POOL_ROWS, channels_last, grid_of, split_rows, sum_parts, tile_cols
from kedge.kernels.norm_act import statistics_of
from kedge.kernels.pool_kernels import gradient_kernel, pool_act_kernel, sum_gradient_kernel


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
        x = second = channels_last(x)
        mean, var, ctx.n_rows = statistics_of(x, norms[0])
        first: tuple[Any, ...] = (mean, var, weight, bias)
        parameters = first * 2
        if shortcut is not None:
            second = channels_last(shortcut)
            mean, var, _ = statistics_of(second, norms[1])
            parameters = (*first, mean, var, weight_2, bias_2)
        ctx.save_for_backward(x, second, *parameters, *(drop or ()))
        ctx.flags = (shortcut is not None, drop is not None)
        n, c, h, w = x.shape
        h, w = h // 2, w // 2
        ctx.numbers = (n * c * h * w, norms[0].eps, slope)
        y = x.new_empty((n, h, w, c)).permute(0, 3, 1, 2)
        m, rows = n * h * w, POOL_ROWS
        pool_act_kernel[grid_of(m, c, rows)](
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
            tile_cols(c),
            num_warps=4,
        )
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, second, *rest = ctx.saved_tensors
        parameters, drop = rest[:8], rest[8:] or (x, x)
        dy, (n, c, h, w), rows = channels_last(dy), x.shape, POOL_ROWS
        cols, has_shortcut, m = tile_cols(c), ctx.flags[0], n * (h // 2) * (w // 2)
        n_tiles, n_parts = split_rows(m, c, rows)
        partial = x.new_empty((2 + has_shortcut, n_parts, c), dtype=torch.float32)
        sum_gradient_kernel[n_parts, triton.cdiv(c, cols)](
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
        d_bias, d_weight, *others = sum_parts(partial)
        d_bias_2, d_weight_2 = others or (None, None)
        dx = torch.empty_like(x)
        dx_2 = torch.empty_like(x) if has_shortcut else None
        gradient_kernel[grid_of(n * ((h + 1) // 2) * ((w + 1) // 2), c, rows)](
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
