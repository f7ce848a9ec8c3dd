"""Leaves something alone for a time that has failed several times in a row."""

from __future__ import annotations

import time
from collections.abc import Callable

FAILURES = 5  # in a row
_FIRST, _LONGEST = 1.0, 60.0  # seconds it is left alone; doubled with each failed probe


class Breaker:
    """Lives in one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures = 0
        self._pause = 0.0  # 0 while it is closed
        self._until = 0.0
        self._probing = False

    @property
    def closed(self) -> bool:
        """All is well, as far as is known."""
        return not self._pause

    @property
    def pause(self) -> float:
        """Seconds for which it is left alone after the last failure."""
        return self._pause

    def probe(self) -> bool:
        """Whether one may be sent now to see whether all is well again; its end must be told."""
        if self.closed or self._probing or self._clock() < self._until:
            return False
        self._probing = True
        return True

    def succeeded(self) -> bool:
        """Whether that ends a time of failures; what was sent before that began does not."""
        self._failures = 0
        if self.closed or not self._probing:
            return False
        self._pause = 0.0
        self._probing = False
        return True

    def failed(self, *, at_once: bool = False) -> bool:
        """Whether it is left alone from now on, and was not before. `at_once`: one failure is enough."""
        if not self.closed:
            if self._probing:  # else it was sent before
                self._probing = False
                self._pause = min(2 * self._pause, _LONGEST)
                self._until = self._clock() + self._pause
            return False
        self._failures += 1
        if self._failures < FAILURES and not at_once:
            return False
        self._pause = _FIRST
        self._until = self._clock() + self._pause
        return True
