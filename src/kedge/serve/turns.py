"""Places for work that takes long, which waiting clients get in turn."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from kedge.serve.limits import MOST_CLIENTS, Client

Key = tuple[int, ...]


@dataclass(eq=False)
class _Waiting:
    client: Client
    request: object
    attempt: int
    number: int
    admitted: asyncio.Future[None] = field(default_factory=asyncio.Future)


class Turns:
    """A number of places, and who gets the next one: first the token with the fewest places, then
    the network of that token with the fewest, then its first attempts, then its request with the
    fewest. Among equals it is the one whose last turn is longest ago, and the request that came
    first.

    So who makes up addresses or requests gets no more turns than its token has, and who has one
    address no more than that has. One token has at most `most[n]` places for n-th and later
    attempts, so that others need not wait for what it has begun, nor its own first attempts for
    long ones. Suspects come after all others.
    """

    def __init__(
        self,
        places: int,
        most: Sequence[int],
        suspect: Callable[[Client], bool] = lambda _: False,
    ) -> None:
        self.places = self._free = places
        self._most = most
        self._suspect = suspect
        self._waiting: list[_Waiting] = []
        self._taken = Counter[Hashable]()  # places by token, by client and by request
        self._last = OrderedDict[Hashable, int]()  # the last turn of tokens and clients
        self._numbers = itertools.count(1)

    @asynccontextmanager
    async def turn(self, client: Client, request: object, attempt: int) -> AsyncIterator[None]:
        """Wait for a place, and have it. `request` tells requests of one client apart."""
        waiting = _Waiting(client, request, attempt, next(self._numbers))
        self._waiting.append(waiting)
        self._admit()
        try:
            await waiting.admitted
            yield
        finally:
            if waiting in self._waiting:  # cancelled before it was its turn
                self._waiting.remove(waiting)
            else:
                self._count(waiting, -1)
                self._admit()

    def _admit(self) -> None:
        while self._free:
            may = [each for each in self._waiting if self._may(each)]
            if not may:
                return
            chosen = min(may, key=self._order)
            self._waiting.remove(chosen)
            self._count(chosen, 1)
            turn = next(self._numbers)
            for key in (chosen.client.token, chosen.client):
                self._last[key] = turn
                self._last.move_to_end(key)
            while len(self._last) > MOST_CLIENTS:
                self._last.popitem(last=False)
            if not chosen.admitted.done():
                chosen.admitted.set_result(None)

    def _may(self, waiting: _Waiting) -> bool:
        token, most = waiting.client.token, self._most
        return all(self._taken[token, n] < most[n] for n in range(waiting.attempt + 1))

    def _order(self, waiting: _Waiting) -> Key:
        taken, last = self._taken, self._last
        token, client = waiting.client.token, waiting.client
        return (
            self._suspect(client),
            *(taken[token], last.get(token, 0)),
            *(taken[client], last.get(client, 0)),
            *(waiting.attempt, taken[id(waiting.request)], waiting.number),
        )

    def _count(self, waiting: _Waiting, change: int) -> None:
        self._free -= change
        token, client = waiting.client.token, waiting.client
        levels = ((token, n) for n in range(waiting.attempt + 1))
        for key in (token, client, id(waiting.request), *levels):
            self._taken[key] += change
            if not self._taken[key]:
                del self._taken[key]
