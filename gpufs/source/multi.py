"""libcurl's multi interface, driven by epoll: many transfers in one thread, which waits for all together."""

from __future__ import annotations

import math
import select
import time
from typing import Any

_CONNECTIONS = 256  # kept


class Multi:
    """Lives in one thread. Transfers are pycurl.Curl objects."""

    def __init__(self) -> None:
        import pycurl

        self._curl = pycurl
        self._poll = select.epoll()
        self._due: float | None = 0.0
        self._watched: set[int] = set()
        self._multi = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_MAXCONNECTS, _CONNECTIONS)
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._watch)
        self._multi.setopt(pycurl.M_TIMERFUNCTION, self._set_timer)

    def fileno(self) -> int:
        """Readable when turn() has something to do."""
        return self._poll.fileno()

    def timeout(self, look_at: float) -> float | None:
        """Seconds after which turn() has something to do, or it is `look_at` (time.monotonic, or inf)."""
        due = look_at if self._due is None else min(look_at, self._due)
        return None if due == math.inf else max(0.0, due - time.monotonic())

    def add(self, transfer: Any) -> None:
        self._multi.add_handle(transfer)

    def remove(self, transfer: Any) -> None:
        self._multi.remove_handle(transfer)

    def turn(self) -> None:
        """Let libcurl do what it can do without waiting."""
        pycurl = self._curl
        for fd, events in self._poll.poll(0):
            what = pycurl.CSELECT_IN if events & ~select.EPOLLOUT else 0
            what |= pycurl.CSELECT_OUT if events & select.EPOLLOUT else 0
            self._multi.socket_action(fd, what)
        if self._due is not None and self._due <= time.monotonic():
            self._due = None
            self._multi.socket_action(pycurl.SOCKET_TIMEOUT, 0)

    def ended(self) -> list[tuple[Any, int]]:
        """The transfers that have ended since the last call; libcurl's code of what failed, or 0."""
        ended: list[tuple[Any, int]] = []
        more = True
        while more:
            more, succeeded, failed = self._multi.info_read()
            ended += [(curl, 0) for curl in succeeded]
            ended += [(curl, code) for curl, code, _ in failed]
        return ended

    # -- what libcurl asks of its driver

    def _watch(self, what: int, fd: int, multi: object, data: object) -> None:
        if what == self._curl.POLL_REMOVE:
            self._watched.discard(fd)
            self._poll.unregister(fd)
            return
        events = select.EPOLLIN if what & self._curl.POLL_IN else 0
        events |= select.EPOLLOUT if what & self._curl.POLL_OUT else 0
        if fd in self._watched:
            self._poll.modify(fd, events)
        else:
            self._watched.add(fd)
            self._poll.register(fd, events)

    def _set_timer(self, milliseconds: int) -> None:
        self._due = None if milliseconds < 0 else time.monotonic() + milliseconds / 1000
