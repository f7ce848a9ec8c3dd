"""What is below some paths of the tree, and how much of it is in the cache."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Protocol

import trio

from gpufs.cache import CHUNK, Cache, charge_of
from gpufs.errors import GpufsError
from gpufs.fetch.workers import Workers
from gpufs.index import ROOT, Index, Inode
from gpufs.source.base import Kind

LISTINGS = 16  # directories listed at once
SLICE = 1000  # names looked at in one go; between them the survey can be ended
PAUSE = 64  # names found before other tasks get their turn


class Names(Protocol):
    """The tree, which lists a directory when it must; see filesystem.tree.Tree."""

    def fresh_for(self, directory: int) -> float: ...

    async def lookup(self, parent: int, name: bytes) -> tuple[Inode | None, float]: ...

    async def children(self, parent: int, after: bytes | None, limit: int) -> tuple[list[Inode], float]: ...


class Count:
    """The files of a survey. `small` and `large` are the inodes of those that are not here."""

    def __init__(self) -> None:
        self.files = self.bytes = 0
        self.cached = self.cached_bytes = 0  # `cached_bytes` also counts what is here of large files
        self.need = 0  # bytes of disk blocks that the rest takes
        self.small = array("Q")
        self.sizes = array("I")  # of the small ones
        self.large = array("Q")

    def add(self, inode: Inode, cache: Cache) -> None:
        self.files += 1
        self.bytes += inode.size
        if not inode.size or cache.has_object(inode.digest):
            self.cached += 1
            self.cached_bytes += inode.size
        elif inode.size <= CHUNK:
            self.small.append(inode.number)
            self.sizes.append(inode.size)
            self.need += charge_of(inode.size)
        else:
            self.large.append(inode.number)
            held = cache.held(inode.digest)
            self.cached_bytes += held
            self.need += charge_of(inode.size - held)


class Finder:
    """Finds inodes by their paths. In trio; remembers every directory it has found, or not found."""

    def __init__(self, names: Names, index: Index) -> None:
        self._names = names
        self._index = index
        self._directories: dict[bytes, int | None] = {}

    async def find(self, path: bytes) -> Inode | None:
        """Raises what listing a directory raises."""
        if not path:
            return self._index.get(ROOT)
        above, _, name = path.rpartition(b"/")
        directory = await self.directory(above)
        if directory is None:
            return None
        inode, _ = await self._names.lookup(directory, name)
        return inode

    async def directory(self, path: bytes) -> int | None:
        """The number of a directory; None when there is none at `path`."""
        if path not in self._directories:
            inode = await self.find(path)
            found = inode is not None and inode.kind is Kind.DIRECTORY
            self._directories[path] = inode.number if inode is not None and found else None
        return self._directories[path]


class Selection:
    """What was named: files in their order, and directories with all that is below them. In trio."""

    def __init__(self, names: Names, index: Index, cache: Cache, workers: Workers) -> None:
        self._names = names
        self._index = index
        self._finder = Finder(names, index)
        self._cache = cache
        self._workers = workers
        self._files: dict[int, None] = {}
        self._roots: dict[int, None] = {}

    async def add(self, paths: Iterable[bytes], *, only_files: bool) -> list[int]:
        """Take them in; the positions of those that are not there, or are no such thing.

        Raises what listing a directory raises.
        """
        missing = []
        for position, path in enumerate(paths):
            inode = await self._finder.find(path)
            if inode is not None and inode.kind is Kind.FILE:
                self._files[inode.number] = None
            elif inode is not None and inode.kind is Kind.DIRECTORY and not only_files:
                self._roots[inode.number] = None
            else:
                missing.append(position)
            if position % PAUSE == PAUSE - 1:
                await trio.lowlevel.checkpoint()
        return missing

    async def survey(self, count: Count, failed: Callable[[GpufsError], None] | None) -> None:
        """Count everything into `count`: the named files first, then directory by directory.

        With `failed` directories are listed that were never, or too long ago; it is told what fails.
        """
        numbers = iter(list(self._files))
        while some := list(islice(numbers, SLICE)):
            await self._workers.run(self._count_files, count, some)
        seen = set(self._roots)
        pending = deque(self._roots)
        while pending:
            some = [pending.popleft() for _ in range(min(LISTINGS, len(pending)))]
            if failed is not None:
                async with trio.open_nursery() as nursery:
                    for directory in some:
                        if self._names.fresh_for(directory) <= 0:
                            nursery.start_soon(self._list, directory, failed)
            for directory in some:
                after: bytes | None = b""
                while after is not None:
                    below, after = await self._workers.run(self._count_children, count, directory, after)
                    pending.extend(number for number in below if number not in seen)
                    seen.update(below)

    async def _list(self, directory: int, failed: Callable[[GpufsError], None]) -> None:
        try:
            await self._names.children(directory, None, 1)
        except GpufsError as error:
            failed(error)

    def _count_files(self, count: Count, numbers: list[int]) -> None:
        """Worker thread."""
        for number in numbers:
            inode = self._index.get(number)
            if inode is not None:
                count.add(inode, self._cache)

    def _count_children(self, count: Count, directory: int, after: bytes) -> tuple[list[int], bytes | None]:
        """Worker thread: some names behind `after`; the directories among them, and where to go on."""
        below: list[int] = []
        batch = self._index.children(directory, after or None, SLICE)
        for inode in batch:
            if inode.kind is Kind.DIRECTORY:
                below.append(inode.number)
            elif inode.kind is Kind.FILE and inode.number not in self._files:
                count.add(inode, self._cache)
        return below, batch[-1].name if len(batch) == SLICE else None
