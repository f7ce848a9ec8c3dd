"""The bandwidth limit: so many bytes a second for both processes together, those of readers first."""

from __future__ import annotations

from collections.abc import Callable

from gpufs.fetch.page import Common, Own, SharedPage

LOOK_AGAIN = 0.01  # seconds
SAVED = 0.02  # seconds that may be caught up with: whoever waits is never back at the very moment


class Bandwidth:
    """A bucket that may be overdrawn (the generic cell rate algorithm, ITU-T I.371).

    A request is sent as soon as all before it are paid for, and is paid for then: `size / limit` seconds in
    which no other is sent. So any size works, and at no time more than one request is ahead of the limit.
    """

    def __init__(self, page: SharedPage, limit: int, clock: Callable[[], float]) -> None:
        """`limit`: bytes a second."""
        self._page = page
        self._limit = limit
        self._clock = clock

    def wait(self, *, reader: bool) -> float:
        """Seconds until a request may be sent; 0 for now: then pay() follows at once."""
        if not reader and self._page.total(Own.WAITING):
            return LOOK_AGAIN
        return max(0.0, self._page.get(Common.PAID_UNTIL) / 1e9 - self._clock())

    def pay(self, size: int) -> None:
        with self._page.locked():
            until = max(self._page.get(Common.PAID_UNTIL) / 1e9, self._clock() - SAVED)
            self._page.set(Common.PAID_UNTIL, int((until + size / self._limit) * 1e9))
