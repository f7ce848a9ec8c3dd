"""Memory that the filesystem process and its fetch process share: what each is fetching, and has counted."""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum

from gpufs.metrics import MOST_CELLS

FILESYSTEM, FETCH = 0, 1  # the processes
_PROCESSES = 2
_SIZE = 8192


class Common(IntEnum):
    """What both change."""

    WINDOW = 0  # bytes that may be on their way in advance while somebody reads
    PAID_UNTIL = 1  # ns, CLOCK_MONOTONIC: until when the bandwidth limit is used up


class Own(IntEnum):
    """What one process says and the other reads."""

    READERS = 0  # requests on their way that a reader waits for
    READ_AT = 1  # ns: when there was one last
    OUTSIDE = 2  # those of them that no epoch fill is for
    OUTSIDE_AT = 3
    WAITING = 4  # requests of readers that wait for their turn
    ADVANCE_BYTES = 5  # on their way in advance
    REQUESTS = 6  # on their way
    BYTES = 7
    CEILING = 8  # requests that may be
    SHARED = 9  # the State of the shared cache


class SharedPage:
    """Every field is a number of 8 bytes that is stored and loaded as a whole."""

    def __init__(self, fd: int | None = None) -> None:
        """`fd`: of a page that another process has made; it becomes this object's."""
        self.fd = os.memfd_create("gpufs traffic", os.MFD_CLOEXEC) if fd is None else fd
        if fd is None:
            os.ftruncate(self.fd, _SIZE)
        self._memory = mmap.mmap(self.fd, _SIZE)
        self._fields = memoryview(self._memory).cast("Q")
        starts = (len(Common) + process * len(Own) for process in range(_PROCESSES))
        self._own = [self._fields[start : start + len(Own)] for start in starts]
        first = len(Common) + _PROCESSES * len(Own)
        starts = (first + process * MOST_CELLS for process in range(_PROCESSES))
        self._counted = [self._fields[start : start + MOST_CELLS] for start in starts]

    def close(self) -> None:
        """Whoever has own() or counted() fields keeps the memory for himself."""
        os.close(self.fd)
        self._fields.release()
        self._own.clear()
        self._counted.clear()
        with suppress(BufferError):
            self._memory.close()

    def get(self, field: Common) -> int:
        return self._fields[field]

    def set(self, field: Common, value: int) -> None:
        self._fields[field] = value

    def own(self, process: int) -> memoryview:
        """The fields of one process, to be indexed by Own."""
        return self._own[process]

    def counted(self, process: int) -> memoryview:
        """The cells for the Metrics of one process, all zero before it has counted anything."""
        return self._counted[process]

    def total(self, field: Own) -> int:
        return sum([own[field] for own in self._own])

    def latest(self, field: Own) -> int:
        return max([own[field] for own in self._own])

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else is inside; between processes, not between the threads of one. Ends with its process."""
        fcntl.lockf(self.fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self.fd, fcntl.LOCK_UN)
