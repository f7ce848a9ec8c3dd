"""Single flight: many tasks that want one thing cause it to be fetched once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar, cast

import trio

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class SingleFlight(Generic[K, T]):
    """Runs one call per key at a time and gives its outcome to all who asked meanwhile.

    The call runs in a task of `nursery`, so cancelling any of those who wait, the first one
    included, neither ends the call nor disturbs the others. A failure is given to those who
    waited for it and is not remembered.
    """

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._flights: dict[K, Flight[T]] = {}

    async def run(self, key: K, call: Callable[[], Awaitable[T]]) -> T:
        flight = self.start(key, call)
        await flight.landed.wait()
        return flight.result()

    async def run_anew(self, key: K, call: Callable[[], Awaitable[T]]) -> T:
        """Like run(), with a call that begins after this one: one under way is waited for, and not enough."""
        flight = self._flights.get(key)
        if flight is not None:
            await flight.landed.wait()
        return await self.run(key, call)

    def start(self, key: K, call: Callable[[], Awaitable[T]]) -> Flight[T]:
        """Have the call running, without waiting for it."""
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = Flight()
            self._nursery.start_soon(self._fly, key, flight, call)
        return flight

    async def join(self, key: K) -> None:
        """Wait for the call that is running for `key`, whatever comes of it."""
        await self._flights[key].landed.wait()

    def __contains__(self, key: K) -> bool:
        return key in self._flights

    async def _fly(self, key: K, flight: Flight[T], call: Callable[[], Awaitable[T]]) -> None:
        try:
            flight._value = await call()
        except Exception as error:
            flight._error = error
        except BaseException:
            flight._error = trio.BrokenResourceError("gpufs is shutting down")
            raise
        finally:
            del self._flights[key]
            flight.landed.set()


class Flight(Generic[T]):
    """One call under way, for any number of tasks that wait for it."""

    __slots__ = ("_error", "_value", "landed")

    def __init__(self) -> None:
        self.landed = trio.Event()
        self._value: T | None = None
        self._error: Exception | None = None

    def result(self) -> T:
        """What the call returned or raised; only after `landed`."""
        assert self.landed.is_set()
        if self._error is not None:
            raise self._error
        return cast(T, self._value)
