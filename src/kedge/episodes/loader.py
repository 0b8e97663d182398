"""The pixels of a pool, where a training step finds them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from kedge.data.pools import Pool

READERS, AHEAD = 2, 8  # threads, and batches that are read before they are needed
PORTION = 4096  # images that are moved to the device at once


class ImageLoader:
    """The pixels of a pool: on the device if they fit there, otherwise read batch by batch."""

    def __init__(self, pool: Pool, device: torch.device) -> None:
        self.pool, self.images, self.device = pool, pool.table.images, device
        self.on_device = self._moved() if self._fit() else None  # all, in the order of the pool
        in_memory = device.type == "cpu" and isinstance(self.images, Tensor)
        self.resident = in_memory or self.on_device is not None
        self.place = torch.device("cpu") if self.on_device is None else device  # of positions

    def _fit(self) -> bool:
        if self.device.type != "cuda":
            return False
        free, _ = torch.cuda.mem_get_info(self.device)
        return len(self.pool) * self.images[0].numel() < free // 2

    def _moved(self) -> UInt8[Tensor, "n c h w"]:
        """Some at a time, since the file may be larger than our own memory."""
        shape = (len(self.pool), *self.images.shape[1:])
        moved = torch.empty(shape, dtype=torch.uint8, device=self.device)
        for place, rows in zip(moved.split(PORTION), self.pool.rows.split(PORTION), strict=True):
            place.copy_(self.images[rows])
        return moved

    def fetch(self, positions: Int64[Tensor, " b"]) -> UInt8[Tensor, "b c h w"]:
        """`positions` lie at `place`, so that nothing waits for the device."""
        return self._sent(self._read(positions))

    def stream(self, batches: Iterable[Int64[Tensor, " b"]]) -> Iterator[UInt8[Tensor, "b c h w"]]:
        """One batch after the other. What is in a file is read while the device computes."""
        if self.resident:
            yield from map(self.fetch, batches)
            return
        coming: deque[Future[Tensor]] = deque()
        with ThreadPoolExecutor(READERS, "kedge reads ahead") as readers:
            for positions in batches:
                coming.append(readers.submit(self._read, positions))
                if len(coming) > AHEAD:
                    yield self._sent(coming.popleft().result())
            while coming:
                yield self._sent(coming.popleft().result())

    def _read(self, positions: Int64[Tensor, " b"]) -> UInt8[Tensor, "b c h w"]:
        if self.on_device is not None:
            return self.on_device.index_select(0, positions)
        rows = self.pool.rows[positions]
        if isinstance(self.images, Tensor):
            pixels = self.images.index_select(0, rows)
        else:
            pixels = self.images[rows]
        # From pinned memory a GPU fetches by itself, while this process goes on.
        return pixels.pin_memory() if self.device.type == "cuda" else pixels

    def _sent(self, pixels: UInt8[Tensor, "b c h w"]) -> UInt8[Tensor, "b c h w"]:
        return pixels.to(self.device, non_blocking=True)
