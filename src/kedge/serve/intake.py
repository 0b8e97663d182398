"""From an uploaded file to its features: hash, decode in a worker, embed in a batch."""

from __future__ import annotations

import asyncio
import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from kedge.serve import decoding
from kedge.serve.active import Snapshot
from kedge.serve.decoding import DecodedPicture
from kedge.serve.embedding import Embedder, FeatureCache
from kedge.serve.limits import Client, Limits, Rate
from kedge.serve.monitoring import Metrics
from kedge.serve.turns import Turns
from kedge.serve.uploads import Upload

AT_ONCE = 2  # pictures of one request in decoders, or waiting for them
LARGE = 1 << 20  # bytes, which are hashed in a thread


@dataclass(frozen=True)
class Taken:
    """A picture with its features, or why it is refused."""

    upload: Upload
    sha256: str
    features: np.ndarray | None = None
    decoded: DecodedPicture | None = None  # None: the features were in the cache
    version: int = 0  # of which the features are
    refused: str = ""


class Intake:
    """Shared by all requests."""

    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self.metrics, self.embedder, self.cache = metrics, Embedder(), FeatureCache()
        self.bad, self.trouble = Rate(limits.bad_pictures), Rate(1)
        self.turns = Turns(
            decoding.N_WORKERS, [each.most for each in decoding.ATTEMPTS], self.is_suspect
        )
        self.threads = ThreadPoolExecutor(decoding.N_WORKERS, "decoding")
        self.reading_again = ThreadPoolExecutor(2, "reading again")  # of stored pictures
        self.rate = Rate(limits.pictures_per_minute)

    def is_suspect(self, client: Client) -> bool:
        """Whether a picture of this client has taken long in the last minute, or ten of them could
        not be decoded."""
        return self.trouble.level(client) > 1

    def count(self, client: Client, decoded: DecodedPicture, attempt: int) -> None:
        """Note how an attempt to decode a client's picture went."""
        is_last = attempt == len(decoding.ATTEMPTS) - 1
        if decoded.stopped and is_last:
            self.bad.add(client)
        if decoded.stopped and attempt:
            trouble = 2.0  # of which 1 is left after a minute
        elif decoded.pixels is None and (is_last or not decoded.unfinished):
            trouble = 0.1
        else:
            return
        if not self.is_suspect(client):
            self.trouble.add(client, trouble)

    def for_request(self, client: Client, priority: int) -> RequestIntake:
        self.rate.check(client, "pictures")
        return RequestIntake(self, client, priority)

    def close(self) -> None:
        for threads in (self.threads, self.reading_again):
            threads.shutdown(cancel_futures=True)
        self.embedder.close()
        decoding.close()


class RequestIntake:
    """The pictures of one request."""

    def __init__(self, shared: Intake, client: Client, priority: int) -> None:
        self.shared, self.client, self.priority = shared, client, priority
        self.room = asyncio.Semaphore(AT_ONCE)

    async def take(self, upload: Upload, snapshot: Snapshot, sha256: str, keep: bool) -> Taken:
        """The features of a picture under the snapshot's version; with a thumbnail if it is to be
        kept. Those of pictures that are only asked about are cached."""
        if upload.refused:
            return Taken(upload, sha256, refused=upload.refused)
        self.shared.rate.add(self.client)
        cache = self.shared.cache
        found = None if keep else cache.get(sha256, snapshot.version)
        if found is not None:
            return Taken(upload, sha256, found)
        decoded = await self.decode(upload, snapshot, keep)
        if decoded.pixels is None:
            self.shared.metrics.count("kedge_pictures_refused_total")
            return Taken(upload, sha256, refused=decoded.reason)
        features = await self.embed(decoded, snapshot)
        if not keep:
            cache.put(sha256, snapshot.version, features)
        return Taken(upload, sha256, features, decoded, snapshot.version)

    async def decode(self, upload: Upload, snapshot: Snapshot, thumbnail: bool) -> DecodedPicture:
        what = upload.content, snapshot.model.image_spec, thumbnail
        async with self.room:
            for n in range(decoding.first_attempt(upload.content), len(decoding.ATTEMPTS)):
                decoded = await self._attempt(n, *what)
                if not decoded.unfinished:
                    break
        return decoded

    async def _attempt(self, n: int, *what: Any) -> DecodedPicture:
        async with self.shared.turns.turn(self.client, self, n):
            if n and (wait := self.shared.bad.used_up(self.client)):
                why = f"not tried, after too many that take too long; wait {wait:.0f} s"
                return DecodedPicture(None, reason=why)
            run = asyncio.get_running_loop().run_in_executor
            work = run(self.shared.threads, partial(self._decode_and_count, n, *what))
            try:
                return await asyncio.shield(work)
            except asyncio.CancelledError:  # the sender has gone, but the decoder has not
                await asyncio.wait([work])
                raise

    def _decode_and_count(self, n: int, *what: Any) -> DecodedPicture:
        decoded = decoding.attempt(n, *what)
        self.shared.count(self.client, decoded, n)
        return decoded

    async def embed(self, decoded: DecodedPicture, snapshot: Snapshot) -> np.ndarray:
        assert decoded.pixels is not None
        future = self.shared.embedder.embed(snapshot.on_device, decoded.pixels, self.priority)
        return await asyncio.wrap_future(future)


async def digest(content: bytes) -> str:
    if len(content) < LARGE:
        return hashlib.sha256(content).hexdigest()
    return await asyncio.to_thread(lambda: hashlib.sha256(content).hexdigest())
