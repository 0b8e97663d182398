"""Places for work that takes long, which waiting clients get in turn."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from kedge.serve.limits import MOST_CLIENTS, Client

OVERHEAD = 0.01  # seconds that every turn counts for, however short


class Group(NamedTuple):
    """What waits alike."""

    client: Client
    attempt: int


@dataclass(eq=False)
class _Waiting:
    group: Group
    request: int
    number: int
    admitted: asyncio.Future[None] = field(default_factory=asyncio.Future)
    since: float = 0.0  # when it was admitted


class Served:
    """How many seconds each of those who compete has been served.

    Nobody has less than the least of those who were waiting when a place was last given: turns can
    neither be saved up, nor are those held against anybody that nobody else wanted.
    """

    def __init__(self) -> None:
        self._seconds, self._least = OrderedDict[str, float](), 0.0

    def level(self, name: str) -> float:
        return max(self._seconds.get(name, 0.0), self._least)

    def chosen_among(self, names: Iterable[str]) -> None:
        self._least = min(map(self.level, names))

    def add(self, name: str, seconds: float) -> None:
        self._seconds[name] = self.level(name) + seconds
        self._seconds.move_to_end(name)
        if len(self._seconds) > MOST_CLIENTS:
            self._seconds.popitem(last=False)


class Turns:
    """A number of places, and who gets the next one: first the token with the fewest places, then
    the network of that token with the fewest, then its first attempts, then its request with the
    fewest. Among equals it is the one who has been served for the shortest time, and the request
    that came first.

    So who makes up addresses or requests gets no more time than its token has, and who has one
    address no more than that has. One token has at most `most[n]` places for n-th and later
    attempts, so that others need not wait for what it has begun, nor its own first attempts for
    long ones. Suspects come after all others.
    """

    def __init__(
        self,
        places: int,
        most: Sequence[int],
        suspect: Callable[[Client], bool] = lambda _: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._free, self._most, self._suspect, self._clock = places, most, suspect, clock
        self._waiting: dict[Group, list[_Waiting]] = {}  # the first is the one that came first
        self._taken = Counter[Hashable]()  # places by token, attempt, client and request
        self._tokens, self._networks = Served(), defaultdict[str, Served](Served)
        self._numbers = itertools.count()

    @asynccontextmanager
    async def turn(self, client: Client, request: object, attempt: int) -> AsyncIterator[None]:
        """Wait for a place, and have it. `request` tells requests of one client apart."""
        waiting = _Waiting(Group(client, attempt), id(request), next(self._numbers))
        self._waiting.setdefault(waiting.group, []).append(waiting)
        self._admit()
        try:
            await waiting.admitted
            yield
        finally:
            if waiting in self._waiting.get(waiting.group, ()):  # cancelled before it was its turn
                self._remove(waiting)
            else:
                self._count(waiting, -1)
                seconds = self._clock() - waiting.since + OVERHEAD
                self._tokens.add(client.token, seconds)
                self._networks[client.token].add(client.network, seconds)
                self._admit()

    def _admit(self) -> None:
        while self._free and (groups := [group for group in self._waiting if self._may(group)]):
            group = min(groups, key=self._order)
            token, is_suspect = group.client.token, self._suspect(group.client)
            others = [each.client for each in groups if self._suspect(each.client) == is_suspect]
            self._tokens.chosen_among(each.token for each in others)
            self._networks[token].chosen_among(
                each.network for each in others if each.token == token
            )
            chosen = min(self._waiting[group], key=lambda each: self._taken[each.request])
            self._remove(chosen)
            self._count(chosen, 1)
            chosen.since = self._clock()
            if not chosen.admitted.done():
                chosen.admitted.set_result(None)

    def _may(self, group: Group) -> bool:
        token, most = group.client.token, self._most
        return all(self._taken[token, n] < most[n] for n in range(group.attempt + 1))

    def _order(self, group: Group) -> tuple[float, ...]:
        client, attempt = group
        return (
            self._suspect(client),
            *(self._taken[client.token], self._tokens.level(client.token)),
            *(self._taken[client], self._networks[client.token].level(client.network)),
            *(attempt, self._waiting[group][0].number),
        )

    def _remove(self, waiting: _Waiting) -> None:
        self._waiting[waiting.group].remove(waiting)
        if not self._waiting[waiting.group]:
            del self._waiting[waiting.group]

    def _count(self, waiting: _Waiting, change: int) -> None:
        self._free -= change
        client, attempt = waiting.group
        attempts = ((client.token, n) for n in range(attempt + 1))
        for key in (client.token, client, waiting.request, *attempts):
            self._taken[key] += change
            if not self._taken[key]:
                del self._taken[key]
