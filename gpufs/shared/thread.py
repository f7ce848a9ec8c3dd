"""The shared cache for a process of many threads: it lives in one of its own, and the others wait for it."""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from collections.abc import Callable

from .entry import Part
from .tier import Tier

_LONGEST = 30.0  # seconds; Tier itself ends sooner


class TierThread:
    """Thread-safe."""

    def __init__(self, tier: Tier) -> None:
        self._tier = tier
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._flush: float | None = None
        self._thread = threading.Thread(target=self._run, name="gpufs shared cache", daemon=True)
        self._thread.start()

    def get(self, part: Part, *, urgent: bool) -> memoryview | None:
        """The bytes; None when they must come from the source: then keep() or give_up() is to be told."""
        answer = _Answer()

        def ask() -> None:
            if not self._tier.ask(part, answer, urgent=urgent):
                answer.come(None)

        self._do(ask)
        return answer.wait()

    def keep(self, part: Part, data: memoryview) -> None:
        """See Tier.keep()."""
        self._do(lambda: self._tier.keep(part, data))

    def give_up(self, part: Part) -> None:
        """See Tier.give_up()."""
        self._do(lambda: self._tier.give_up(part))

    def close(self, seconds: float) -> None:
        """Write what is to be written, as far as that goes in the time."""
        self._flush = seconds
        os.eventfd_write(self._wake, 1)
        self._thread.join(seconds + 1)

    def _do(self, work: Callable[[], None]) -> None:
        self._inbox.append(work)
        os.eventfd_write(self._wake, 1)

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        poll.register(self._tier, select.POLLIN)
        while self._flush is None:
            timeout = self._tier.timeout()
            for fd, _ in poll.poll(None if timeout is None else 1000 * timeout + 1):
                if fd == self._wake:
                    os.eventfd_read(self._wake)
            self._take()
        self._tier.flush(self._flush)

    def _take(self) -> None:
        while self._inbox:
            self._inbox.popleft()()
        for answer, data in self._tier.turn():
            answer.come(data)


class _Answer:
    def __init__(self) -> None:
        self._came = threading.Event()
        self._data: memoryview | None = None

    def come(self, data: memoryview | None) -> None:
        self._data = data
        self._came.set()

    def wait(self) -> memoryview | None:
        self._came.wait(_LONGEST)
        return self._data
