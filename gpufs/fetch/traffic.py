"""When a request may be sent: what is important first, as much at once as is good; for one process."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from enum import IntEnum

from gpufs.fetch.bandwidth import Bandwidth
from gpufs.fetch.concurrency import Concurrency
from gpufs.fetch.courtesy import Courtesy
from gpufs.fetch.page import Own, SharedPage
from gpufs.metrics import Metrics

READERS_BYTES = 256 << 20  # on their way for readers at once, in each process; read-ahead among them
ADVANCE_REQUESTS = 32  # on their way, beyond which none is sent in advance; times the scale
ADVANCE_BYTES = 16 << 20  # on their way in advance in each process; times the scale
MOST_ADVANCE_BYTES = 128 << 20  # the same, at the largest scale
LOOK_AGAIN = 0.01  # seconds after which what the other process does may have changed


class Importance(IntEnum):
    """What is sent first when not all may be. From WARM on it makes way for readers."""

    DEMAND = 0  # a reader waits for it
    READ_AHEAD = 1  # a reader will want it next: of a large file, or in an order that is known
    WARM = 2  # somebody has named it
    FILL = 3  # it may be wanted


class Sent:
    """A request on its way, until what it brought is kept."""

    __slots__ = ("began", "importance", "outside", "size", "took", "undisturbed")

    def __init__(self, importance: Importance, size: int, outside: bool) -> None:
        self.importance = importance
        self.size = size
        self.outside = outside
        self.began = 0.0
        self.took: float | None = None  # seconds until its bytes were here
        self.undisturbed = False

    def arrive(self) -> None:
        """Its bytes are here, by the first try or not; in any thread."""
        self.took = time.monotonic() - self.began


class Traffic:
    """Lives in one thread, but for what Concurrency allows others."""

    def __init__(
        self,
        page: SharedPage,
        process: int,
        bandwidth_limit: int | None,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`bandwidth_limit`: bytes a second, of both processes."""
        self._own = page.own(process)
        for field in Own:  # a process that was here before has left its own
            self._own[field] = 0
        self.concurrency = Concurrency(metrics.throttled.add, clock)
        self._courtesy = Courtesy(page, process, clock)
        self._bandwidth = Bandwidth(page, bandwidth_limit, clock) if bandwidth_limit else None
        self._fetch_time = metrics.fetch_time
        self._readers_bytes = 0
        self._show()

    def wait(self, importance: Importance, at_once: int = 0) -> float:
        """Seconds after which to ask again; 0: it may be sent now. inf: when something has ended.

        `at_once`: so many in advance are worth a try, says whoever wants them.
        """
        concurrency = self.concurrency
        if concurrency.in_flight >= concurrency.ceiling:
            return math.inf
        if importance < Importance.WARM:
            if self._readers_bytes >= READERS_BYTES:
                return math.inf
        elif (seconds := self._wait_in_advance(importance, at_once)) > 0:
            return seconds
        if self._bandwidth is not None:
            return self._bandwidth.wait(reader=importance is Importance.DEMAND)
        return 0.0

    def _wait_in_advance(self, importance: Importance, at_once: int) -> float:
        concurrency, mine = self.concurrency, self._own[Own.ADVANCE_BYTES]
        if (
            concurrency.in_flight >= max(ADVANCE_REQUESTS * concurrency.scale, at_once)
            or mine >= ADVANCE_BYTES * concurrency.scale
        ):
            concurrency.scale_limits()
            return math.inf
        window = self._courtesy.window(of_fill=importance is Importance.FILL)
        if window is not None and (on_their_way := self._courtesy.advance_bytes()):
            return LOOK_AGAIN if on_their_way >= window else 0.0
        return 0.0

    def piece(self, length: int, least: int) -> int:
        """Of `length` bytes wanted in advance, how many to ask for with one request."""
        window = self._courtesy.window(of_fill=False)
        return length if window is None else min(length, max(least, window // 8))

    def began(self, importance: Importance, size: int, *, outside: bool = True) -> Sent:
        """`outside`: no fill is under way where this reader reads."""
        sent = Sent(importance, size, outside)
        sent.began = self.concurrency.began()
        if importance >= Importance.WARM:
            self._own[Own.ADVANCE_BYTES] += size
        else:
            self._readers_bytes += size
        if importance is Importance.DEMAND:
            sent.undisturbed = self._courtesy.undisturbed
            self._courtesy.reader_began(outside=outside)
        if self._bandwidth is not None:
            self._bandwidth.pay(size)
        self._own[Own.BYTES] += size
        self._show()
        return sent

    def ended(self, sent: Sent, *, succeeded: bool) -> None:
        self.concurrency.ended(sent.began, sent.size, succeeded=succeeded)
        if sent.took is not None:
            self._fetch_time.observe(sent.took)
        if sent.importance >= Importance.WARM:
            self._own[Own.ADVANCE_BYTES] -= sent.size
        else:
            self._readers_bytes -= sent.size
        if sent.importance is Importance.DEMAND:
            if succeeded and sent.took is not None:
                self._courtesy.took(sent.size, sent.began, sent.took, undisturbed=sent.undisturbed)
            self._courtesy.reader_ended(outside=sent.outside)
        self._own[Own.BYTES] -= sent.size
        self._show()

    def readers_wait(self, count: int) -> None:
        """So many requests of readers wait for their turn here."""
        self._own[Own.WAITING] = count

    def _show(self) -> None:
        self._own[Own.REQUESTS] = self.concurrency.in_flight
        self._own[Own.CEILING] = self.concurrency.ceiling


def shown(page: SharedPage, process: int) -> dict[str, int]:
    """For the status."""
    own = page.own(process)
    return {
        "requests": own[Own.REQUESTS],
        "bytes": own[Own.BYTES],
        "in_advance_bytes": own[Own.ADVANCE_BYTES],
        "requests_limit": own[Own.CEILING],
    }
