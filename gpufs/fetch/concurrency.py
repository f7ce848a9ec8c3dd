"""How many requests at once an endpoint bears, and how many are of use; for one process."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

MOST = 256  # requests at once, if the endpoint never complains
LEAST = 4  # however much it complains
HOLD = 5.0  # seconds after a complaint in which the number at which it came is not tried again
MOST_SCALE = 8.0  # of what is sent in advance: times what it starts with
STEP = 1.5  # by which that is tried to be raised
PAYS = 0.6  # of its share that a step must bring in throughput to be kept
WINDOW = 32  # requests over which throughput is measured, at least
WINDOW_SECONDS = 0.5  # too
PAUSE, MOST_PAUSE = 5.0, 60.0  # seconds until a step that did not pay is tried again; doubled each time
REQUEST_COSTS = 64 << 10  # bytes: what a request is worth beside its payload, where throughput is compared


class Concurrency:
    """Two limits that follow what happens to the requests.

    `ceiling` is for every request. When the endpoint complains (503, 429, SlowDown, a timeout, a refused
    connection) it becomes half of what was on its way, once per round trip: complaints about requests that
    were sent before are no news. A window of successes adds one (AIMD, as in RFC 5681).

    `scale` is for what is sent in advance: a factor of what that starts with. It grows in steps, and a step
    that brings no more throughput, only more latency, is taken back.

    Lives in one thread, but for trouble() and repeat(), which any may call.
    """

    def __init__(
        self, troubled: Callable[[], None] = lambda: None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`troubled` is called with each complaint."""
        self._troubled = troubled
        self._clock = clock
        self._lock = threading.Condition()
        self._ceiling = float(MOST)
        self._wall = math.inf  # on their way at the last complaint
        self._cut_at = -math.inf
        self._successes = 0
        self._peak = 0  # on their way at once, lately
        self._repeating = 0
        self.in_flight = 0
        self.scale = 1.0
        self._climb = _Climb(clock())

    @property
    def ceiling(self) -> int:
        return int(self._ceiling)

    def began(self) -> float:
        """A request is sent; what ended() and trouble() want to know of it."""
        self.in_flight += 1
        self._peak = max(self._peak, self.in_flight)
        return self._clock()

    def ended(self, began: float, size: int, *, succeeded: bool) -> None:
        if succeeded:
            if self._ceiling < MOST:
                self._recover()
            self.scale = self._climb.ended(self.scale, began, self._clock(), size)
        self.in_flight -= 1

    def scale_limits(self) -> None:
        """Something would have been sent in advance now, with a larger scale."""
        self._climb.limited = True

    def trouble(self, began: float) -> None:
        """The endpoint complains about a request that was sent at `began`."""
        self._troubled()
        with self._lock:
            if began <= self._cut_at:
                return
            self._cut_at = self._clock()
            self._wall = min(self._ceiling, self._peak)
            self._ceiling = max(float(LEAST), self._wall // 2)
            self._successes = 0
            self._peak = self.in_flight

    @contextmanager
    def repeat(self, seconds: float) -> Iterator[None]:
        """Inside, what failed is sent again: no more of it at once than the ceiling, or after `seconds`.

        Requests that are repeated stay on their way meanwhile, so nothing new takes their place.
        """
        with self._lock:
            self._lock.wait_for(lambda: self._repeating < self._ceiling, seconds)
            self._repeating += 1
        try:
            yield
        finally:
            with self._lock:
                self._repeating -= 1
                self._lock.notify()

    def _recover(self) -> None:
        with self._lock:
            self._successes += 1
            if self._successes < self._ceiling:
                return
            self._successes = 0
            peak, self._peak = self._peak, self.in_flight
            if peak < self.ceiling:  # nobody knows whether more would do
                return
            if self._ceiling + 1 < self._wall or self._clock() - self._cut_at > HOLD:
                self._ceiling += 1


class _Climb:
    """Raises the scale step by step, as long as that pays."""

    def __init__(self, now: float) -> None:
        self.limited = False  # more would have been sent, in this window
        self._before: tuple[float, float] | None = None  # scale and throughput before the step that is tried
        self._stepped = now
        self._rest_until = -math.inf
        self._pause = PAUSE
        self._open(None)

    def _open(self, now: float | None) -> None:
        """Begin to measure; None: with the end of the first request that was sent after the last step."""
        self._since = now
        self._count = 0
        self._work = 0

    def ended(self, scale: float, began: float, now: float, size: int) -> float:
        """The scale from now on."""
        if self._since is None:
            if began >= self._stepped:
                self._open(now)
            return scale
        self._count += 1
        self._work += size + REQUEST_COSTS
        seconds = now - self._since
        if self._count < WINDOW or seconds < WINDOW_SECONDS:
            return scale
        throughput = self._work / seconds
        limited, self.limited = self.limited, False
        self._open(now)
        if not limited:  # what was measured is what there was to do
            self._before = None
        elif self._before is not None:
            before, then = self._before
            self._before = None
            if throughput < then * (1 + PAYS * (scale / before - 1)):
                self._rest_until = now + self._pause
                self._pause = min(self._pause * 2, MOST_PAUSE)
                return before
            self._pause = PAUSE
            return self._step(scale, throughput, now)
        elif now >= self._rest_until:
            return self._step(scale, throughput, now)
        return scale

    def _step(self, scale: float, throughput: float, now: float) -> float:
        if scale >= MOST_SCALE:
            return scale
        self._before = scale, throughput
        self._stepped = now
        self._open(None)
        return min(scale * STEP, MOST_SCALE)
