"""Turns of requests: the most important first, and what a reader wants overtakes what was in front of it."""

from __future__ import annotations

import math
import os
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from gpufs.errors import DeadlineExceeded
from gpufs.fetch.page import FILESYSTEM, SharedPage
from gpufs.fetch.traffic import Importance, Sent, Traffic
from gpufs.fetch.turns import PIECE, Turn, Turns
from gpufs.metrics import Metrics
from gpufs.source.retry import DEADLINE

CHUNK = 4 << 20


class Slots(Traffic):
    """Traffic of which so many requests are allowed at once."""

    def __init__(self, slots: int) -> None:
        page = SharedPage()
        super().__init__(page, FILESYSTEM, None, Metrics(), trio.current_time)
        os.close(page.fd)
        self.slots = slots

    def wait(self, importance: Importance, at_once: int = 0) -> float:
        return 0.0 if self.concurrency.in_flight < self.slots else math.inf


class World:
    def __init__(self, traffic: Slots, nursery: trio.Nursery) -> None:
        self.traffic = traffic
        self.turns = Turns(traffic, nursery)
        self.nursery = nursery
        self.began: list[str] = []
        self.failed: list[str] = []
        self.ends: dict[str, trio.Event] = {}

    async def want(self, name: str, importance: Importance, size: int = 1000) -> Turn:
        turn = Turn(importance, size)
        self.ends[name] = trio.Event()
        self.nursery.start_soon(self._take, name, turn)
        await trio.testing.wait_all_tasks_blocked()
        return turn

    async def _take(self, name: str, turn: Turn) -> None:
        try:
            async with self.turns.taken(turn) as sent:
                assert isinstance(sent, Sent)
                self.began.append(name)
                await self.ends[name].wait()
        except DeadlineExceeded:
            self.failed.append(name)

    async def end(self, *names: str) -> None:
        for name in names:
            self.ends[name].set()
            await trio.testing.wait_all_tasks_blocked()


def play(slots: int, scene: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            world = World(Slots(slots), nursery)
            await scene(world)
            nursery.cancel_scope.cancel()
        assert world.traffic.concurrency.in_flight == 0

    trio.run(main, clock=trio.testing.MockClock())


def test_the_most_important_is_sent_first() -> None:
    async def scene(world: World) -> None:
        await world.want("first", Importance.WARM)
        await world.want("warm", Importance.WARM)
        await world.want("ahead", Importance.READ_AHEAD)
        await world.want("demand", Importance.DEMAND)
        await world.want("demand too", Importance.DEMAND)
        await world.end("first", "demand", "demand too", "ahead", "warm")
        assert world.began == ["first", "demand", "demand too", "ahead", "warm"]

    play(1, scene)


def test_what_a_reader_wants_leaves_the_queue_it_was_in() -> None:
    async def scene(world: World) -> None:
        await world.want("first", Importance.READ_AHEAD)
        await world.want("second", Importance.READ_AHEAD)
        wanted = await world.want("wanted", Importance.READ_AHEAD)
        world.turns.raise_to(wanted, Importance.DEMAND)
        world.turns.raise_to(wanted, Importance.WARM)  # no less important for being wanted by another too
        await world.end("first", "wanted", "second")
        assert world.began == ["first", "wanted", "second"]

    play(1, scene)


def test_the_wait_for_a_turn_is_a_part_of_a_readers_deadline() -> None:
    async def scene(world: World) -> None:
        clock = trio.lowlevel.current_clock()
        assert isinstance(clock, trio.testing.MockClock)
        await world.want("first", Importance.DEMAND)
        await world.want("late", Importance.DEMAND)
        await world.want("patient", Importance.WARM)
        clock.jump(DEADLINE / 2)
        turn = await world.want("in time", Importance.DEMAND)
        clock.jump(DEADLINE / 2 + 1)
        await trio.testing.wait_all_tasks_blocked()
        assert world.failed == ["late"]
        await world.end("first")
        assert world.began == ["first", "in time"]
        assert turn.waited == pytest.approx(DEADLINE / 2 + 1)

    play(1, scene)


def test_a_turn_that_is_given_up_is_nobodys() -> None:
    async def scene(world: World) -> None:
        await world.want("first", Importance.DEMAND)
        with trio.move_on_after(0) as scope:
            async with world.turns.taken(Turn(Importance.DEMAND, 1000)):
                raise AssertionError("it was not its turn")
        assert scope.cancelled_caught
        await world.want("second", Importance.DEMAND)
        await world.end("first")
        assert world.began == ["first", "second"]

    play(1, scene)


def test_while_somebody_reads_a_large_request_in_advance_is_cut() -> None:
    async def scene(world: World) -> None:
        clock = trio.lowlevel.current_clock()
        assert isinstance(clock, trio.testing.MockClock)
        clock.jump(1000)  # nobody has read for long
        whole = await world.want("whole", Importance.WARM, CHUNK)
        await world.want("reader", Importance.DEMAND)
        piece = await world.want("piece", Importance.WARM, CHUNK)
        assert whole.sent is not None and whole.sent.size == CHUNK
        assert piece.sent is not None and piece.sent.size == PIECE

    play(3, scene)
