"""Open files: where the bytes of an inode are on this host, and reading them."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import trio

from gpufs.cache import CHUNK, Cache, Partial
from gpufs.errors import GpufsError, IsADirectory, VersionGone
from gpufs.fetch.fetcher import Fetcher
from gpufs.fetch.flight import SingleFlight
from gpufs.fetch.messages import Wanted
from gpufs.fetch.readahead import ReadAhead
from gpufs.fetch.workers import Workers
from gpufs.filesystem.tree import Tree
from gpufs.filesystem.waits import Waits, What
from gpufs.index import Inode
from gpufs.metrics import Metrics
from gpufs.source.base import Kind, ObjectRef

DISK_THREADS = 16
MAX_READ = 1 << 20  # bytes the kernel asks for at most in one READ


class Watcher(Protocol):
    """Wants to know what is opened, to tell what will be; see Prefetch."""

    def hit(self, numbers: Sequence[int]) -> None: ...

    def missed(self, inode: Inode) -> None: ...


class OpenFile:
    """One inode's bytes while anybody uses them: the whole object by `fd`, or `partial`.

    `users` counts the kernel's opens and our own work on it; the descriptors live as long as they.
    """

    __slots__ = ("fd", "inode", "partial", "read_ahead", "reader", "retired", "users")

    def __init__(self, inode: Inode) -> None:
        self.inode = inode
        self.fd: int | None = None
        self.partial: Partial | None = None
        self.read_ahead: ReadAhead | None = None
        self.users = 0
        self.reader = 0  # the thread that has opened it last: the kernel does not say who reads
        self.retired: list[int] = []  # descriptors of damaged entries that a thread may still read from

    @property
    def at_hand(self) -> bool:
        return self.fd is not None or self.partial is not None

    @property
    def whole(self) -> bool:
        return self.fd is not None or (self.partial is not None and self.partial.complete)

    def hold(self, fd: int) -> None:
        """Read from `fd` from now on."""
        if self.fd is not None:
            self.retired.append(self.fd)
        self.fd = fd

    def close(self) -> None:
        """May be called twice: at the end of a mount, and by the last who still waited for bytes."""
        held, self.retired, self.fd = (*self.retired, self.fd), [], None
        for fd in held:
            if fd is not None:
                os.close(fd)
        if self.partial is not None:
            self.partial.close()


class Files:
    """The table of open files, keyed by inode: handles carry no state of their own (fh == inode)."""

    def __init__(
        self,
        tree: Tree,
        cache: Cache,
        fetcher: Fetcher,
        whole_object: Callable[[Wanted], Awaitable[int]],
        watcher: Watcher,
        metrics: Metrics,
        waits: Waits,
        nursery: trio.Nursery,
    ) -> None:
        """`whole_object` gives a descriptor of all bytes of a small object, see FetchProcess.object."""
        self._watcher = watcher
        self._tree = tree
        self._whole_object = whole_object
        self._cache = cache
        self._fetcher = fetcher
        self._metrics = metrics
        self._waits = waits
        self._nursery = nursery
        self._disk = Workers(DISK_THREADS)
        self._open: dict[int, OpenFile] = {}
        self._expanding: SingleFlight[int, None] = SingleFlight(nursery)
        self._opening: SingleFlight[int, None] = SingleFlight(nursery)
        self._buffer = memoryview(bytearray(MAX_READ))

    async def open(self, number: int, tid: int = 0) -> int | None:
        """Take the inode into use for thread `tid`; the whole of a small object is here when this returns.

        Gives a descriptor that has all the bytes, if there is one: good until the matching release().
        Raises VersionGone, IsADirectory and what fetching raises.
        """
        self._metrics.opens.add()
        file = self._use(number)
        file.reader = tid
        try:
            if file.at_hand or self._open_cached(file) or await self._open_compressed(file):
                (self._metrics.hits if file.whole else self._metrics.misses).add()
                self._watcher.hit((number,))
            else:
                self._metrics.misses.add()
                self._watcher.missed(file.inode)
                await self._open_missing(file)
        except BaseException:
            self._drop(file)
            raise
        if file.fd is not None:
            self._metrics.served_bytes.add(file.inode.size)
        return file.fd

    async def read(self, number: int, offset: int, size: int, *, adopt: bool = True) -> memoryview | bytes:
        """Up to `size` bytes from `offset`, fewer only at the end of the file.

        A file that was opened through an earlier process is kept open until its next release; with
        `adopt` false, for one whose release will not come here, only as long as this read.
        The result may be a buffer that is shared by all reads: use it before the next await.
        """
        file = self._open.get(number)
        if file is not None and file.whole:
            data = self._read_hot(file, offset, size)
            if data is not None:
                self._count_read(file, len(data))
                return data
        file = self._use(number)
        if adopt and file.users == 1:
            file.users += 1
        try:
            if not (file.at_hand or self._open_cached(file) or await self._open_compressed(file)):
                await self._open_missing(file)
            size = min(size, file.inode.size - offset)
            if size <= 0:
                return b""
            read = self._read_whole if file.whole else self._read_partial
            data = await read(file, offset, size)
            self._count_read(file, len(data))
            return data
        except VersionGone:
            await self._tree.distrust(number)
            raise
        finally:
            self._drop(file)

    def release(self, number: int) -> None:
        """Undo one open(); of inodes this process knows nothing of, nothing."""
        file = self._open.get(number)
        if file is not None:
            self._drop(file)

    def close(self) -> None:
        """Close everything; only when no request can come any more."""
        for file in self._open.values():
            file.close()
        self._open.clear()

    # -- opening

    def _use(self, number: int) -> OpenFile:
        file = self._open.get(number)
        if file is None:
            inode = self._tree.inode(number)
            if inode.kind is not Kind.FILE:
                raise IsADirectory(f"inode {number} is not a file")
            file = self._open[number] = OpenFile(inode)
        file.users += 1
        return file

    def _drop(self, file: OpenFile) -> None:
        file.users -= 1
        if not file.users:
            if self._open.get(file.inode.number) is file:
                del self._open[file.inode.number]
            file.close()

    def _open_cached(self, file: OpenFile) -> bool:
        if not file.inode.size:
            file.hold(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            return True
        fd = self._cache.open_object(file.inode.digest)
        if fd is not None and os.lseek(fd, 0, os.SEEK_END) != file.inode.size:
            # Truncated. The fast path may hand it to the kernel, which would take it for a shorter file.
            os.close(fd)
            self._metrics.corrupt_entries.add()
            self._cache.evict(file.inode.digest)
            fd = None
        file.fd = fd
        return fd is not None

    async def _open_compressed(self, file: OpenFile) -> bool:
        inode = file.inode
        if inode.size > CHUNK or not self._cache.has_compressed(inode.digest):
            return False
        if inode.number not in self._expanding:
            file.users += 1  # the flight's own
        await self._expanding.run(inode.number, lambda: self._expand(file))
        return file.at_hand

    async def _expand(self, file: OpenFile) -> None:
        try:
            fd = await self._disk.run(self._cache.expand, file.inode.digest, file.inode.size)
            if fd is not None:
                file.hold(fd)
        finally:
            self._drop(file)

    async def _open_missing(self, file: OpenFile) -> None:
        if file.inode.number not in self._opening:
            file.users += 1  # the flight's own: it may outlive all who wait for it
        with self._waits.of(file.reader, What.BYTES):
            await self._opening.run(file.inode.number, lambda: self._fetch(file))

    async def _fetch(self, file: OpenFile) -> None:
        inode = file.inode
        try:
            if inode.size <= CHUNK:
                file.hold(await self._whole_object(Wanted(inode.digest, self._ref(inode), inode.parent)))
            else:
                file.partial = await self._fetcher.open_partial(inode.digest, inode.size)
                file.read_ahead = ReadAhead(file.partial.chunks)
        except VersionGone:
            await self._tree.distrust(inode.number)
            raise
        finally:
            self._drop(file)

    def _ref(self, inode: Inode) -> ObjectRef:
        return ObjectRef(self._tree.path(inode.number), inode.version, inode.size)

    # -- reading

    def _read_hot(self, file: OpenFile, offset: int, size: int) -> memoryview | None:
        """Read without waiting: None when the bytes are not in the page cache (or not there)."""
        fd = file.fd if file.fd is not None else file.partial.fd  # type: ignore[union-attr]
        size = min(size, file.inode.size - offset)
        if size <= 0:
            return self._buffer[:0]
        try:
            count = os.preadv(fd, [self._buffer[:size]], offset, os.RWF_NOWAIT)
        except OSError:  # EAGAIN; or no RWF_NOWAIT on this file system; or a failing disk
            return None
        return self._buffer[:count] if count == size else None

    async def _read_whole(self, file: OpenFile, offset: int, size: int) -> memoryview:
        fd = file.fd if file.fd is not None else file.partial.fd  # type: ignore[union-attr]
        data = await self._disk.run(_read_disk, fd, offset, size)
        if data is None:
            # The entry is damaged (a failing disk, a truncated file): never the reader's trouble.
            self._metrics.corrupt_entries.add()
            await self._disk.run(self._cache.evict, file.inode.digest)
            ref = self._ref(file.inode)
            data = await self._fetcher.uncached(ref, offset, size)
        return data

    async def _read_partial(self, file: OpenFile, offset: int, size: int) -> memoryview:
        partial, ahead = file.partial, file.read_ahead
        assert partial is not None and ahead is not None
        first, last = offset // CHUNK, (offset + size - 1) // CHUNK
        for number in (*range(first + 1, last + 1), *ahead.access(first, last)):
            if not partial.has(number):
                file.users += 1  # the task's own
                self._nursery.start_soon(self._fetch_ahead, file, number)
        ref = self._ref(file.inode)
        pieces: list[memoryview] = []
        for number in range(first, last + 1):
            start = max(offset, number * CHUNK)
            end = min(offset + size, (number + 1) * CHUNK)
            data = await self._chunk(file, partial, ref, number)
            if data is None:
                data = await self._disk.run(_read_disk, partial.fd, start, end - start)
                if data is None:
                    self._metrics.corrupt_entries.add()
                    data = await self._fetcher.uncached(ref, start, end - start)
            else:
                data = data[start - number * CHUNK : end - number * CHUNK]
            pieces.append(data)
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))

    async def _chunk(
        self, file: OpenFile, partial: Partial, ref: ObjectRef, number: int
    ) -> memoryview | None:
        if partial.has(number):
            return None
        with self._waits.of(file.reader, What.BYTES):
            return await self._fetcher.chunk(partial, file.inode.digest, ref, number)

    def _count_read(self, file: OpenFile, size: int) -> None:
        """Of those that were whole at their open the size was counted then."""
        if file.fd is None:
            self._metrics.served_bytes.add(size)

    async def _fetch_ahead(self, file: OpenFile, number: int) -> None:
        assert file.partial is not None
        try:
            await self._fetcher.ahead(file.partial, file.inode.digest, self._ref(file.inode), number)
        except GpufsError:
            pass  # counted where it happened; whoever needs these bytes will meet it as his own
        finally:
            self._drop(file)


def _read_disk(fd: int, offset: int, size: int) -> memoryview | None:
    """Worker thread: exactly `size` bytes, or None when the file does not have them."""
    data = memoryview(bytearray(size))
    done = 0
    while done < size:
        try:
            count = os.preadv(fd, [data[done:]], offset + done)
        except OSError:
            return None
        if not count:
            return None
        done += count
    return data
