"""From an uploaded file to its features: hash, decode in a worker, embed in a batch."""

from __future__ import annotations

import asyncio
import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from weakref import WeakValueDictionary

import numpy as np

from kedge.serve import decoding
from kedge.serve.active import Snapshot
from kedge.serve.decoding import DecodedPicture
from kedge.serve.embedding import Embedder, FeatureCache
from kedge.serve.limits import Limits, Rate
from kedge.serve.monitoring import Metrics
from kedge.serve.uploads import Upload

# Pictures in decoders: of one request, and of all requests of one client, so that others find one.
AT_ONCE, AT_ONCE_OF_CLIENT = 2, decoding.N_WORKERS - 1
MOST_STOPS = 3  # decoders that one request may end
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
        self.threads = ThreadPoolExecutor(decoding.N_WORKERS, "decoding")
        self.large = ThreadPoolExecutor(1, "decoding large pictures")
        self.bad = Rate(limits.bad_pictures)
        self.rate = Rate(limits.pictures_per_minute)
        self.rooms = WeakValueDictionary[str, asyncio.Semaphore]()  # by client

    def for_request(self, client: str, priority: int) -> RequestIntake:
        self.bad.check(client, "pictures that cannot be decoded")
        self.rate.check(client, "pictures")
        return RequestIntake(self, client, priority)

    def close(self) -> None:
        self.threads.shutdown(cancel_futures=True)
        self.large.shutdown(cancel_futures=True)
        self.embedder.close()
        decoding.close()


class RequestIntake:
    """The pictures of one request."""

    def __init__(self, shared: Intake, client: str, priority: int) -> None:
        self.shared, self.client, self.priority = shared, client, priority
        self.room, self.stops = asyncio.Semaphore(AT_ONCE), 0
        new = asyncio.Semaphore(AT_ONCE_OF_CLIENT)
        self.room_of_client = shared.rooms.setdefault(client, new)

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
        async with self.room, self.room_of_client:
            if self.stops >= MOST_STOPS or self.shared.bad.used_up(self.client):
                why = "not tried, since too many pictures of this request could not be decoded"
                return DecodedPicture(None, reason=why)
            suspect = self.shared.bad.level(self.client) > 0
            what = (upload.content, snapshot.model.image_spec, thumbnail, suspect)
            run = asyncio.get_running_loop().run_in_executor
            decoded = await run(self.shared.threads, decoding.decode_picture, *what)
            if decoded.reason == decoding.IS_LARGE:
                decoded = await run(self.shared.large, decoding.decode_large, *what)
        if decoded.stopped:
            self.stops += 1
            self.shared.bad.add(self.client)
        return decoded

    async def embed(self, decoded: DecodedPicture, snapshot: Snapshot) -> np.ndarray:
        assert decoded.pixels is not None
        future = self.shared.embedder.embed(snapshot.on_device, decoded.pixels, self.priority)
        return await asyncio.wrap_future(future)


async def digest(content: bytes) -> str:
    if len(content) < LARGE:
        return hashlib.sha256(content).hexdigest()
    return await asyncio.to_thread(lambda: hashlib.sha256(content).hexdigest())
