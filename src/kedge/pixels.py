"""The pixels of a pool, where a training step finds them."""

from __future__ import annotations

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from kedge.pools import Pool


class Pixels:
    """The pixels of a pool: on the device if they fit there, otherwise fetched batch by batch."""

    def __init__(self, pool: Pool, device: torch.device) -> None:
        self.rows, self.pixels, self.device = pool.rows, pool.table.images, device
        self.resident = device.type == "cpu"
        if device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(device)
            if len(pool) * self.pixels[0].numel() < free // 2:
                self.pixels = self.pixels[self.rows].to(device)
                self.rows = torch.arange(len(pool), device=device)
                self.resident = True

    def fetch(self, positions: Int64[Tensor, " b"]) -> UInt8[Tensor, "b c h w"]:
        """`positions` lie where the rows do, so that nothing waits for the device."""
        rows = self.rows[positions]
        if isinstance(self.pixels, Tensor):
            return self.pixels.index_select(0, rows).to(self.device, non_blocking=True)
        return self.pixels[rows].to(self.device, non_blocking=True)
