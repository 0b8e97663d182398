"""What a request may ask for, and how a request is refused."""

from __future__ import annotations

import functools
import ipaddress
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from kedge.errors import KedgeError
from kedge.utils.text import format_bytes

MOST_CLIENTS = 10_000  # whose rates are remembered


class Refused(KedgeError):
    """A request that cannot be served, with its HTTP status and one sentence."""

    def __init__(self, status: int, sentence: str, retry_after: float = 0.0) -> None:
        super().__init__(sentence)
        self.status = status
        self.retry_after = retry_after  # seconds; 0: not said


class Client(NamedTuple):
    """Whose limits and turns a request counts for; nobody can make these up at will, as sessions
    and connections can be."""

    token: str  # its role; the same for all where no token is asked for
    network: str


@functools.lru_cache(MOST_CLIENTS)
def network_of(address: str) -> str:
    """The address itself, or the network of it that one machine may have all addresses of: the
    loopback network, and a /64 of IPv6."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if parsed.version == 6 and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    if parsed.is_loopback:
        return "loopback"
    if parsed.version == 4:
        return str(parsed)
    return str(ipaddress.IPv6Network((int(parsed), 64), strict=False))


@dataclass(frozen=True)
class Limits:
    """Limits on requests. The defaults suit one machine and photographs of telephones."""

    picture_bytes: int = 32 << 20
    request_bytes: int = 1 << 30
    request_pictures: int = 500
    json_bytes: int = 1 << 16
    uploads_bytes: int = 512 << 20  # of all pictures that are being received and decoded
    quota: int = 20 << 30  # bytes of the project folder
    free_bytes: int = 1 << 29  # that must stay free on the disk
    silence: float = 10.0  # seconds without a byte after which a sender is cut off
    least_rate: float = 20_000.0  # bytes per second, on average, after the first `silence` seconds
    bad_pictures: int = 10  # that may be given up, per minute and client
    wrong_tokens: int = 10  # per minute and client
    pictures_per_minute: int = 0  # per client; 0: no limit


class Rate:
    """Counts per minute and client; a client's count falls evenly with time (a leaky bucket)."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._counts: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    def used_up(self, client: Hashable) -> float:
        """The seconds that the client has to wait; 0 if it need not. A rate of 0 is no limit."""
        level = self.level(client)
        return (level - self.most + 1) * 60 / self.most if level > self.most - 0.5 > 0 else 0.0

    def check(self, client: Hashable, what: str) -> None:
        """Raise Refused if the client has used up its rate."""
        if wait := self.used_up(client):
            raise Refused(429, f"Too many {what}; wait {wait:.0f} s and try again.", wait)

    def add(self, client: Hashable, n: float = 1) -> None:
        if not self.most:
            return
        with self._lock:
            self._counts[client] = (self._level(client) + n, time.monotonic())
            self._counts.move_to_end(client)
            if len(self._counts) > MOST_CLIENTS:
                self._counts.popitem(last=False)

    def level(self, client: Hashable) -> float:
        """The client's count, which falls with time."""
        with self._lock:
            return self._level(client)

    def _level(self, client: Hashable) -> float:
        level, since = self._counts.get(client, (0.0, 0.0))
        return max(0.0, level - (time.monotonic() - since) * self.most / 60)


class Budget:
    """Bytes that all requests may hold together; those of one client may hold half of them."""

    def __init__(self, most: int) -> None:
        self.most, self.used = most, 0
        self._of_client = Counter[Client]()
        self._lock = threading.Lock()

    def change(self, client: Client, n: int) -> None:
        with self._lock:
            own = self._of_client[client] + n
            if n > 0 and (self.used + n > self.most or own > self.most // 2):
                raise Refused(503, "The server is receiving too much at once; try again soon.", 2)
            self.used += n
            self._of_client[client] = own
            if not own:
                del self._of_client[client]

    @contextmanager
    def holding(self, client: Client) -> Iterator[Held]:
        """Bytes that are given back in the end, whatever happens."""
        held = Held(self, client)
        try:
            yield held
        finally:
            held.set(0)


class Held:
    """The part of a budget that one request holds."""

    def __init__(self, budget: Budget, client: Client) -> None:
        self.budget, self.client, self.n = budget, client, 0

    def set(self, n: int) -> None:
        self.budget.change(self.client, n - self.n)
        self.n = n


def too_large(what: str, most: int) -> Refused:
    return Refused(413, f"{what} is larger than {format_bytes(most)}, which is the limit.")
