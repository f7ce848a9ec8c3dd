"""Warm-ups: everything below some paths into the cache, for a command that watches and may end any time."""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count as numbers_from
from typing import Any, Protocol

import trio

from gpufs.cache import CHUNK, Cache, Partial, charge_of
from gpufs.errors import DeadlineExceeded, GpufsError, NotFound, RemoteFailed, UsageError, VersionGone
from gpufs.fetch.ahead import spare_of
from gpufs.fetch.fetcher import Fetcher
from gpufs.fetch.messages import Through, failure_of
from gpufs.fetch.survey import Count, Names, Selection
from gpufs.fetch.traffic import Importance
from gpufs.fetch.workers import Workers
from gpufs.index import Index
from gpufs.metrics import Metrics
from gpufs.source.base import ObjectRef

MOST_AT_ONCE = 64  # objects and chunks on their way for one warm-up
LEASE = 30.0  # seconds for which a warm-up goes on without anybody asking for it
BATCH_FILES = 64  # small files asked for together
BATCH_BYTES = 32 << 20
BATCHES = 8  # asked for at once, so that there is always a next object to start
DESPAIR = 100  # objects in a row that the source did not give: there is no sense in asking for the others
SHOWN = 5  # paths named in the status

log = logging.getLogger("gpufs.warm")

# Of some small files: what became of them, and the first error; see FetchProcess.ahead.
SmallFiles = Callable[[Sequence[int], int], Awaitable[tuple[Through, GpufsError | None]]]


class Tree(Names, Protocol):
    def path(self, number: int) -> bytes: ...

    async def distrust(self, number: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Parts:
    """What a warm-up works with. `nursery` outlives it."""

    tree: Tree
    index: Index
    cache: Cache
    fetcher: Fetcher
    small_files: SmallFiles
    metrics: Metrics
    nursery: trio.Nursery
    workers: Workers


class Warmups:
    """The warm-ups of one mount, by number. In trio."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._numbers = numbers_from(1)
        self._running: dict[int, Warmup] = {}

    def start(self, at_once: int, *, dry_run: bool) -> int:
        """A warm-up that awaits its paths. UsageError for a number of objects that cannot be."""
        if not 1 <= at_once <= MOST_AT_ONCE:
            raise UsageError(f"--jobs must be from 1 to {MOST_AT_ONCE}")
        number = next(self._numbers)
        self._running[number] = Warmup(self._parts, at_once, dry_run)
        self._parts.nursery.start_soon(self._run, number)
        return number

    def get(self, number: int) -> Warmup:
        """The warm-up, which lives on for another LEASE."""
        warmup = self._running.get(number)
        if warmup is None:
            raise NotFound("the mount knows nothing of this warm-up any more; what it has fetched is kept")
        warmup.scope.deadline = trio.current_time() + LEASE
        return warmup

    def shown(self) -> list[dict[str, Any]]:
        """For the status: those under way."""
        return [
            {"paths": [*map(os.fsdecode, warmup.named[:SHOWN])], "more_paths": len(warmup.named[SHOWN:])}
            | warmup.progress()
            for warmup in self._running.values()
            if warmup.state != "done"
        ]

    async def _run(self, number: int) -> None:
        try:
            await self._running[number].run()
        finally:
            del self._running[number]


class Warmup:
    """Counts what there is, fetches what is not here as far as there is room, and counts again."""

    def __init__(self, parts: Parts, at_once: int, dry_run: bool) -> None:
        self._parts = parts
        self._at_once = at_once
        self._dry_run = dry_run
        self._selection = Selection(parts.tree, parts.index, parts.cache, parts.workers)
        self._go = trio.Event()
        self.scope = trio.CancelScope(deadline=trio.current_time() + LEASE)
        self.named: list[bytes] = []  # as it was asked for
        self.state = "naming"  # then counting, fetching, checking, done
        self._changed = trio.Event()  # the state
        self._plan = Count()
        self._found: Count | None = None  # by the second count
        self._room = 0
        self._through = Through()
        self._error: GpufsError | None = None
        self._unlisted = False  # a directory could not be listed: nobody knows what is in it
        self._in_vain = 0  # objects in a row that the source did not give
        self._owed = 0  # bytes of large files that were begun and are not here yet

    async def add(self, paths: Sequence[bytes], *, only_files: bool) -> list[int]:
        """Name what to fetch, before go(); the positions of those that are not there."""
        if not only_files:
            self.named += paths
        return await self._selection.add(paths, only_files=only_files)

    def go(self) -> None:
        self._go.set()

    async def changed(self, seconds: float) -> None:
        """Wait until the state is another one, or done already; for so long at most."""
        if self.state != "done":
            with trio.move_on_after(seconds):
                await self._changed.wait()

    def _set_state(self, state: str) -> None:
        self.state = state
        self._changed.set()
        self._changed = trio.Event()

    def progress(self) -> dict[str, Any]:
        plan, through = self._plan, self._through
        cached = self._found or plan
        more = Through() if self._found else through
        counted = self.state not in ("naming", "counting")
        return {
            "state": self.state,
            "files": plan.files,
            "bytes": plan.bytes,
            "here": plan.cached,
            "here_bytes": plan.cached_bytes,
            "need": plan.need,
            "room": self._room,
            "fits": counted and plan.need <= self._room,
            "cached": cached.cached + more.cached,
            "cached_bytes": cached.cached_bytes + more.cached_bytes,
            "fetched": through.fetched,
            "fetched_bytes": through.fetched_bytes,
            "failed": through.failed,
            "given_up": self._in_vain >= DESPAIR,
            "error": str(self._error) if self._error is not None else None,
            "complete": self._complete(),
        }

    async def run(self) -> None:
        """Until the scope is cancelled, be it done before or not."""
        with self.scope:
            await self._go.wait()
            try:
                await self._warm()
            except Exception as error:  # of a warm-up; the mount goes on
                self._failed(0, failure_of(error, log))
                self._unlisted = True
            self._set_state("done")
            await trio.sleep_forever()

    async def _warm(self) -> None:
        self._set_state("counting")
        await self._selection.survey(self._plan, self._cannot_list)
        self._room = self._parts.cache.room(spare_of(self._parts.cache))
        if self._dry_run:
            return
        self._set_state("fetching")
        await self._fetch_small()
        await self._fetch_large()
        self._set_state("checking")
        found = Count()
        await self._selection.survey(found, None)
        self._found = found

    def _complete(self) -> bool:
        count = self._found or self._plan
        return self.state == "done" and not self._unlisted and count.cached == count.files

    def _cannot_list(self, error: GpufsError) -> None:
        self._unlisted = True
        self._failed(0, error)

    def _failed(self, objects: int, error: GpufsError) -> None:
        self._count(Through(failed=objects), error)

    def _count(self, through: Through, error: GpufsError | None = None) -> None:
        self._through = Through(*map(sum, zip(self._through, through, strict=True)))
        if error is not None and self._error is None:
            self._error = error
            log.warning("warming: %s", error)
        if through.fetched or not isinstance(error, RemoteFailed | DeadlineExceeded):
            self._in_vain = 0
        else:
            self._in_vain += through.failed

    # -- small files: the fetch process does the work

    async def _fetch_small(self) -> None:
        slots = trio.Semaphore(BATCHES)
        async with trio.open_nursery() as nursery:
            for batch in self._batches():
                await slots.acquire()
                if self._in_vain >= DESPAIR:
                    nursery.cancel_scope.cancel()
                nursery.start_soon(self._fetch_batch, batch, slots)

    def _batches(self) -> Iterator[list[int]]:
        batch: list[int] = []
        size = 0
        for number, length in zip(self._plan.small, self._plan.sizes, strict=True):
            if len(batch) == BATCH_FILES or (batch and size + length > BATCH_BYTES):
                yield batch
                batch, size = [], 0
            batch.append(number)
            size += length
        if batch:
            yield batch

    async def _fetch_batch(self, batch: list[int], slots: trio.Semaphore) -> None:
        try:
            through, error = await self._parts.small_files(batch, self._at_once)
        except GpufsError as failure:
            self._failed(len(batch), failure)
        else:
            self._count(through, error)
        finally:
            slots.release()

    # -- large files: chunk by chunk

    async def _fetch_large(self) -> None:
        slots = trio.Semaphore(self._at_once)
        for number in self._plan.large:
            if self._in_vain >= DESPAIR:
                break
            await self._begin_large(number, slots)
        await self._drain(slots)

    async def _drain(self, slots: trio.Semaphore) -> None:
        """Wait for the chunks that are under way."""
        for _ in range(self._at_once):
            await slots.acquire()
        for _ in range(self._at_once):
            slots.release()

    async def _begin_large(self, number: int, slots: trio.Semaphore) -> None:
        """Start the fetch of every chunk that is not here, unless they do not fit."""
        parts = self._parts
        inode = parts.index.get(number)
        if inode is None:
            self._failed(1, VersionGone(f"inode {number} is no longer in the index"))
            return
        ref = ObjectRef(parts.tree.path(number), inode.version, inode.size)
        file = _Large(number, inode.digest, ref, await parts.fetcher.open_partial(inode.digest, inode.size))
        try:
            missing = [chunk for chunk in range(file.partial.chunks) if not file.partial.has(chunk)]
            file.fetched = bool(missing)
            need = charge_of(sum(map(file.length, missing)))
            spare = spare_of(parts.cache)
            if need > parts.cache.room(spare) - self._owed:
                # What has just been kept may be counted twice: certain is only the count without it.
                await self._drain(slots)
                if need > parts.cache.room(spare):
                    return
            for chunk in missing:
                await slots.acquire()
                if file.stopped:
                    slots.release()
                    return
                file.users += 1
                self._owed += file.length(chunk)
                # A chunk that is under way is kept, also when the warm-up has ended meanwhile.
                parts.nursery.start_soon(self._fetch_chunk, file, chunk, slots)
        finally:
            self._drop(file)

    async def _fetch_chunk(self, file: _Large, chunk: int, slots: trio.Semaphore) -> None:
        fetcher, partial = self._parts.fetcher, file.partial
        try:
            # If a reader has it fetched just now, this waits for it.
            if await fetcher.chunk(partial, file.digest, file.ref, chunk, Importance.WARM) is None:
                length = file.length(chunk)
                self._count(Through(cached_bytes=length, fetched_bytes=length))
                self._in_vain = 0
            else:
                file.stopped = True
        except Exception as error:
            if not file.stopped:
                file.stopped = True
                self._failed(1, failure_of(error, log))
            if isinstance(error, VersionGone):
                await self._parts.tree.distrust(file.number)
        finally:
            self._owed -= file.length(chunk)
            slots.release()
            self._drop(file)

    def _drop(self, file: _Large) -> None:
        file.users -= 1
        if not file.users:
            if file.partial.complete and not file.stopped:
                self._count(Through(cached=1, fetched=int(file.fetched)))
                if file.fetched:
                    self._parts.metrics.prefetched.add()
            file.partial.close()


class _Large:
    """A large file that is being filled; `users` counts our own work on it."""

    __slots__ = ("digest", "fetched", "number", "partial", "ref", "stopped", "users")

    def __init__(self, number: int, digest: bytes, ref: ObjectRef, partial: Partial) -> None:
        self.number = number
        self.digest = digest
        self.ref = ref
        self.partial = partial
        self.users = 1
        self.fetched = False  # something of it, by us
        self.stopped = False  # a chunk failed, or was not kept

    def length(self, chunk: int) -> int:
        return min(CHUNK, self.ref.size - chunk * CHUNK)
