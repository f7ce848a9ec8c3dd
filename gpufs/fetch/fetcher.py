"""Chunks of large objects: from the source into the cache."""

from __future__ import annotations

import time
from collections import OrderedDict

import trio

from gpufs.cache import CHUNK, Cache, Partial
from gpufs.errors import DeadlineExceeded, RemoteFailed
from gpufs.fetch.concurrency import MOST
from gpufs.fetch.failures import RecentFailures
from gpufs.fetch.flight import SingleFlight
from gpufs.fetch.traffic import Importance, Sent, Traffic
from gpufs.fetch.turns import Turn, Turns
from gpufs.fetch.workers import Workers
from gpufs.shared import Part, TierThread, part_of
from gpufs.source.base import ObjectRef, Source

UNKEPT_BYTES = 256 << 20  # chunks held in memory because the cache could not take them


class Fetcher:
    """Brings chunks of one source into the cache, each once at a time, those that readers wait for first."""

    def __init__(
        self,
        source: Source,
        cache: Cache,
        traffic: Traffic,
        nursery: trio.Nursery,
        shared: TierThread | None = None,
    ) -> None:
        self._source = source
        self._source_id = source.id
        self._shared = shared
        self._cache = cache
        self._turns = Turns(traffic, nursery)
        self._threads = Workers(MOST)  # never more than may be on their way
        self._chunks: SingleFlight[tuple[bytes, int], None] = SingleFlight(nursery)
        self._wanted: dict[tuple[bytes, int], Turn] = {}  # the turn that each flight waits for, or had last
        self._unkept = UnkeptChunks(UNKEPT_BYTES)
        self._failed: RecentFailures[tuple[bytes, int]] = RecentFailures()

    async def uncached(self, ref: ObjectRef, offset: int, length: int) -> memoryview:
        """Bytes straight from the source, for when the cache's copy turned out to be damaged."""
        turn = Turn(Importance.DEMAND, length)
        async with self._turns.taken(turn) as sent:
            return await self._threads.run(self._read, ref, offset, length, sent, turn.waited)

    async def open_partial(self, digest: bytes, size: int) -> Partial:
        return await self._threads.run(self._cache.open_partial, digest, size)

    async def chunk(
        self,
        partial: Partial,
        digest: bytes,
        ref: ObjectRef,
        number: int,
        importance: Importance = Importance.DEMAND,
    ) -> memoryview | None:
        """Have chunk `number` at hand: None when `partial` holds it now, its bytes when it could not.

        `partial` must stay open until this returns. A source that failed until its deadline is not
        asked for the same chunk again for a moment, or one read(2) would wait for two deadlines.
        """
        key = (digest, number)
        while not partial.has(number):
            if (data := self._unkept.get(key)) is not None:
                return data
            if importance is not Importance.DEMAND:
                await self._join(importance, key, partial, ref)
                continue
            self._failed.raise_for(key)
            try:
                await self._join(importance, key, partial, ref)
            except (RemoteFailed, DeadlineExceeded) as error:
                self._failed.note(key, error)
                raise
        return None

    async def ahead(self, partial: Partial, digest: bytes, ref: ObjectRef, number: int) -> None:
        """Like chunk(), before anybody asked, and without the bytes."""
        key = (digest, number)
        if not partial.has(number) and key not in self._unkept:
            await self._join(Importance.READ_AHEAD, key, partial, ref)

    def _read(self, ref: ObjectRef, offset: int, length: int, sent: Sent, waited: float) -> memoryview:
        """Worker thread."""
        data = self._source.read(ref, offset, length, waited=waited)
        sent.arrive()
        return data

    async def _join(
        self, importance: Importance, key: tuple[bytes, int], partial: Partial, ref: ObjectRef
    ) -> None:
        """Wait for the chunk, which is fetched once, for the sake of the most important who wants it."""
        turn = self._wanted.get(key)
        if turn is None:
            self._wanted[key] = Turn(importance, min(CHUNK, ref.size - key[1] * CHUNK))
        else:
            self._turns.raise_to(turn, importance)
        await self._chunks.run(key, lambda: self._chunk(key, partial, ref))

    async def _chunk(self, key: tuple[bytes, int], partial: Partial, ref: ObjectRef) -> None:
        turn = self._wanted[key]
        chunk = _Chunk(key[1], turn.most)
        part = part_of(self._source_id, key[0], ref, key[1], turn.most) if self._shared is not None else None
        try:
            while True:
                async with self._turns.taken(turn) as sent:
                    kept = await self._threads.run(self._fetch, partial, ref, chunk, part, sent, turn.waited)
                if not chunk.missing:
                    break
                turn = self._wanted[key] = Turn(turn.importance, chunk.missing)
        finally:
            del self._wanted[key]
            if self._shared is not None and part is not None and chunk.missing:
                self._shared.give_up(part)
        if not kept:
            self._unkept.put(key, chunk.data)

    def _fetch(
        self,
        partial: Partial,
        ref: ObjectRef,
        chunk: _Chunk,
        part: Part | None,
        sent: Sent,
        waited: float,
    ) -> bool:
        """Worker thread: the next bytes of the chunk, and when it is complete keep it; whether it was.

        `part`: of the shared cache, which is asked once, for all of it.
        """
        data, shared = None, self._shared
        if shared is not None and part is not None and not chunk.done:
            began = time.monotonic()
            data = shared.get(part, urgent=sent.importance < Importance.WARM)
            waited += time.monotonic() - began
        if data is None:
            data = self._source.read(ref, chunk.number * CHUNK + chunk.done, sent.size, waited=waited)
        else:
            shared = None
        sent.arrive()
        chunk.add(data)
        if chunk.missing:
            return False
        if shared is not None and part is not None:
            shared.keep(part, chunk.data)
        return partial.write(chunk.number, chunk.data)


class _Chunk:
    """What there is of a chunk, which comes in one piece or in several."""

    __slots__ = ("data", "done", "length", "number")

    def __init__(self, number: int, length: int) -> None:
        self.number = number
        self.length = length
        self.done = 0
        self.data = memoryview(b"")

    @property
    def missing(self) -> int:
        return self.length - self.done

    def add(self, piece: memoryview) -> None:
        if len(piece) == self.length:
            self.data = piece
        elif not self.done:
            self.data = memoryview(bytearray(self.length))
        if self.data is not piece:
            self.data[self.done : self.done + len(piece)] = piece
        self.done += len(piece)


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
