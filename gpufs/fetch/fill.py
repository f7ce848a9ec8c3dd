"""Epoch fill: a job that has missed some files of a directory in any order will want the rest.

A first epoch that waits for each file in turn leaves the network and the processors idle. So once a
small share of a directory's files was missed, the others are fetched in the background, while there
is room: nothing is evicted for what nobody has asked for yet.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import trio

from gpufs.cache import CHUNK, Cache
from gpufs.errors import GpufsError
from gpufs.fetch.fetcher import Fetcher
from gpufs.index import Index, Inode
from gpufs.metrics import Metrics
from gpufs.source.base import Kind, ObjectRef

SHARE = 0.02  # of a directory's files missed, that starts its fill
FEWEST = 8  # misses in one directory; fewer say nothing about a job
TASKS = 8  # objects fetched at once
ROOM = 0.95  # of the cache's limit that a fill may use
BATCH = 256  # names taken from the index at a time

log = logging.getLogger("gpufs.fill")


class EpochFill:
    """Fills directories, one after the other; lives in the trio thread."""

    def __init__(self, index: Index, cache: Cache, fetcher: Fetcher, metrics: Metrics) -> None:
        self._index = index
        self._cache = cache
        self._fetcher = fetcher
        self._metrics = metrics
        self._misses: dict[int, int] = {}  # directory -> files missed in it; -1 once it was filled
        self._wanted, self._next = trio.open_memory_channel[int](1024)

    def missed(self, inode: Inode) -> None:
        """A reader had to wait for this file."""
        directory = inode.parent
        count = self._misses.get(directory, 0)
        if count < 0:
            return
        self._misses[directory] = count = count + 1
        if count >= FEWEST and count >= SHARE * self._files(directory, int(count / SHARE) + 1):
            try:
                self._wanted.send_nowait(directory)
            except trio.WouldBlock:
                return  # the next miss will ask again
            self._misses[directory] = -1

    async def run(self) -> None:
        """Fill what is wanted, for ever."""
        async for directory in self._next:
            missing = self._missing(directory)
            filled = self._metrics.prefetched.value
            try:
                async with trio.open_nursery() as nursery:
                    for _ in range(TASKS):
                        nursery.start_soon(self._fill, missing)
            except* GpufsError as group:
                log.info("filling the cache in advance was given up: %s", group.exceptions[0])
                self._misses.pop(directory, None)  # the readers' next misses start it again
            log.debug("filled directory %d: %d files", directory, self._metrics.prefetched.value - filled)

    async def _fill(self, missing: Iterator[Inode]) -> None:
        for inode in missing:
            path = self._index.path(inode.number)
            if await self._fetcher.ahead_object(inode.digest, ObjectRef(path, inode.version, inode.size)):
                self._metrics.prefetched.add()

    def _files(self, directory: int, most: int) -> int:
        """How many files the directory has, counted up to `most` at least."""
        count, after = 0, None
        while count < most and (batch := self._index.children(directory, after, BATCH)):
            count += sum(child.kind is Kind.FILE for child in batch)
            after = batch[-1].name
        return count

    def _missing(self, directory: int) -> Iterator[Inode]:
        """The small files of the directory that are not here; ends when the cache has no more room."""
        after = None
        while batch := self._index.children(directory, after, BATCH):
            usage = self._cache.usage()
            room = usage.limit * ROOM - usage.bytes
            for child in batch:
                if (
                    child.kind is Kind.FILE
                    and 0 < child.size <= CHUNK
                    and not self._cache.has_object(child.digest)
                ):
                    room -= child.size
                    if room < 0:
                        return
                    yield child
            after = batch[-1].name
