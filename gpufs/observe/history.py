"""The last moments of a mount, to tell what limits it from more than one second."""

from __future__ import annotations

from collections import deque

from gpufs.observe.figures import Figures
from gpufs.observe.limit import Verdict, limit_of
from gpufs.observe.rates import Interval

LIMIT_S = 5.0  # one second of a job says little


class History:
    def __init__(self, first: Figures) -> None:
        self._moments = deque([first])

    def add(self, now: Figures) -> tuple[Interval, Verdict]:
        """Since the moment before; and what limits, over LIMIT_S."""
        self._moments.append(now)
        while now.when - self._moments[1].when >= LIMIT_S and len(self._moments) > 2:
            self._moments.popleft()
        return Interval(self._moments[-2], now), limit_of(Interval(self._moments[0], now))
