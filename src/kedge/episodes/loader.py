"""Loads the images of a pool for training: from device memory if they fit, else read ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from jaxtyping import Int64
from torch import Tensor

from kedge.data.augment import ImagesOrMaps
from kedge.data.pools import Pool

N_THREADS, READ_AHEAD = 2, 8  # readers, and batches that are read before they are needed
UPLOAD_CHUNK = 4096  # images copied to the device at once: a file may be larger than host memory


class ImageLoader:
    """Batches of a pool's images on the device.

    All images stay on a GPU if they take less than half of its free memory; otherwise every batch
    is read from host memory or from the file.
    """

    def __init__(self, pool: Pool, device: torch.device) -> None:
        self.pool, self.images, self.device = pool, pool.table.images, device
        self.on_device = self._upload() if self._fits() else None  # all, in the order of the pool
        in_memory = device.type == "cpu" and isinstance(self.images, Tensor)
        self.resident = in_memory or self.on_device is not None
        # Where positions must be, so that fetching never waits for the device.
        self.index_device = torch.device("cpu") if self.on_device is None else device

    def _fits(self) -> bool:
        if self.device.type != "cuda":
            return False
        free, _ = torch.cuda.mem_get_info(self.device)
        row_bytes = self.images[0].numel() * self.images.dtype.itemsize
        return len(self.pool) * row_bytes < free // 2

    def _upload(self) -> ImagesOrMaps:
        shape = (len(self.pool), *self.images.shape[1:])
        uploaded = torch.empty(shape, dtype=self.images.dtype, device=self.device)
        chunks = zip(uploaded.split(UPLOAD_CHUNK), self.pool.rows.split(UPLOAD_CHUNK), strict=True)
        for chunk, rows in chunks:
            chunk.copy_(self.images[rows])
        return uploaded

    def fetch(self, positions: Int64[Tensor, " b"]) -> ImagesOrMaps:
        """Images at these positions of the pool; `positions` must be on `index_device`."""
        return self._send(self._read(positions))

    def stream(self, batches: Iterable[Int64[Tensor, " b"]]) -> Iterator[ImagesOrMaps]:
        """Fetch one batch after the other; threads read from a file while the device computes."""
        if self.resident:
            yield from map(self.fetch, batches)
            return
        pending: deque[Future[Tensor]] = deque()
        with ThreadPoolExecutor(N_THREADS, "kedge reads ahead") as readers:
            for positions in batches:
                pending.append(readers.submit(self._read, positions))
                if len(pending) > READ_AHEAD:
                    yield self._send(pending.popleft().result())
            while pending:
                yield self._send(pending.popleft().result())

    def _read(self, positions: Int64[Tensor, " b"]) -> ImagesOrMaps:
        if self.on_device is not None:
            return self.on_device.index_select(0, positions)
        rows = self.pool.rows[positions]
        if isinstance(self.images, Tensor):
            images = self.images.index_select(0, rows)
        else:
            images = self.images[rows]
        # A GPU copies from pinned memory while this process continues.
        return images.pin_memory() if self.device.type == "cuda" else images

    def _send(self, images: ImagesOrMaps) -> ImagesOrMaps:
        return images.to(self.device, non_blocking=True)
