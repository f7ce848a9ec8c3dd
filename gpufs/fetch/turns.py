"""Requests of the filesystem process that wait for their turn, the most important first."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from gpufs.errors import DeadlineExceeded
from gpufs.fetch.traffic import Importance, Sent, Traffic
from gpufs.source.retry import DEADLINE

PIECE = 128 << 10  # bytes wanted in advance are asked for in pieces while somebody reads, not smaller ones
LOOK_AGAIN = 0.25  # seconds, when nothing is known of how long it takes


class Turn:
    """A request for `most` bytes, or fewer of them, that waits or was sent. It may become more important."""

    __slots__ = ("came", "importance", "most", "sent", "since", "waiting")

    def __init__(self, importance: Importance, most: int) -> None:
        self.importance = importance
        self.most = most
        self.sent: Sent | None = None
        self.waiting = False
        self.since: float | None = None  # when a reader began to wait for it
        self.came = trio.Event()

    @property
    def waited(self) -> float:
        """Seconds of a reader's time."""
        return trio.current_time() - self.since if self.since is not None else 0.0


class Turns:
    """In trio."""

    def __init__(self, traffic: Traffic, nursery: trio.Nursery) -> None:
        self._traffic = traffic
        self._nursery = nursery
        self._waiting: dict[Importance, deque[Turn]] = {kind: deque() for kind in Importance}
        self._looking = False

    @asynccontextmanager
    async def taken(self, turn: Turn) -> AsyncIterator[Sent]:
        """Inside, the request may be sent, for as many bytes as this says.

        Raises DeadlineExceeded when a reader has waited too long for that.
        """
        succeeded = False
        self._enter(turn, turn.importance)
        try:
            if turn.waiting:
                await self._wait_for(turn)
            if turn.sent is None:
                raise DeadlineExceeded(
                    f"{DEADLINE:.0f} s have passed, and its turn has not come: too much else is on its way"
                )
            yield turn.sent
            succeeded = True
        finally:
            if turn.waiting:
                self._waiting[turn.importance].remove(turn)
                turn.waiting = False
            if turn.sent is not None:
                self._traffic.ended(turn.sent, succeeded=succeeded)
            self._look()

    def raise_to(self, turn: Turn, importance: Importance) -> None:
        """It is that important now, at least."""
        if importance >= turn.importance:
            return
        if turn.waiting:
            self._waiting[turn.importance].remove(turn)
            self._enter(turn, importance)
        turn.importance = importance

    def _enter(self, turn: Turn, importance: Importance) -> None:
        if importance is Importance.DEMAND:
            turn.since = trio.current_time()
        turn.importance = importance
        turn.waiting = True
        self._waiting[importance].append(turn)
        self._look()

    async def _wait_for(self, turn: Turn) -> None:
        if not self._looking:
            self._looking = True
            self._nursery.start_soon(self._look_again)
        await turn.came.wait()

    def _look(self) -> float:
        """Send what may be sent; seconds until there may be more."""
        wait = math.inf
        demand = self._waiting[Importance.DEMAND]
        while demand and demand[0].waited > DEADLINE:
            turn = demand.popleft()
            turn.waiting = False
            turn.came.set()
        for kind, waiting in self._waiting.items():
            while waiting and (wait := self._traffic.wait(kind)) <= 0:
                turn = waiting.popleft()
                turn.waiting = False
                size = turn.most if kind < Importance.WARM else self._traffic.piece(turn.most, PIECE)
                turn.sent = self._traffic.began(kind, size)
                turn.came.set()
            if waiting:  # nothing overtakes it
                break
        self._traffic.readers_wait(len(demand))
        return wait

    async def _look_again(self) -> None:
        """As long as somebody waits."""
        while any(self._waiting.values()):
            await trio.sleep(min(self._look(), LOOK_AGAIN))
        self._looking = False
