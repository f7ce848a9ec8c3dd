"""A few threads for requests that are under way at the same time, for one who waits for all of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from types import TracebackType
from typing import Generic, TypeVar

Ticket = TypeVar("Ticket")
Result = TypeVar("Result")


class Crew(Generic[Ticket, Result]):
    """Runs calls in up to `size` threads, which are started as they are needed.

    Used by one thread. When the block is left, calls under way go on and what they give is dropped.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._threads = 0
        self._calls: SimpleQueue[tuple[Ticket, Callable[[], Result]] | None] = SimpleQueue()
        self._results: SimpleQueue[tuple[Ticket, Result | BaseException]] = SimpleQueue()
        self._under_way: dict[Ticket, int] = {}  # since when, in the order of that

    def __enter__(self) -> Crew[Ticket, Result]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for _ in range(self._threads):
            self._calls.put(None)

    def start(self, ticket: Ticket, call: Callable[[], Result]) -> None:
        self._under_way[ticket] = time.time_ns()
        self._calls.put((ticket, call))
        if len(self._under_way) > self._threads < self._size:
            self._threads += 1
            threading.Thread(target=self._work, name="gpufs listing", daemon=True).start()

    def oldest_ns(self) -> int:
        """When the first of the calls whose result was not taken yet was started (time.time_ns)."""
        return next(iter(self._under_way.values()))

    def result(self) -> tuple[Ticket, Result]:
        """Wait for a call to end, whichever does first; raises what it raised."""
        ticket, result = self._results.get()
        del self._under_way[ticket]
        if isinstance(result, BaseException):
            raise result
        return ticket, result

    def _work(self) -> None:
        while (job := self._calls.get()) is not None:
            ticket, call = job
            try:
                self._results.put((ticket, call()))
            except BaseException as error:
                self._results.put((ticket, error))
