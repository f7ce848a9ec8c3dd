"""Whole objects: from the source into the cache, each once at a time, those that readers wait for first.

One thread does it all but what may wait. With a thread for each object, as many as there are at once,
the threads' getting in one another's way cost more than the objects (docs/decisions.md).
"""

from __future__ import annotations

import logging
import os
import select
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from gpufs.cache import Cache, Purpose
from gpufs.errors import GpufsError
from gpufs.fetch.ahead import LATER, Ahead, Early
from gpufs.fetch.fill import EpochFill
from gpufs.fetch.messages import Wanted, failure_of
from gpufs.metrics import Metrics
from gpufs.source.base import ObjectRef, Source

THREADS = 64  # that may wait
AT_ONCE = 32  # objects on their way, beyond which none is fetched in advance
INLINE = 256 << 10  # bytes of an object that this thread checks and keeps itself

log = logging.getLogger("gpufs.fetch")

# Told who asked and what came of it: a descriptor of all the bytes, or why there is none.
Answer = Callable[[int, int | None, GpufsError | None], None]


@dataclass(slots=True, eq=False)
class _Flight:
    """One object on its way."""

    digest: bytes
    ref: ObjectRef
    asked: list[int] = field(default_factory=list)  # who waits for it
    directory: int | None = None  # whose fill it belongs to
    ahead: list[Early] = field(default_factory=list)  # who wants it before it is read
    early: bool = False  # nobody had asked for it when it was started
    started: float = field(default_factory=time.monotonic)

    @property
    def purpose(self) -> Purpose:
        if not self.early or self.asked:
            return Purpose.DEMAND
        return Purpose.STAGE if any(early.staged for early in self.ahead) else Purpose.FILL


class Objects:
    """Lives in one thread: whoever calls one method calls them all, and turn() again and again."""

    def __init__(
        self,
        source: Source,
        cache: Cache,
        ahead: Ahead,
        fill: EpochFill,
        metrics: Metrics,
        answer: Answer,
        *,
        compress: bool = False,
    ) -> None:
        """`answer` must not keep the descriptor. `compress`: keep compressed what is worth it."""
        self._source = source
        self._cache = cache
        self._ahead = ahead
        self._fill = fill
        self._metrics = metrics
        self._answer = answer
        self._compress = compress
        self._flights: dict[bytes, _Flight] = {}
        self._more_to_start = False
        self._threads = ThreadPoolExecutor(THREADS, "gpufs fetch")
        self._apart = ThreadPoolExecutor(1, "gpufs work")  # for what must not wait behind the source
        self._results: deque[Callable[[], None]] = deque()  # of the threads
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll = select.epoll()
        self._poll.register(self._wake, select.EPOLLIN)
        self._downloads = source.downloads()
        if self._downloads is not None:
            self._poll.register(self._downloads.fileno(), select.EPOLLIN)
        self._threads.submit(source.prepare)

    def fileno(self) -> int:
        """Readable when turn() has something to do."""
        return self._poll.fileno()

    def timeout(self) -> float | None:
        """Seconds after which turn() has something to do in any case."""
        if self._more_to_start and len(self._flights) < AT_ONCE:
            return 0
        return self._downloads.timeout() if self._downloads is not None else None

    def demand(self, asker: int, wanted: Wanted) -> None:
        """A reader waits for this object: `answer` will be told."""
        self._fill.missed(wanted.directory)
        flight = self._flights.get(wanted.digest)
        if flight is not None:
            flight.asked.append(asker)
            return
        fd = self._cache.open_object(wanted.digest)  # it may have come since the reader looked
        if fd is not None:
            self._answer(asker, fd, None)
            os.close(fd)
            return
        flight = _Flight(wanted.digest, wanted.ref, [asker])
        if self._cache.has_compressed(wanted.digest):  # the same
            self._flights[wanted.digest] = flight
            self._read(flight, again=False)
        else:
            self._start(flight)

    def in_thread(self, asker: int, work: Callable[[], None]) -> None:
        """Do `work`, which may wait, though not for the source, and tell `answer` then."""

        def run() -> Callable[[], None]:
            failure = None
            try:
                work()
            except Exception as error:
                failure = failure_of(error, log)
            return lambda: self._answer(asker, None, failure)

        self._submit(run, self._apart)

    def turn(self) -> None:
        """Take what has come, and fetch in advance as long as there is room on the way."""
        for fd, _ in self._poll.poll(0):
            if fd == self._wake:
                os.eventfd_read(self._wake)
        while self._results:
            self._results.popleft()()
        if self._downloads is not None:
            for flight, data in self._downloads.turn():
                self._arrived(flight, data)
        self._more_to_start = self._start_ahead() or self._fill_up()

    def _start_ahead(self) -> bool:
        """What somebody has named comes before what may be wanted. True when there is more, but later."""
        while len(self._flights) < max(AT_ONCE, self._ahead.at_once):
            early = self._ahead.next()
            if not isinstance(early, Early):
                return early is LATER
            flight = self._flights.get(early.digest)
            if flight is not None:
                flight.ahead.append(early)
            else:
                self._start(_Flight(early.digest, early.ref, ahead=[early], early=True))
        return False

    def _fill_up(self) -> bool:
        """True when there is more, but later."""
        while len(self._flights) < AT_ONCE:
            wanted = self._fill.next()
            if not isinstance(wanted, Wanted):
                return wanted is LATER
            if wanted.digest not in self._flights:
                self._start(_Flight(wanted.digest, wanted.ref, directory=wanted.directory, early=True))
        return True

    def _start(self, flight: _Flight) -> None:
        self._flights[flight.digest] = flight
        if self._downloads is None or self._cache.verifying or not self._downloads.start(flight.ref, flight):
            self._read(flight, again=False)

    def _arrived(self, flight: _Flight, data: memoryview | GpufsError | None) -> None:
        if isinstance(data, GpufsError):
            self._landed(flight, None, data)
        elif data is None:  # whatever it was: reading it the long way will tell, or succeed
            self._read(flight, again=True)
        else:
            compress = self._worth_compressing(flight, data)
            if compress or len(data) > INLINE or not self._cache.at_once(len(data)):
                self._submit(lambda: self._try_to_keep(flight, data, compress), self._threads)
            else:
                self._try_to_keep(flight, data, compress)()

    def _worth_compressing(self, flight: _Flight, data: memoryview) -> bool:
        """What is staged is read once, and so not worth it."""
        return (
            self._compress and flight.purpose is not Purpose.STAGE and self._cache.promises_compression(data)
        )

    def _read(self, flight: _Flight, *, again: bool) -> None:
        """The long way. `again`: the first try is a part of the deadline, and the wait for a thread."""

        def run() -> Callable[[], None]:
            return self._try_to_read(flight, time.monotonic() - flight.started if again else 0.0)

        self._submit(run, self._threads)

    def _submit(self, work: Callable[[], Callable[[], None]], threads: ThreadPoolExecutor) -> None:
        """Do `work`, which raises nothing, in another thread, and what it returns in this one."""

        def run() -> None:
            self._results.append(work())
            os.eventfd_write(self._wake, 1)

        threads.submit(run)

    # -- in any thread; what they return is for the one

    def _try_to_keep(self, flight: _Flight, data: memoryview, compress: bool) -> Callable[[], None]:
        assert self._downloads is not None
        try:
            if not self._downloads.intact(flight.ref, data):
                return lambda: self._read(flight, again=True)
            fd = self._cache.publish(flight.digest, data, purpose=flight.purpose, compress=compress)
        except Exception as error:
            failure = failure_of(error, log)
            return lambda: self._landed(flight, None, failure)
        return lambda: self._landed(flight, fd, None)

    def _try_to_read(self, flight: _Flight, spent: float) -> Callable[[], None]:
        """May wait. `spent`: seconds that a first attempt took."""
        try:
            fd = self._cache.rescue(flight.digest)
            if fd is None:
                fd = self._cache.expand(flight.digest, flight.ref.size)
            if fd is None:
                data = self._source.read(flight.ref, 0, flight.ref.size, spent=spent)
                compress = self._worth_compressing(flight, data)
                fd = self._cache.publish(flight.digest, data, purpose=flight.purpose, compress=compress)
        except Exception as error:
            failure = failure_of(error, log)
            return lambda: self._landed(flight, None, failure)
        return lambda: self._landed(flight, fd, None)

    # -- in the one again

    def _landed(self, flight: _Flight, fd: int | None, error: GpufsError | None) -> None:
        del self._flights[flight.digest]
        for asker in flight.asked:
            self._answer(asker, fd, error)
        if flight.early and flight.asked and fd is not None:
            self._cache.touch([flight.digest])  # it may have been kept before it was asked for
        if fd is not None:
            os.close(fd)
        for early in flight.ahead:
            self._ahead.landed(early, error)
        if error is None:
            if flight.early:
                self._metrics.prefetched.add()
        elif flight.directory is not None:
            self._fill.failed(flight.directory, error)
