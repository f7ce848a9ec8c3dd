"""What is fetched in advance makes way for readers: how much of it may be on its way while somebody reads.

The idea is that of LEDBAT (RFC 6817): bytes on their way wait in the link's queue, and a reader's bytes
behind them. So the time a reader's request takes is compared with what one of that size takes when nothing
else is on its way; the window of what is fetched in advance shrinks when it takes longer, else it grows.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from gpufs.fetch.page import Common, Own, SharedPage

LEAST = 256 << 10  # bytes; the window never gets smaller, so that a warm-up always goes on
MOST = 1 << 40
TARGET = 1.25  # times its undisturbed time that a reader's request may take
GAIN = 0.5  # how fast the window follows
LEAST_CHANGE, MOST_CHANGE = 0.7, 1.15  # of the window by one request
SILENCE = 0.25  # seconds without a reader after which there is no window
SLACK = 0.01  # seconds: shorter times are compared as if they were so long, or a busy processor would count
LEARNED = 4  # undisturbed requests after which their time is believed
FORGET = 0.125  # weight of the latest one


class Courtesy:
    """One process's part in it. Lives in one thread."""

    def __init__(self, page: SharedPage, process: int, clock: Callable[[], float]) -> None:
        self._page = page
        self._own = page.own(process)
        self._clock = clock
        self._usual: dict[int, tuple[int, float]] = {}  # by size: undisturbed requests, and their seconds
        self._cut_at = -math.inf
        if not page.get(Common.WINDOW):
            page.set(Common.WINDOW, LEAST)

    def reader_began(self, *, outside: bool) -> None:
        self._own[Own.READERS] += 1
        self._own[Own.OUTSIDE] += outside

    def reader_ended(self, *, outside: bool) -> None:
        now = int(self._clock() * 1e9)
        self._own[Own.READERS] -= 1
        self._own[Own.READ_AT] = now
        if outside:
            self._own[Own.OUTSIDE] -= 1
            self._own[Own.OUTSIDE_AT] = now

    def window(self, *, of_fill: bool) -> int | None:
        """Bytes that both processes may have on their way in advance; None when nobody reads.

        Whoever reads in a directory that is being filled is served by that: a fill heeds only the others.
        """
        count, at = (Own.OUTSIDE, Own.OUTSIDE_AT) if of_fill else (Own.READERS, Own.READ_AT)
        if self._page.total(count) or self._clock() - self._page.latest(at) / 1e9 < SILENCE:
            return self._page.get(Common.WINDOW)
        return None

    def advance_bytes(self) -> int:
        """On their way in advance, of both processes."""
        return self._page.total(Own.ADVANCE_BYTES)

    @property
    def undisturbed(self) -> bool:
        """Hardly anything is on its way in advance now."""
        return self.advance_bytes() <= LEAST

    def took(self, size: int, began: float, seconds: float, *, undisturbed: bool) -> None:
        """A reader's request was answered; `undisturbed` as it was when it was sent, at `began`."""
        kind = size.bit_length()
        count, usual = self._usual.get(kind, (0, seconds))
        if undisturbed and self.undisturbed:
            # While the window is at its least every request counts as undisturbed: so what has become
            # slow by itself is the new measure after a moment.
            self._usual[kind] = count + 1, usual + (seconds - usual) * max(FORGET, 1 / (count + 1))
        change = LEAST_CHANGE  # to learn what is usual it must be quiet
        if count >= LEARNED:
            ratio = 1 + (seconds - usual) / max(usual, SLACK)
            change = 1 + GAIN * (TARGET - ratio)
        if change < 1:
            if began < self._cut_at:  # it was sent before the window shrank
                return
            self._cut_at = self._clock()
        window = self._page.get(Common.WINDOW) * min(max(change, LEAST_CHANGE), MOST_CHANGE)
        # Beyond what is used it would say nothing.
        most = max(LEAST, 4 * self.advance_bytes())
        if change < 1 or window <= most:
            self._page.set(Common.WINDOW, int(min(max(window, LEAST), MOST)))
