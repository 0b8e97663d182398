"""Features of pictures, computed in batches by one thread: pictures of requests that arrive
together are embedded together, and those that somebody asks about come first."""

from __future__ import annotations

import itertools
import queue
import threading
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

MOST_TOGETHER = 16  # pictures; more would keep a single one waiting longer
ASKED, TAUGHT = 0, 1  # priorities
STOP = 2


@dataclass(order=True)
class _Item:
    priority: int
    number: int
    model: Any = field(compare=False)
    pixels: Any = field(compare=False)
    result: Future[np.ndarray] = field(compare=False)


class Embedder:
    def __init__(self) -> None:
        self._queue: queue.PriorityQueue[_Item] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._thread = threading.Thread(target=self._run, name="embedder", daemon=True)
        self._thread.start()

    def embed(self, model: Any, pixels: np.ndarray, priority: int) -> Future[np.ndarray]:
        """The features of one picture (float32), under a model on its device."""
        result: Future[np.ndarray] = Future()
        self._queue.put(_Item(priority, next(self._numbers), model, pixels, result))
        return result

    @property
    def waiting(self) -> int:
        return self._queue.qsize()

    def close(self) -> None:
        self._queue.put(_Item(STOP, next(self._numbers), None, None, Future()))
        self._thread.join()

    def _run(self) -> None:
        while (first := self._queue.get()).priority != STOP:
            batch, put_back = [first], []
            while len(batch) < MOST_TOGETHER:
                try:
                    item = self._queue.get_nowait()
                except queue.Empty:
                    break
                if item.priority == STOP or item.model is not first.model:
                    put_back.append(item)
                    break
                batch.append(item)
            for item in put_back:
                self._queue.put(item)
            self._embed(first.model, batch)

    def _embed(self, model: Any, batch: list[_Item]) -> None:
        wanted = [item for item in batch if item.result.set_running_or_notify_cancel()]
        if not wanted:
            return
        try:
            pixels = torch.from_numpy(np.stack([item.pixels for item in wanted]))
            features = model.embed(pixels).cpu().numpy()
        except Exception as error:
            for item in wanted:
                item.result.set_exception(error)
            return
        for item, vector in zip(wanted, features, strict=True):
            item.result.set_result(vector.copy())  # not a view that keeps the batch


class FeatureCache:
    """Features of pictures that were asked about lately, in memory only."""

    def __init__(self, most: int = 4096) -> None:
        self.most, self.hits, self.misses = most, 0, 0
        self._features: OrderedDict[tuple[str, int], np.ndarray] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, sha256: str, version: int) -> np.ndarray | None:
        with self._lock:
            found = self._features.get((sha256, version))
            if found is None:
                self.misses += 1
                return None
            self.hits += 1
            self._features.move_to_end((sha256, version))
            return found

    def put(self, sha256: str, version: int, features: np.ndarray) -> None:
        with self._lock:
            self._features[sha256, version] = features
            if len(self._features) > self.most:
                self._features.popitem(last=False)

    def clear(self) -> None:
        with self._lock:
            self._features.clear()
