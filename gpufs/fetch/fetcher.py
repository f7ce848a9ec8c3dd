"""Chunks of large objects: from the source into the cache."""

from __future__ import annotations

from collections import OrderedDict

import trio

from gpufs.cache import CHUNK, Cache, Partial
from gpufs.errors import DeadlineExceeded, RemoteFailed
from gpufs.fetch.failures import RecentFailures
from gpufs.fetch.flight import SingleFlight
from gpufs.fetch.workers import Workers
from gpufs.metrics import Metrics
from gpufs.source.base import ObjectRef, Source

DEMAND_THREADS = 64  # requests that a reader waits for, at once
READ_AHEAD_THREADS = 32  # chunks fetched before they are asked for, at once
UNKEPT_BYTES = 256 << 20  # chunks held in memory because the cache could not take them


class Fetcher:
    """Brings chunks of one source into the cache, each once at a time."""

    def __init__(self, source: Source, cache: Cache, metrics: Metrics, nursery: trio.Nursery) -> None:
        self._source = source
        self._cache = cache
        self._metrics = metrics
        self._demand = Workers(DEMAND_THREADS)
        self._ahead = Workers(READ_AHEAD_THREADS)
        self._chunks: SingleFlight[tuple[bytes, int], None] = SingleFlight(nursery)
        self._unkept = UnkeptChunks(UNKEPT_BYTES)
        self._failed: RecentFailures[tuple[bytes, int]] = RecentFailures()

    async def uncached(self, ref: ObjectRef, offset: int, length: int) -> memoryview:
        """Bytes straight from the source, for when the cache's copy turned out to be damaged."""
        return await self._demand.run(self._source.read, ref, offset, length)

    async def open_partial(self, digest: bytes, size: int) -> Partial:
        return await self._demand.run(self._cache.open_partial, digest, size)

    async def chunk(self, partial: Partial, digest: bytes, ref: ObjectRef, number: int) -> memoryview | None:
        """Have chunk `number` at hand: None when `partial` holds it now, its bytes when it could not.

        `partial` must stay open until this returns. A source that failed until its deadline is not
        asked for the same chunk again for a moment, or one read(2) would wait for two deadlines.
        """
        key = (digest, number)
        while not partial.has(number):
            if (data := self._unkept.get(key)) is not None:
                return data
            self._failed.raise_for(key)
            try:
                await self._chunks.run(key, lambda: self._chunk(self._demand, partial, digest, ref, number))
            except (RemoteFailed, DeadlineExceeded) as error:
                self._failed.note(key, error)
                raise
        return None

    async def ahead(self, partial: Partial, digest: bytes, ref: ObjectRef, number: int) -> None:
        """Like chunk(), before anybody asked; waits its turn behind the other read-ahead."""
        key = (digest, number)
        if not partial.has(number) and key not in self._chunks and key not in self._unkept:
            await self._chunks.run(key, lambda: self._chunk(self._ahead, partial, digest, ref, number))

    async def _chunk(
        self, workers: Workers, partial: Partial, digest: bytes, ref: ObjectRef, number: int
    ) -> None:
        data = await workers.run(self._fetch_chunk, partial, ref, number)
        if data is not None:
            self._unkept.put((digest, number), data)

    def _fetch_chunk(self, partial: Partial, ref: ObjectRef, number: int) -> memoryview | None:
        offset = number * CHUNK
        data = self._source.read(ref, offset, min(CHUNK, ref.size - offset))
        return None if partial.write(number, data) else data


class UnkeptChunks:
    """Chunks the cache had no room for, the latest used of them, so that they are not fetched per read."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = 0
        self._chunks: OrderedDict[tuple[bytes, int], memoryview] = OrderedDict()

    def __contains__(self, key: tuple[bytes, int]) -> bool:
        return key in self._chunks

    def get(self, key: tuple[bytes, int]) -> memoryview | None:
        data = self._chunks.get(key)
        if data is not None:
            self._chunks.move_to_end(key)
        return data

    def put(self, key: tuple[bytes, int], data: memoryview) -> None:
        old = self._chunks.pop(key, None)
        self._bytes += len(data) - (len(old) if old is not None else 0)
        self._chunks[key] = data
        while self._bytes > self._limit and len(self._chunks) > 1:
            _, dropped = self._chunks.popitem(last=False)
            self._bytes -= len(dropped)
