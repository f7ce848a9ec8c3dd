"""Waiting for the next request: awake for a moment where it comes soon, asleep otherwise."""

from __future__ import annotations

import os
import select
import time

AWAKE = 100_000  # ns; about what being woken costs, where the processor has to be woken too


class Patience:
    """Waits until a descriptor can be read.

    A reader that opens one file after the other sends its next request within some ten microseconds.
    To sleep then means to be woken at once, which costs more than the request (on a virtual machine up
    to 50 us). So it stays awake for AWAKE after a request if the last one came as soon, and not once it
    did not: a reader that works on each file for longer costs no processor time while it does.
    """

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        self._poll = poll.poll
        self._soon = False

    def wait(self) -> None:
        """Return when there is something to read, or the other end has gone."""
        poll, now = self._poll, time.monotonic_ns
        begin = now()
        if self._soon:
            end = begin + AWAKE
            while now() < end:
                if poll(0):
                    return
        poll()
        self._soon = now() - begin < AWAKE
