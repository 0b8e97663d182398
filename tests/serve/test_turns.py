"""Who gets the next decoder, and whose requests count together."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from kedge.serve.limits import Client, network_of
from kedge.serve.turns import Turns

Play = Callable[["Plays"], Awaitable[None]]


class Plays:
    """Requests that wait for turns, and the order in which they got them. Time stands still but
    for `now`."""

    def __init__(self, places: int, most: tuple[int, ...]) -> None:
        self.now = 0.0
        self.turns = Turns(
            places, most, lambda client: client.network == "suspect", lambda: self.now
        )
        self.order = list[str]()
        self.running: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def come(
        self, name: str, token: str, network: str, request: object = None, attempt: int = 0
    ) -> None:
        client = Client(token, network)
        work = self._work(name, client, request or object(), attempt)
        self.tasks[name] = asyncio.create_task(work)
        await settled()

    async def _work(self, name: str, client: Client, request: object, attempt: int) -> None:
        async with self.turns.turn(client, request, attempt):
            self.order.append(name)
            self.running[name] = asyncio.Event()
            await self.running[name].wait()

    async def end(self, name: str, seconds: float = 0.0) -> None:
        """End a turn, so many seconds later."""
        self.now += seconds
        self.running.pop(name).set()
        await settled()

    async def end_all(self) -> None:
        while self.running:
            await self.end(next(iter(self.running)))


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def play(places: int, story: Play, most: tuple[int, ...] = ()) -> list[str]:
    async def run() -> list[str]:
        plays = Plays(places, most or (places,))
        await story(plays)
        await plays.end_all()
        await asyncio.gather(*plays.tasks.values(), return_exceptions=True)
        return plays.order

    return asyncio.run(run())


def test_no_token_has_all_places_however_many_networks_use_it() -> None:
    async def story(plays: Plays) -> None:
        for i in range(5):
            await plays.come(f"many {i}", "teach", str(i))
        assert plays.order == ["many 0", "many 1"]
        await plays.come("another token", "ask", "0")
        assert plays.order[2:] == ["another token"]

    play(3, story, (2,))


def test_long_attempts_leave_places_for_first_ones() -> None:
    async def story(plays: Plays) -> None:
        for attempt in (2, 1, 0):
            for i in range(4):
                await plays.come(f"{attempt}, {i}", "", str(i), attempt=attempt)
        assert plays.order == ["2, 0", "1, 0", "0, 0"]
        await plays.come("another token", "ask", "0", attempt=2)
        assert plays.order[3:] == ["another token"]

    play(4, story, (3, 2, 1))


def test_first_attempts_come_before_others_of_the_same_client() -> None:
    async def story(plays: Plays) -> None:
        await plays.come("first", "", "a")
        await plays.come("again", "", "a", attempt=1)
        await plays.come("new", "", "a")

    assert play(1, story, (1, 1)) == ["first", "new", "again"]


def test_turns_count_by_their_seconds() -> None:
    """Who asks for little need not wait for as many turns of those who ask for much."""

    async def story(plays: Plays) -> None:
        await plays.come("x", "", "x")
        for i in range(3):
            await plays.come(f"much {i}", "", "a")
            await plays.come(f"little {i}", "", "b")
        await plays.end("x")
        await plays.end("much 0", seconds=1)
        for i in range(3):
            await plays.end(f"little {i}", seconds=0.3)

    assert play(1, story)[1:] == ["much 0", "little 0", "little 1", "little 2", "much 1", "much 2"]


@pytest.mark.parametrize("seconds", [0, 100])
def test_turns_that_nobody_else_wanted_are_not_held_against_anybody(seconds: float) -> None:
    async def story(plays: Plays) -> None:
        for i in range(4):
            await plays.come(f"old {i}", "", "a")
        await plays.end("old 0", seconds)
        for i in range(3):
            await plays.come(f"new {i}", "", "b")
        for name in ("old 1", "new 0", "old 2", "new 1", "old 3"):
            await plays.end(name, seconds=1)

    assert play(1, story)[1:] == ["old 1", "new 0", "old 2", "new 1", "old 3", "new 2"]


def test_clients_take_turns() -> None:
    async def story(plays: Plays) -> None:
        await plays.come("x", "", "x")
        await plays.come("y", "", "y")  # both places are taken
        for i in range(3):
            await plays.come(f"a{i}", "", "a")
        for i in range(2):
            await plays.come(f"b{i}", "", "b")

    assert play(2, story)[2:] == ["a0", "b0", "a1", "b1", "a2"]


def test_many_networks_of_one_token_get_its_turns_alone() -> None:
    async def story(plays: Plays) -> None:
        await plays.come("first", "ask", "0")
        for i in range(1, 5):
            await plays.come(f"ask {i}", "ask", str(i))
        for i in range(2):
            await plays.come(f"teach {i}", "teach", "0")

    assert play(1, story) == ["first", "teach 0", "ask 1", "teach 1", "ask 2", "ask 3", "ask 4"]


def test_suspects_come_last() -> None:
    async def story(plays: Plays) -> None:
        await plays.come("x", "teach", "x")
        await plays.come("bomb", "ask", "suspect")
        for i in range(2):
            await plays.come(f"teach {i}", "teach", "y")

    assert play(1, story) == ["x", "teach 0", "teach 1", "bomb"]


def test_requests_of_one_client_take_turns() -> None:
    async def story(plays: Plays) -> None:
        upload = object()
        await plays.come("upload 0", "", "a", upload)
        await plays.come("other", "", "b")
        for i in (1, 2):
            await plays.come(f"upload {i}", "", "a", upload)
        await plays.come("question", "", "a")
        await plays.end("other")
        assert plays.order == ["upload 0", "other", "question"]

    play(3, story, (2,))


def test_who_often_asks_does_not_push_others_back() -> None:
    """A client is not new again because it has just been answered."""

    async def story(plays: Plays) -> None:
        await plays.come("a0", "", "a")
        for i in range(3):
            await plays.come(f"b{i}", "", "b")
        await plays.come("a1", "", "a")
        await plays.end("a0", seconds=1)  # b0 begins
        await plays.end("b0", seconds=2)  # a1 is next, although b came earlier with b1
        assert plays.order == ["a0", "b0", "a1"]

    play(1, story)


def test_who_leaves_keeps_no_place() -> None:
    async def story(plays: Plays) -> None:
        await plays.come("first", "", "a")
        await plays.come("waits", "", "b")
        await plays.come("stays", "", "c")
        plays.tasks["waits"].cancel()
        await settled()
        plays.tasks["first"].cancel()
        plays.running.pop("first")
        await settled()
        assert plays.order == ["first", "stays"]

    play(1, story)


@pytest.mark.parametrize("seed", range(5))
def test_no_place_is_lost_or_given_twice(seed: int) -> None:
    rng, places = random.Random(seed), 3

    async def story(plays: Plays) -> None:
        for i in range(60):
            await plays.come(str(i), rng.choice("xy"), rng.choice("abc"), attempt=rng.randrange(2))
            assert len(plays.running) <= places
            if plays.running and rng.random() < 0.5:
                await plays.end(rng.choice(list(plays.running)))
            waiting = [each for each in plays.tasks if each not in plays.order]
            if waiting and rng.random() < 0.2:
                plays.tasks[rng.choice(waiting)].cancel()
        await plays.end_all()
        assert all(task.done() for task in plays.tasks.values())
        assert plays.turns._free == places
        assert not plays.turns._taken

    play(places, story, (2, 1))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("192.0.2.1", "192.0.2.2", False),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("127.0.0.1", "127.9.9.9", True),
        ("127.0.0.1", "::1", True),
        ("?", "?", True),
    ],
)
def test_addresses_that_one_machine_may_have(one: str, other: str, same: bool) -> None:
    assert (network_of(one) == network_of(other)) == same
