"""Kernels of the end of a block, with z = norm(x) + norm(shortcut) and
y = leaky(maximum of 2×2 of z) · kept · numel / n_kept.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kedge.kernels.common import affine, input_gradient, jit, leaky, load, normalization, own_tile


@triton.jit
def window(rows, height, width, H, W, C):
    """Image rows, columns and first offset of 2×2 windows, which are `height` × `width`."""
    top = rows // width % height * 2
    left = rows % width * 2
    return top, left, ((rows // (width * height) * H + top) * W + left) * C


@triton.jit
def exceeds(value, best):
    """As in PyTorch the first maximum counts, and NaN is larger than all."""
    return (value > best) | (value != value)


@triton.jit
def drop_scale(n_kept, numel):
    return numel / tl.maximum(tl.load(n_kept), 1).to(tl.float32)


@jit
def pool_act_kernel(
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
    rows, cols = own_tile(C, ROWS, COLS)
    in_c = cols < C
    mask = (rows < M)[:, None] & in_c[None, :]
    _, _, first = window(rows, H // 2, W // 2, H, W, C)
    offsets = first[:, None] + cols[None, :]
    mean, rstd, weight, bias = normalization(mean, var, weight, bias, cols, in_c, eps)
    if SHORTCUT:
        mean_2, rstd_2, weight_2, bias_2 = normalization(
            mean_2, var_2, weight_2, bias_2, cols, in_c, eps
        )
    best = tl.full([ROWS, COLS], float("-inf"), tl.float32)
    for k in tl.static_range(4):
        at = offsets + (k // 2 * W + k % 2) * C
        z = affine(load(x + at, mask), mean, rstd, weight, bias)
        if SHORTCUT:
            z += affine(load(x_2 + at, mask), mean_2, rstd_2, weight_2, bias_2)
        best = tl.where(exceeds(z, best), z, best)
    result = leaky(best, slope)
    at = rows[:, None] * C + cols[None, :]
    if DROP:
        result *= tl.load(kept + at, mask=mask, other=0).to(tl.float32) * drop_scale(n_kept, numel)
    tl.store(y + at, result.to(y.dtype.element_ty), mask=mask)


@jit
def sum_gradient_kernel(
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
    mean, rstd, weight, bias = normalization(mean, var, weight, bias, cols, in_c, eps)
    total = tl.zeros([ROWS, COLS], tl.float32)
    product = tl.zeros([ROWS, COLS], tl.float32)
    product_2 = tl.zeros([ROWS, COLS], tl.float32)
    if SHORTCUT:
        mean_2, rstd_2, weight_2, bias_2 = normalization(
            mean_2, var_2, weight_2, bias_2, cols, in_c, eps
        )
    if DROP:
        scale = drop_scale(n_kept, numel)
    for tile in range(part, n_tiles, n_parts):
        rows = (n_tiles - 1 - tile) * ROWS + tl.arange(0, ROWS)
        mask = (rows < M)[:, None] & in_c[None, :]
        _, _, first = window(rows, H // 2, W // 2, H, W, C)
        offsets = first[:, None] + cols[None, :]
        best = tl.full([ROWS, COLS], float("-inf"), tl.float32)
        chosen = tl.zeros([ROWS, COLS], tl.float32)
        chosen_2 = tl.zeros([ROWS, COLS], tl.float32)
        for k in tl.static_range(4):
            at = offsets + (k // 2 * W + k % 2) * C
            value = load(x + at, mask)
            z = affine(value, mean, rstd, weight, bias)
            if SHORTCUT:
                value_2 = load(x_2 + at, mask)
                z += affine(value_2, mean_2, rstd_2, weight_2, bias_2)
            larger = exceeds(z, best)
            best = tl.where(larger, z, best)
            chosen = tl.where(larger, value, chosen)
            if SHORTCUT:
                chosen_2 = tl.where(larger, value_2, chosen_2)
        at = rows[:, None] * C + cols[None, :]
        dz = load(dy + at, mask)
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
def gradient_kernel(
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
    rows, cols = own_tile(C, ROWS, COLS)
    in_c = cols < C
    height, width = (H + 1) // 2, (W + 1) // 2
    top, left, first = window(rows, height, width, H, W, C)
    in_m = rows < n_images * height * width
    offsets = first[:, None] + cols[None, :]
    right, below = left + 1 < W, top + 1 < H
    mask_0 = in_m[:, None] & in_c[None, :]
    mask_1 = (in_m & right)[:, None] & in_c[None, :]
    mask_2 = (in_m & below)[:, None] & in_c[None, :]
    pooled = (in_m & right & below)[:, None] & in_c[None, :]
    at_0, at_1, at_2 = offsets, offsets + C, offsets + W * C
    at_3 = at_2 + C
    value_0, value_1 = load(x + at_0, mask_0), load(x + at_1, mask_1)
    value_2, value_3 = load(x + at_2, mask_2), load(x + at_3, pooled)
    mean, rstd, weight, bias = normalization(mean, var, weight, bias, cols, in_c, eps)
    z_0 = affine(value_0, mean, rstd, weight, bias)
    z_1 = affine(value_1, mean, rstd, weight, bias)
    z_2 = affine(value_2, mean, rstd, weight, bias)
    z_3 = affine(value_3, mean, rstd, weight, bias)
    if SHORTCUT:
        other_0, other_1 = load(x_2 + at_0, mask_0), load(x_2 + at_1, mask_1)
        other_2, other_3 = load(x_2 + at_2, mask_2), load(x_2 + at_3, pooled)
        mean_2, rstd_2, weight_2, bias_2 = normalization(
            mean_2, var_2, weight_2, bias_2, cols, in_c, eps
        )
        z_0 += affine(other_0, mean_2, rstd_2, weight_2, bias_2)
        z_1 += affine(other_1, mean_2, rstd_2, weight_2, bias_2)
        z_2 += affine(other_2, mean_2, rstd_2, weight_2, bias_2)
        z_3 += affine(other_3, mean_2, rstd_2, weight_2, bias_2)
    larger = exceeds(z_1, z_0)
    best, chosen = tl.where(larger, z_1, z_0), tl.where(larger, 1, 0)
    larger = exceeds(z_2, best)
    best, chosen = tl.where(larger, z_2, best), tl.where(larger, 2, chosen)
    larger = exceeds(z_3, best)
    best, chosen = tl.where(larger, z_3, best), tl.where(larger, 3, chosen)

    output = (rows // (width * height) * (H // 2) + top // 2) * (W // 2) + left // 2
    at = output[:, None] * C + cols[None, :]
    dz = load(dy + at, pooled)
    if DROP:
        dz *= tl.load(kept + at, mask=pooled, other=0).to(tl.float32) * drop_scale(n_kept, numel)
    dz = tl.where(best > 0, dz, dz * slope)
    dz_0, dz_1 = tl.where(chosen == 0, dz, 0.0), tl.where(chosen == 1, dz, 0.0)
    dz_2, dz_3 = tl.where(chosen == 2, dz, 0.0), tl.where(chosen == 3, dz, 0.0)

    d_bias, d_weight = load(d_bias + cols, in_c), load(d_weight + cols, in_c)
    result = input_gradient(value_0, dz_0, mean, rstd, weight, d_bias, d_weight, n_rows)
    tl.store(dx + at_0, result.to(dx.dtype.element_ty), mask=mask_0)
    result = input_gradient(value_1, dz_1, mean, rstd, weight, d_bias, d_weight, n_rows)
    tl.store(dx + at_1, result.to(dx.dtype.element_ty), mask=mask_1)
    result = input_gradient(value_2, dz_2, mean, rstd, weight, d_bias, d_weight, n_rows)
    tl.store(dx + at_2, result.to(dx.dtype.element_ty), mask=mask_2)
    result = input_gradient(value_3, dz_3, mean, rstd, weight, d_bias, d_weight, n_rows)
    tl.store(dx + at_3, result.to(dx.dtype.element_ty), mask=pooled)
    if SHORTCUT:
        d_weight_2 = load(d_weight_2 + cols, in_c)
        result = input_gradient(other_0, dz_0, mean_2, rstd_2, weight_2, d_bias, d_weight_2, n_rows)
        tl.store(dx_2 + at_0, result.to(dx.dtype.element_ty), mask=mask_0)
        result = input_gradient(other_1, dz_1, mean_2, rstd_2, weight_2, d_bias, d_weight_2, n_rows)
        tl.store(dx_2 + at_1, result.to(dx.dtype.element_ty), mask=mask_1)
        result = input_gradient(other_2, dz_2, mean_2, rstd_2, weight_2, d_bias, d_weight_2, n_rows)
        tl.store(dx_2 + at_2, result.to(dx.dtype.element_ty), mask=mask_2)
        result = input_gradient(other_3, dz_3, mean_2, rstd_2, weight_2, d_bias, d_weight_2, n_rows)
        tl.store(dx_2 + at_3, result.to(dx.dtype.element_ty), mask=pooled)
