"""DropBlock's mask."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kedge.kernels.common import jit, tile_cols

STRIP, MASK_PIXELS = 12, 16  # rows and columns of a mask that one program makes


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
    cols = tile_cols(c)
    grid = (triton.cdiv(w, MASK_PIXELS) * triton.cdiv(c, cols), triton.cdiv(h, STRIP), b)
    sizes = (h, w, c, block, STRIP, max_block, MASK_PIXELS, cols)
    _drop_block_mask[grid](drawn, kept, n_kept, gamma, *sizes, num_warps=4)
    return kept, n_kept


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
