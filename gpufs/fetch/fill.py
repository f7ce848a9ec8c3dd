"""Epoch fill: a job that has missed some files of a directory in any order will want the rest.

A first epoch that waits for each file in turn leaves the network and the processors idle. So once a
small share of a directory's files was missed, the others are fetched in the background, while there
is room: nothing is evicted for what nobody has asked for yet.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator

from gpufs.cache import CHUNK, Cache
from gpufs.errors import GpufsError
from gpufs.fetch.ahead import LATER, Later, spare_of
from gpufs.fetch.messages import Wanted
from gpufs.index import Index
from gpufs.source.base import Kind, ObjectRef

SHARE = 0.02  # of a directory's files missed, that starts its fill
FEWEST = 8  # misses in one directory; fewer say nothing about a job
BATCH = 256  # names taken from the index at a time

log = logging.getLogger("gpufs.fill")


class EpochFill:
    """Says what to fetch in advance, directory after directory. One thread; never waits."""

    def __init__(self, index: Index, cache: Cache) -> None:
        self._index = index
        self._cache = cache
        self._directories: dict[int, _Directory] = {}
        self._queue: deque[int] = deque()
        self._missing: Iterator[Wanted | Later] = iter(())

    def missed(self, number: int) -> None:
        """A reader had to wait for a file of this directory."""
        directory = self._directories.setdefault(number, _Directory())
        directory.misses += 1
        if not directory.wanted and directory.misses >= FEWEST and self._enough(number, directory):
            directory.wanted = True
            self._queue.append(number)

    def next(self) -> Wanted | Later | None:
        """What to fetch next; None for nothing. LATER: there is more, but do something else first."""
        while (wanted := next(self._missing, None)) is None:
            if not self._queue:
                return None
            self._missing = self._missing_of(self._queue.popleft())
        return wanted

    def failed(self, directory: int, error: GpufsError) -> None:
        """An object of the directory could not be had: its fill is given up."""
        if self._directories.pop(directory, None) is not None:  # the readers' next misses start it again
            log.info("filling the cache in advance was given up: %s", error)

    def _enough(self, number: int, directory: _Directory) -> bool:
        """Whether the share was missed. Counts files only as far as that takes, each once."""
        while directory.files * SHARE <= directory.misses:
            batch = self._index.children(number, directory.counted, BATCH)
            if not batch:
                return True
            directory.files += sum(child.kind is Kind.FILE for child in batch)
            directory.counted = batch[-1].name
        return False

    def _missing_of(self, number: int) -> Iterator[Wanted | Later]:
        """The small files of a directory that are not here; ends when the cache has no more room."""
        directory = self._directories[number]
        path = self._index.path(number)
        below = path + b"/" if path else b""
        spare = spare_of(self._cache)
        after = None
        while batch := self._index.children(number, after, BATCH):
            for child in batch:
                if self._directories.get(number) is not directory:  # given up
                    return
                if (
                    child.kind is Kind.FILE
                    and 0 < child.size <= CHUNK
                    and not self._cache.has_object(child.digest)
                ):
                    if not self._cache.fits(child.size + spare):
                        return
                    yield Wanted(
                        child.digest, ObjectRef(below + child.name, child.version, child.size), number
                    )
            after = batch[-1].name
            yield LATER


class _Directory:
    """What was missed in a directory, and how far its files were counted."""

    __slots__ = ("counted", "files", "misses", "wanted")

    def __init__(self) -> None:
        self.misses = 0
        self.files = 0
        self.counted: bytes | None = None  # the last name that was counted
        self.wanted = False
