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
    """Requests that wait for turns, and the order in which they got them."""

    def __init__(self, places: int) -> None:
        self.turns = Turns(places, lambda client: client.network == "suspect")
        self.order = list[str]()
        self.running: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def come(self, name: str, token: str, network: str, request: object = None) -> None:
        client = Client(token, network)
        work = self._work(name, client, request or object())
        self.tasks[name] = asyncio.create_task(work)
        await settled()

    async def _work(self, name: str, client: Client, request: object) -> None:
        async with self.turns.turn(client, request):
            self.order.append(name)
            self.running[name] = asyncio.Event()
            await self.running[name].wait()

    async def end(self, name: str) -> None:
        self.running.pop(name).set()
        await settled()

    async def end_all(self) -> None:
        while self.running:
            await self.end(next(iter(self.running)))


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def play(places: int, story: Play) -> list[str]:
    async def run() -> list[str]:
        plays = Plays(places)
        await story(plays)
        await plays.end_all()
        await asyncio.gather(*plays.tasks.values(), return_exceptions=True)
        return plays.order

    return asyncio.run(run())


def test_the_last_place_is_for_those_who_have_none() -> None:
    async def story(plays: Plays) -> None:
        for i in range(5):
            await plays.come(f"many {i}", "teach", "a")
        assert plays.order == ["many 0", "many 1"]
        await plays.come("another network", "teach", "b")
        assert plays.order[2:] == ["another network"]

    play(3, story)


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


def test_suspects_come_last_and_leave_a_place() -> None:
    async def story(plays: Plays) -> None:
        await plays.come("x", "teach", "x")
        await plays.come("bomb", "ask", "suspect")
        assert plays.order == ["x"]
        for i in range(2):
            await plays.come(f"teach {i}", "teach", "y")

    assert play(2, story) == ["x", "teach 0", "teach 1", "bomb"]


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

    play(3, story)


def test_who_often_asks_does_not_push_others_back() -> None:
    """A client is not new again because it has just been answered."""

    async def story(plays: Plays) -> None:
        await plays.come("a0", "", "a")
        for i in range(3):
            await plays.come(f"b{i}", "", "b")
        await plays.come("a1", "", "a")
        await plays.end("a0")  # b0 begins
        await plays.end("b0")  # a1 is next, although b came earlier with b1
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
            await plays.come(str(i), rng.choice("xy"), rng.choice("abc"))
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

    play(places, story)


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
