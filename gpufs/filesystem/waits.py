"""Who waits, and for how long: for bytes that are not here, and for directories that are not known."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

import trio

from gpufs.fetch.workers import Workers
from gpufs.metrics import Metrics

MOST_WAITERS = 256  # threads remembered; those that waited least are forgotten first
GATHER = 0.05  # seconds in which new ones are gathered before they are looked up
_UNKNOWN = "?"


class What(IntEnum):
    BYTES = 0
    NAMES = 1


class Waiter(NamedTuple):
    """A process, `pid` 0 when the kernel did not say which; seconds it has waited, all its threads added up.

    `waiting`: how many of its threads wait now.
    """

    pid: int
    command: str
    seconds: float
    names_seconds: float
    waits: int
    waiting: int


class _Thread:
    """Waits that overlap, as those for read-ahead do, count once."""

    __slots__ = ("active", "command", "pid", "seconds", "since", "waits")

    def __init__(self, tid: int) -> None:
        self.pid = tid  # until its process is known
        self.command = _UNKNOWN
        self.seconds = [0.0] * len(What)
        self.since = [0.0] * len(What)
        self.active = [0] * len(What)
        self.waits = 0

    def so_far(self, what: What, now: float) -> float:
        return self.seconds[what] + (now - self.since[what] if self.active[what] else 0.0)


class Waits:
    """Lives in the trio thread."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._histograms = {What.BYTES: metrics.miss_wait, What.NAMES: metrics.listing_wait}
        self._clock = clock
        self._threads: dict[int, _Thread] = {}
        self._nameless: list[int] = []
        self._came = trio.Event()

    @contextmanager
    def of(self, tid: int, what: What) -> Iterator[None]:
        """Inside, the thread `tid` waits for something that is not here."""
        began = self._clock()
        thread = self._threads.get(tid) or self._add(tid)
        if not thread.active[what]:
            thread.since[what] = began
        thread.active[what] += 1
        thread.waits += 1
        try:
            yield
        finally:
            now = self._clock()
            self._histograms[what].observe(now - began)
            thread.active[what] -= 1
            if not thread.active[what]:
                thread.seconds[what] += now - thread.since[what]

    def shown(self) -> list[Waiter]:
        """The processes that have waited, longest first."""
        now = self._clock()
        found: dict[tuple[int, str], Waiter] = {}
        for thread in self._threads.values():
            key = thread.pid, thread.command
            before = found.get(key) or Waiter(*key, 0.0, 0.0, 0, 0)
            found[key] = before._replace(
                seconds=before.seconds + thread.so_far(What.BYTES, now),
                names_seconds=before.names_seconds + thread.so_far(What.NAMES, now),
                waits=before.waits + thread.waits,
                waiting=before.waiting + any(thread.active),
            )
        return sorted(found.values(), key=lambda waiter: -waiter.seconds - waiter.names_seconds)

    async def name(self, workers: Workers) -> None:
        """Find out, for ever, which processes the threads are of."""
        while True:
            await self._came.wait()
            await trio.sleep(GATHER)
            self._came = trio.Event()
            tids, self._nameless = self._nameless, []
            for tid, (pid, command) in (await workers.run(processes_of, tids)).items():
                if (thread := self._threads.get(tid)) is not None:
                    thread.pid, thread.command = pid, command

    def _add(self, tid: int) -> _Thread:
        if len(self._threads) >= MOST_WAITERS:
            idle = [tid for tid, thread in self._threads.items() if not any(thread.active)]
            if idle:
                del self._threads[min(idle, key=lambda tid: sum(self._threads[tid].seconds))]
        thread = self._threads[tid] = _Thread(tid)
        if tid:
            self._nameless.append(tid)
            self._came.set()
        return thread


def processes_of(tids: list[int]) -> dict[int, tuple[int, str]]:
    """Worker thread: the process each thread is of, and its command, as far as there still are such."""
    found = {}
    for tid in tids:
        with suppress(OSError, ValueError, StopIteration):
            status = Path(f"/proc/{tid}/status").read_text(errors="replace")
            pid = int(next(line for line in status.splitlines() if line.startswith("Tgid:")).split()[1])
            found[tid] = pid, Path(f"/proc/{pid}/comm").read_text(errors="replace").rstrip("\n")
    return found
