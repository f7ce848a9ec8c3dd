"""Whole objects: from the source into the cache, each once at a time, those that readers wait for first.

One thread does it all but what may wait. With a thread for each object, as many as there are at once,
the threads' getting in one another's way cost more than the objects (docs/decisions.md).
"""

from __future__ import annotations

import logging
import math
import os
import select
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from gpufs.cache import Cache, Purpose
from gpufs.errors import DeadlineExceeded, GpufsError
from gpufs.fetch.ahead import LATER, Ahead, Early
from gpufs.fetch.fill import EpochFill
from gpufs.fetch.messages import Wanted, failure_of
from gpufs.fetch.traffic import Importance, Sent, Traffic
from gpufs.metrics import Metrics
from gpufs.shared import FLUSH, Part, Tier, part_of
from gpufs.source.base import ObjectRef, Source
from gpufs.source.retry import DEADLINE

THREADS = 64  # that may wait for the source
KEEPERS = 16  # that may wait for the disk
LOOK_AGAIN = 0.25  # seconds, when nothing is known of how long a turn takes
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
    directory: int | None = None
    ahead: list[Early] = field(default_factory=list)  # who wants it before it is read
    importance: Importance = Importance.DEMAND  # when it was started
    came: float = field(default_factory=time.monotonic)  # when it was wanted
    sent: Sent | None = None
    again: bool = False  # a first try has failed
    part: Part | None = None  # of the shared cache, when that was asked
    shared: bool = False  # it was there

    @property
    def early(self) -> bool:
        """Nobody had asked for it when it was started."""
        return self.importance is not Importance.DEMAND

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
        traffic: Traffic,
        metrics: Metrics,
        answer: Answer,
        *,
        shared: Tier | None = None,
        compress: bool = False,
    ) -> None:
        """`answer` must not keep the descriptor. `compress`: keep compressed what is worth it."""
        self._source = source
        self._source_id = source.id
        self._shared = shared
        self._cache = cache
        self._ahead = ahead
        self._fill = fill
        self._traffic = traffic
        self._metrics = metrics
        self._answer = answer
        self._compress = compress
        self._flights: dict[bytes, _Flight] = {}
        self._waiting: deque[_Flight] = deque()  # that a reader wants, and that may not be sent yet
        self._postponed: Wanted | None = None  # what the fill wanted next, and could not have yet
        self._start_again: float | None = None  # seconds after which more may be started
        self._unread: list[_Flight] = []  # that wait for a thread
        self._reading = 0
        self._threads = ThreadPoolExecutor(THREADS, "gpufs fetch")
        self._keepers = ThreadPoolExecutor(KEEPERS, "gpufs keep")
        self._apart = ThreadPoolExecutor(1, "gpufs work")  # for what must not wait behind the source
        # For what keeps a processor busy: more of them would only wait for one another.
        self._few = ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0)) // 2), "gpufs compress")
        self._results: deque[Callable[[], None]] = deque()  # of the threads
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll = select.epoll()
        self._poll.register(self._wake, select.EPOLLIN)
        self._downloads = source.downloads()
        if self._downloads is not None:
            self._poll.register(self._downloads.fileno(), select.EPOLLIN)
        if shared is not None:
            self._poll.register(shared.fileno(), select.EPOLLIN)
        self._threads.submit(source.prepare)

    def fileno(self) -> int:
        """Readable when turn() has something to do."""
        return self._poll.fileno()

    def timeout(self) -> float | None:
        """Seconds after which turn() has something to do in any case."""
        timeouts = [self._start_again]
        timeouts += [each.timeout() for each in (self._downloads, self._shared) if each is not None]
        return min((timeout for timeout in timeouts if timeout is not None), default=None)

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
        flight = self._flights[wanted.digest] = _Flight(
            wanted.digest, wanted.ref, [asker], directory=wanted.directory
        )
        if self._cache.has_compressed(wanted.digest):  # the same
            self._read(flight)
        else:
            self._waiting.append(flight)
            self._start_waiting()

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
        if self._shared is not None:
            for flight, data in self._shared.turn():
                if data is not None:
                    flight.shared = True
                    self._arrived(flight, data)
                else:
                    self._fetch(flight)
        wait = self._start_waiting()
        if not self._waiting:
            wait = self._start_named()
            if wait == math.inf:  # else what was named has to wait, and a fill would take its turn
                wait = self._fill_up()
        self._start_again = None if wait == math.inf else wait

    def close(self) -> None:
        """Write into the shared cache what is still to be written, for a short time."""
        if self._shared is not None:
            self._shared.flush(FLUSH)

    def _start_waiting(self) -> float:
        """What readers wait for. Seconds after which more may be started; inf: when something has landed."""
        waiting, wait = self._waiting, math.inf
        while waiting and time.monotonic() - waiting[0].came > DEADLINE:
            failure = DeadlineExceeded(
                f"{os.fsdecode(waiting[0].ref.path)}: {DEADLINE:.0f} s have passed, and its turn "
                "has not come: too much else is on its way"
            )
            self._landed(waiting.popleft(), None, failure)
        while waiting and (wait := self._traffic.wait(Importance.DEMAND)) <= 0:
            self._start(waiting.popleft())
        self._traffic.readers_wait(len(waiting))
        return min(wait, LOOK_AGAIN) if waiting else math.inf

    def _start_named(self) -> float:
        """What somebody has named comes before what may be wanted. See _start_waiting()."""
        while self._ahead.at_once:
            importance = Importance.READ_AHEAD if self._ahead.soon else Importance.WARM
            if (wait := self._traffic.wait(importance, self._ahead.at_once)) > 0:
                return wait
            early = self._ahead.next()
            if not isinstance(early, Early):
                return 0.0 if early is LATER else math.inf
            flight = self._flights.get(early.digest)
            if flight is not None:
                flight.ahead.append(early)
            else:
                # It may be the first of those named after what will be read soon.
                importance = Importance.READ_AHEAD if early.batch.soon else Importance.WARM
                self._start(_Flight(early.digest, early.ref, ahead=[early], importance=importance))
        return math.inf

    def _fill_up(self) -> float:
        """What may be wanted. See _start_waiting()."""
        while True:
            postponed, self._postponed = self._postponed, None
            wanted = postponed or self._fill.next()
            if not isinstance(wanted, Wanted):
                return 0.0 if wanted is LATER else math.inf
            if wanted.digest in self._flights or (postponed and self._cache.has_object(wanted.digest)):
                continue
            if (wait := self._traffic.wait(Importance.FILL)) > 0:
                self._postponed = wanted
                return wait
            self._start(_Flight(wanted.digest, wanted.ref, [], wanted.directory, importance=Importance.FILL))

    def _start(self, flight: _Flight) -> None:
        self._flights[flight.digest] = flight
        outside = flight.directory is None or not self._fill.filling(flight.directory)
        flight.sent = self._traffic.began(flight.importance, flight.ref.size, outside=outside)
        if self._cache.verifying:
            self._read(flight)
            return
        if self._shared is not None:
            flight.part = part_of(self._source_id, flight.digest, flight.ref)
            if self._shared.ask(flight.part, flight, urgent=not flight.early):
                return
        self._fetch(flight)

    def _fetch(self, flight: _Flight) -> None:
        """From the source."""
        if self._downloads is None or not self._downloads.start(flight.ref, flight):
            self._read(flight)

    def _arrived(self, flight: _Flight, data: memoryview | GpufsError | None) -> None:
        assert flight.sent is not None
        if isinstance(data, GpufsError):
            self._landed(flight, None, data)
            return
        if data is None:  # whatever it was: reading it the long way will tell, or succeed
            self._read_again(flight)
            return
        flight.sent.arrive()
        compress = self._worth_compressing(flight, data)
        if compress or len(data) > INLINE or not self._cache.at_once(len(data)):
            threads = self._few if compress else self._keepers
            self._submit(lambda: self._try_to_keep(flight, data, compress), threads)
        else:
            self._try_to_keep(flight, data, compress)()

    def _worth_compressing(self, flight: _Flight, data: memoryview) -> bool:
        """What is staged is read once, and so not worth it."""
        return (
            self._compress and flight.purpose is not Purpose.STAGE and self._cache.promises_compression(data)
        )

    def _read(self, flight: _Flight) -> None:
        """The long way, as soon as there is a thread for it."""
        self._unread.append(flight)
        self._read_next()

    def _read_next(self) -> None:
        """Those that readers wait for come first, and half of the threads are theirs alone."""
        while self._unread and self._reading < THREADS:
            flight = next((flight for flight in self._unread if flight.asked), self._unread[0])
            if not flight.asked and self._reading >= THREADS // 2:
                break
            self._unread.remove(flight)
            self._reading += 1
            self._submit(partial(self._try_to_read, flight), self._threads)

    def _read_again(self, flight: _Flight) -> None:
        if flight.shared:  # undamaged there, and yet other bytes than the source has
            self._metrics.shared_corrupt.add()
            flight.shared = False
        flight.again = True
        self._read(flight)

    def _has_read(
        self, flight: _Flight, fd: int | None, error: GpufsError | None, data: memoryview | None = None
    ) -> None:
        self._reading -= 1
        self._landed(flight, fd, error, data)
        self._read_next()

    def _submit(self, work: Callable[[], Callable[[], None]], threads: ThreadPoolExecutor) -> None:
        """Do `work`, which raises nothing, in another thread, and what it returns in this one."""

        def run() -> None:
            self._results.append(work())
            os.eventfd_write(self._wake, 1)

        threads.submit(run)

    # -- in any thread; what they return is for the one

    def _try_to_keep(self, flight: _Flight, data: memoryview, compress: bool) -> Callable[[], None]:
        try:
            if self._downloads is not None and not self._downloads.intact(flight.ref, data):
                return lambda: self._read_again(flight)
            fd = self._cache.publish(flight.digest, data, purpose=flight.purpose, compress=compress)
        except Exception as error:
            failure = failure_of(error, log)
            return lambda: self._landed(flight, None, failure)
        return lambda: self._landed(flight, fd, None, data)

    def _try_to_read(self, flight: _Flight) -> Callable[[], None]:
        """May wait."""
        data = None
        try:
            fd = self._cache.rescue(flight.digest)
            if fd is None:
                fd = self._cache.expand(flight.digest, flight.ref.size)
            if fd is None:
                data = self._ask(flight)
                compress = self._worth_compressing(flight, data)
                fd = self._cache.publish(flight.digest, data, purpose=flight.purpose, compress=compress)
        except Exception as error:
            failure = failure_of(error, log)
            return lambda: self._has_read(flight, None, failure)
        return lambda: self._has_read(flight, fd, None, data)

    def _ask(self, flight: _Flight) -> memoryview:
        """The first try is a part of the deadline, and so is the wait for a turn and a thread."""
        sent, now = flight.sent, time.monotonic()
        spent = now - sent.began if sent is not None and flight.again else 0.0
        waited = now - flight.came - spent
        data = self._source.read(flight.ref, 0, flight.ref.size, spent=spent, waited=waited)
        if sent is not None:  # else it was to be expanded, and turned out to be damaged
            sent.arrive()
        return data

    # -- in the one again

    def _landed(
        self, flight: _Flight, fd: int | None, error: GpufsError | None, data: memoryview | None = None
    ) -> None:
        """`data`: what came for it."""
        del self._flights[flight.digest]
        if self._shared is not None and flight.part is not None and not flight.shared:
            if data is not None:
                self._shared.keep(flight.part, data)
            else:
                self._shared.give_up(flight.part)
        if flight.sent is not None:
            self._traffic.ended(flight.sent, succeeded=error is None)
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
        elif flight.importance is Importance.FILL and flight.directory is not None:
            self._fill.failed(flight.directory, error)
            if self._postponed is not None and self._postponed.directory == flight.directory:
                self._postponed = None
