"""The shared cache, as one process uses it: asks for parts, claims what is not there, writes what has come.

Whatever goes wrong with it, the answer is that it does not have the part, and the source serves.
"""

from __future__ import annotations

import heapq
import logging
import math
import os
import select
import time
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from functools import partial
from typing import Any, Protocol

from gpufs.metrics import Metrics

from .breaker import Breaker
from .entry import CLAIM, CLAIM_SIZE, DROPPED, TOKEN, Found, Part, pack, unpack
from .wire import Exchange

QUEUE_BYTES = 64 << 20  # of what is to be written; what comes when there are more is dropped
READS, WRITES = 16, 4  # at once: enough for what is near, and more would only wait for one another there
PATIENCE = 2.0  # seconds without a byte
SLOW, SLOWER = 0.5, 4  # seconds, and times what the source takes: then it is no cache
LEAST_RATE = 1 << 20  # bytes a second, after that time
WHOLE_WRITE = 10.0  # seconds
LEASE = 3.0  # seconds for which a claim holds that is not renewed
RENEW = 1.0  # seconds after which it is
LONGEST_CLAIM = 60.0  # seconds for which it is
LONGEST_WAIT = 10.0  # seconds for what others have claimed
SHORTEST_POLL, LONGEST_POLL = 0.01, 0.25  # seconds between two looks for it
PROBE = "probe"  # a name that no part has

log = logging.getLogger("gpufs.shared")


class State(IntEnum):
    """For the status."""

    NONE = 0
    FINE = 1
    READ_ONLY = 2  # it takes nothing
    LEFT_ALONE = 3  # it does not answer


class Line(Protocol):
    """What Wire does."""

    @property
    def trouble(self) -> str: ...
    def fileno(self) -> int: ...
    def timeout(self) -> float | None: ...
    def ready(self) -> bool: ...
    def send(self, exchange: Exchange) -> None: ...
    def turn(self) -> None: ...


class _Ask:
    """A part that somebody waits for."""

    __slots__ = ("began", "claim", "claim_at", "part", "ticket", "urgent", "waits_since")

    def __init__(self, part: Part, ticket: Any, urgent: bool, now: float) -> None:
        self.part = part
        self.ticket = ticket
        self.urgent = urgent
        self.began = now
        self.claim = b""  # of somebody else, as it was seen last
        self.claim_at = 0.0  # when it was seen first
        self.waits_since = 0.0


class _Claim:
    """A part that others expect from us."""

    __slots__ = ("began", "kept", "renewed", "renewing")

    def __init__(self, now: float) -> None:
        self.began = self.renewed = now
        self.renewing = False
        self.kept: tuple[Part, bytes | memoryview] | None = None  # to be written when that has ended


class Tier:
    """Lives in one thread: whoever calls one method calls them all, and turn() again and again."""

    def __init__(
        self,
        line: Line,
        name: str,
        metrics: Metrics,
        tell: Callable[[State], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`name`: for people. `tell` is told of the state when that changes."""
        self._line = line
        self._name = name
        self._metrics = metrics
        self._tell = tell
        self._clock = clock
        self._reads = Breaker(clock)
        self._writes = Breaker(clock)
        self._waits = Breaker(clock)  # for what others have claimed
        self._claims_hold = True  # False: the store knows no conditional writes
        self._results: list[tuple[Any, memoryview | None]] = []
        self._urgent: deque[_Ask] = deque()  # whose turn has not come
        self._others: deque[_Ask] = deque()
        self._reading = 0  # asks whose turn it is
        self._first: float | None = (
            None  # when the first was to be sent; nothing is until there is a connection
        )
        self._connected = False
        self._waiting: list[tuple[float, int, _Ask]] = []  # a heap: when to look again
        self._order = 0
        self._claims: dict[str, _Claim] = {}
        self._renew_at = math.inf
        self._takes = 0.0  # seconds until it has answered, usually
        self._source_takes = SLOW / 2  # the same
        self._asked_source: dict[str, float] = {}  # when
        self._queue: deque[tuple[Part, bytes | memoryview]] = deque()
        self._queued = 0  # bytes, with those that are being written
        self._writing = 0
        tell(State.FINE)

    def fileno(self) -> int:
        """Readable when turn() has something to do."""
        return self._line.fileno()

    def timeout(self) -> float | None:
        """Seconds after which turn() has something to do in any case."""
        at = min(self._renew_at, self._waiting[0][0] if self._waiting else math.inf)
        seconds = at - self._clock()
        if not self._connected and self._first is not None:
            seconds = min(seconds, SHORTEST_POLL)
        if self._results:
            seconds = 0.0
        if (line := self._line.timeout()) is not None:
            seconds = min(seconds, line)
        return None if seconds == math.inf else max(0.0, seconds)

    def ask(self, part: Part, ticket: Any, *, urgent: bool = True) -> bool:
        """Begin to look for it; False when it must come from the source. Then, too, keep() is to be told.
        `urgent`: a reader waits for it.

        What turn() says of the ticket later is the bytes, or None: then it must come from the source, and
        keep() or give_up() is to be told.
        """
        if not part.size:
            return False
        if not self._reads.closed:
            self._probe()
            return False
        if self._connected and not self._line.ready():
            return False
        self._get(_Ask(part, ticket, urgent, self._clock()))
        return True

    def turn(self) -> list[tuple[Any, memoryview | None]]:
        """The tickets of what was found, and of what was not. Never waits."""
        self._line.turn()
        now = self._clock()
        if not self._connected and self._first is not None:
            self._connect(now)
        while self._waiting and self._waiting[0][0] <= now:
            self._get(heapq.heappop(self._waiting)[2])
        if now >= self._renew_at:
            self._renew(now)
        results, self._results = self._results, []
        return results

    def keep(self, part: Part, data: memoryview) -> None:
        """The bytes came from the source: write them, some time."""
        self._source_took(part)
        if not part.size:
            return
        if (
            not self._reads.closed
            or not self._line.ready()
            or self._queued + part.size > QUEUE_BYTES
            or not (self._writes.closed or self._writes.probe())
        ):
            self._metrics.shared_dropped.add()
            self.give_up(part)
            return
        self._queued += part.size
        self._queue.append((part, data))
        self._write()

    def give_up(self, part: Part) -> None:
        """Nothing will be written: let others know, if they wait for it."""
        self._asked_source.pop(part.name, None)
        claim = self._claims.get(part.name)
        if claim is None:
            return
        if claim.renewing:
            claim.kept = part, DROPPED
        elif self._reads.closed and self._writes.closed:
            del self._claims[part.name]
            self._put(part.name, DROPPED, lambda exchange: None)
        else:
            del self._claims[part.name]

    def flush(self, seconds: float) -> None:
        """Write what is to be written, as far as that goes in the time."""
        end = self._clock() + seconds
        poll = select.poll()
        poll.register(self, select.POLLIN)
        while self._queued and self._reads.closed and (left := end - self._clock()) > 0:
            timeout = self.timeout()
            poll.poll(1000 * (left if timeout is None else min(left, timeout)) + 1)
            self.turn()

    # -- the answer to a question

    def _connect(self, now: float) -> None:
        """The first connection is waited for, or all hosts would begin with the source."""
        assert self._first is not None
        if not self._line.ready():
            if not self._line.trouble and now - self._first < PATIENCE:
                return
            if self._reads.failed(at_once=True):
                self._leave_alone(self._line.trouble or "no connection")
        self._connected = True
        self._next()

    def _get(self, ask: _Ask) -> None:
        (self._urgent if ask.urgent else self._others).append(ask)
        self._next()

    def _next(self) -> None:
        """Send what may be sent."""
        if not self._connected:
            self._first = self._first or self._clock()
            if not self._line.ready():
                return
            self._connected = True
        while self._reading < READS and (self._urgent or self._others):
            ask = (self._urgent or self._others).popleft()
            self._reading += 1
            if not self._reads.closed or not self._line.ready():
                self._end(ask, None)
            else:
                self._look(ask)

    def _look(self, ask: _Ask) -> None:
        limit = max(ask.part.entry_size, CLAIM_SIZE)
        whole = PATIENCE + limit / LEAST_RATE
        done = partial(self._got, ask)
        self._line.send(Exchange("GET", ask.part.name, done, PATIENCE, whole=whole, limit=limit))

    def _got(self, ask: _Ask, exchange: Exchange) -> None:
        if not self._answered(exchange):
            self._end(ask, None)
        elif exchange.status == 404:
            self._claim(ask)
        else:
            found = unpack(ask.part, memoryview(exchange.body).toreadonly())
            if found is Found.CLAIMED:
                self._wait(ask, exchange)
            elif isinstance(found, Found):
                if found is Found.BAD:
                    self._metrics.shared_corrupt.add()
                    log.warning("%s in the shared cache %s is damaged", ask.part.name, self._name)
                self._end(ask, None)
            else:
                self._end(ask, found)

    def _answered(self, exchange: Exchange) -> bool:
        """Whether it has answered a question as it should, which may be news."""
        if exchange.status == 200 or (exchange.status == 404 and b"NoSuchBucket" not in exchange.body):
            took = self._clock() - exchange.began
            self._takes += (took - self._takes) / 8
            takes = self._takes if self._reads.closed else took
            if takes > max(SLOW, SLOWER * self._source_takes):
                self._takes = 0.0
                if self._reads.failed(at_once=True):
                    self._leave_alone("it is much slower than the source")
            elif self._reads.succeeded():
                log.info("the shared cache %s answers again", self._name)
                self._show()
            return True
        self._metrics.shared_errors.add()
        if self._reads.failed(at_once=400 <= exchange.status < 500):
            self._leave_alone(exchange.why)
        return False

    def _leave_alone(self, why: str) -> None:
        log.warning("the shared cache %s is left alone, the source serves: %s", self._name, why)
        self._show()

    def _probe(self) -> None:
        """Nobody waits for it."""
        if not self._reads.probe():
            return
        if not self._line.ready():
            self._reads.failed()
            return
        self._line.send(Exchange("GET", PROBE, self._answered, PATIENCE, whole=PATIENCE))

    def _end(self, ask: _Ask, data: memoryview | None) -> None:
        self._reading -= 1
        if ask.claim:
            if data is not None:
                self._waits.succeeded()
            else:
                self._waits.failed()
        if data is not None:
            self._metrics.shared_hits.add()
        else:
            self._metrics.shared_misses.add()
            self._asked_source[ask.part.name] = self._clock()
        self._results.append((ask.ticket, data))
        self._next()

    def _source_took(self, part: Part) -> None:
        if (began := self._asked_source.pop(part.name, None)) is not None:
            self._source_takes += (self._clock() - began - self._source_takes) / 8

    # -- claims

    def _claim(self, ask: _Ask) -> None:
        """Say that we fetch it, so that others wait; unless nothing may come of it."""
        late = self._clock() - ask.began > LONGEST_WAIT
        if late or not self._claims_hold or not self._writes.closed or self._queued > QUEUE_BYTES // 2:
            self._end(ask, None)
            return
        self._put(ask.part.name, CLAIM + os.urandom(TOKEN), partial(self._claimed, ask), new=True)

    def _claimed(self, ask: _Ask, exchange: Exchange) -> None:
        if exchange.status in (409, 412):  # somebody was faster
            self._look(ask)
            return
        if exchange.status in (400, 501):
            self._claims_hold = False
            log.info(
                "the shared cache %s knows no conditional writes (%s): what several hosts read at the same "
                "time, each fetches",
                self._name,
                exchange.why,
            )
        elif self._taken(exchange):
            now = self._clock()
            self._claims[ask.part.name] = _Claim(now)
            self._renew_at = min(self._renew_at, now + RENEW)
        self._end(ask, None)

    def _wait(self, ask: _Ask, exchange: Exchange) -> None:
        """Look again later, as long as the claim is one."""
        now, claim = self._clock(), bytes(exchange.body)
        if not ask.claim:
            if exchange.age > LEASE + 1 or not (self._waits.closed or self._waits.probe()):
                self._end(ask, None)  # it is old, or these come to nothing
                return
            ask.waits_since = now
        if claim != ask.claim:
            ask.claim, ask.claim_at = claim, now
        if now - ask.claim_at > LEASE or now - ask.waits_since > LONGEST_WAIT:
            self._end(ask, None)
            return
        poll = min(max((now - ask.waits_since) / 4, SHORTEST_POLL), LONGEST_POLL)
        self._order += 1
        heapq.heappush(self._waiting, (now + poll, self._order, ask))
        self._reading -= 1
        self._next()

    def _renew(self, now: float) -> None:
        for name, claim in self._claims.items():
            if claim.renewing or now - claim.renewed < RENEW or now - claim.began > LONGEST_CLAIM:
                continue
            if self._reads.closed and self._writes.closed:
                claim.renewing = True
                claim.renewed = now
                self._put(name, CLAIM + os.urandom(TOKEN), partial(self._renewed, name, claim))
        self._renew_at = now + RENEW / 2 if self._claims else math.inf

    def _renewed(self, name: str, claim: _Claim, exchange: Exchange) -> None:
        self._taken(exchange)
        claim.renewing = False
        if claim.kept is not None:
            self._queue.append(claim.kept)
            claim.kept = None
            self._write()

    # -- writes

    def _write(self) -> None:
        while self._queue and self._writing < WRITES:
            part, data = self._queue.popleft()
            claim = self._claims.get(part.name)
            if claim is not None and claim.renewing:  # which must not overwrite the entry
                claim.kept = part, data
                continue
            self._claims.pop(part.name, None)
            self._writing += 1
            body = pack(part, data) if isinstance(data, memoryview) else data
            if not self._line.ready():
                self._written(part, isinstance(data, memoryview), None)
                continue
            self._put(part.name, body, partial(self._written, part, isinstance(data, memoryview)))

    def _written(self, part: Part, entry: bool, exchange: Exchange | None) -> None:
        self._writing -= 1
        taken = exchange is not None and self._taken(exchange)
        if exchange is None:
            self._writes.failed()
        if entry:
            self._queued -= part.size
            (self._metrics.shared_writes if taken else self._metrics.shared_dropped).add()
        self._write()

    def _put(self, name: str, body: bytes, done: Callable[[Exchange], object], *, new: bool = False) -> None:
        patience = PATIENCE if new else WHOLE_WRITE
        self._line.send(Exchange("PUT", name, done, patience, whole=patience, upload=body, new=new))

    def _taken(self, exchange: Exchange) -> bool:
        """Whether it has taken something as it should, which may be news."""
        if 200 <= exchange.status < 300:
            if self._writes.succeeded():
                log.info("the shared cache %s takes what comes again", self._name)
                self._show()
            return True
        self._metrics.shared_errors.add()
        refused = 400 <= exchange.status < 500 or exchange.status == 507
        if self._writes.failed(at_once=refused):
            log.warning("the shared cache %s takes nothing and is only read: %s", self._name, exchange.why)
            self._show()
        return False

    def _show(self) -> None:
        if not self._reads.closed:
            self._tell(State.LEFT_ALONE)
        else:
            self._tell(State.FINE if self._writes.closed else State.READ_ONLY)
