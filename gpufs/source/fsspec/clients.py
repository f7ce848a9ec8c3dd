"""Clients of a server, each with a thread of its own, and none waited for longer than a request may take.

Most of fsspec's filesystems hold one connection that one thread may use, and know no deadline.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from gpufs.errors import NotADirectory, NotFound, VersionGone
from gpufs.source.retry import Transient

from .adapters import Adapter

_log = logging.getLogger(__name__)

T = TypeVar("T")

_MOST = 8  # connections; servers of these kinds allow few
_ANSWERS = (NotFound, NotADirectory, VersionGone)  # the connection is in order
_END = None  # tells a thread to end


class Clients:
    """Up to `_MOST` clients, made when needed. One that failed or was waited for in vain goes."""

    def __init__(self, make: Callable[[], Adapter], translate: Callable[[Exception], Exception]) -> None:
        self._make = make
        self._translate = translate
        self._slots = threading.Semaphore(_MOST)
        self._lock = threading.Lock()
        self._idle: list[_Client] = []
        self._closed = False

    def run(self, work: Callable[[Adapter], T], left: float) -> T:
        """Raises what `work` raises, translated; Transient after `left` seconds."""
        end = time.monotonic() + left
        if not self._slots.acquire(timeout=left):
            raise Transient("all connections are busy", timed_out=True)
        try:
            with self._lock:
                client = self._idle.pop() if self._idle else None
            if client is None:
                client = _Client(self._make)
            future = client.submit(work)
            try:
                result: T = future.result(timeout=max(0.0, end - time.monotonic()))
            except Exception as error:
                late = not future.done()
                failure = (
                    Transient("the server did not answer in time", timed_out=True)
                    if late
                    else self._translate(error)
                )
                if late or not isinstance(failure, _ANSWERS):
                    client.drop()
                else:  # an answer
                    self._put_back(client)
                raise failure from (None if late else error)
            self._put_back(client)
            return result
        finally:
            self._slots.release()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for client in idle:
            client.drop()

    def _put_back(self, client: _Client) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(client)
                return
        client.drop()


class _Client:
    """An adapter in a thread of its own, made there."""

    def __init__(self, make: Callable[[], Adapter]) -> None:
        self._make = make
        self._adapter: Adapter | None = None
        self._work: queue.SimpleQueue[tuple[Callable[[Adapter], Any], Future[Any]] | None] = (
            queue.SimpleQueue()
        )
        # a daemon: one that hangs must not keep the process from ending
        threading.Thread(target=self._serve, name="gpufs fsspec", daemon=True).start()

    def submit(self, work: Callable[[Adapter], T]) -> Future[T]:
        future: Future[T] = Future()
        self._work.put((work, future))
        return future

    def drop(self) -> None:
        """Let its thread end when it comes back, and break the connection that it may be waiting for."""
        self._work.put(_END)
        adapter = self._adapter
        if adapter is not None:
            try:
                adapter.close()
            except Exception as error:
                _log.debug("closing a connection: %s", error)

    def _serve(self) -> None:
        while (job := self._work.get()) is not _END:
            work, future = job
            try:
                if self._adapter is None:
                    self._adapter = self._make()
                result = work(self._adapter)
            except BaseException as error:
                future.set_exception(error)
                del error
            else:
                future.set_result(result)
            del job, work, future
