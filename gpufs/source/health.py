"""Whether the source answers: the last request's failure, until one succeeds."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from gpufs.errors import AccessDenied, DeadlineExceeded, GpufsError, ObjectArchived, RemoteFailed
from gpufs.source.base import Abilities, Batch, Downloads, Entry, ObjectRef, Page, Source

log = logging.getLogger("gpufs.source")


class Health:
    """What became of the latest request, of whichever thread."""

    def __init__(self) -> None:
        self._error: str | None = None
        self._lock = threading.Lock()

    @property
    def error(self) -> str | None:
        """Why the source fails now; None when it does not, as far as is known."""
        return self._error

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Note whether the request inside fails. An answer that somebody does not like is one."""
        try:
            yield
        except (ObjectArchived, AccessDenied, RemoteFailed, DeadlineExceeded) as failure:
            self._note(None if isinstance(failure, ObjectArchived) else str(failure))
            raise
        except GpufsError:
            self._note(None)
            raise
        self._note(None)

    def _note(self, error: str | None) -> None:
        if error == self._error:  # as nearly always
            return
        with self._lock:
            before, self._error = self._error, error
        if before is None:
            log.warning("the source fails, only what is on this host can be read: %s", error)
        elif error is None:
            log.info("the source answers again")


class WatchedSource:
    """A source whose requests are noted in a Health."""

    def __init__(self, source: Source, health: Health) -> None:
        self._source = source
        self._health = health

    @property
    def id(self) -> str:
        return self._source.id

    @property
    def abilities(self) -> Abilities:
        return self._source.abilities

    def check(self) -> None:
        with self._health.watch():
            self._source.check()

    def list(self, directory: bytes) -> Iterator[Page]:
        with self._health.watch():
            yield from self._source.list(directory)

    def walk(self) -> Iterator[Batch]:
        with self._health.watch():
            yield from self._source.walk()

    def stat(self, path: bytes) -> Entry:
        with self._health.watch():
            return self._source.stat(path)

    def key(self, path: bytes) -> bytes:
        return self._source.key(path)

    def read(
        self, ref: ObjectRef, offset: int, length: int, *, spent: float = 0.0, waited: float = 0.0
    ) -> memoryview:
        with self._health.watch():
            return self._source.read(ref, offset, length, spent=spent, waited=waited)

    def prepare(self) -> None:
        self._source.prepare()

    def downloads(self) -> Downloads | None:
        return self._source.downloads()

    def close(self) -> None:
        self._source.close()
