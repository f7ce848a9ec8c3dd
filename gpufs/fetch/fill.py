"""Epoch fill: a job that has missed some files of a tree in any order will want the rest.

A first epoch that waits for each file in turn leaves the network and the processors idle. So once a
small share of a directory's files was missed, or of all files below it in most of its branches, the
others are fetched in the background, while there is room: nothing is evicted for what nobody has asked
for yet.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator

from gpufs.cache import CHUNK, Cache
from gpufs.errors import GpufsError
from gpufs.fetch.ahead import LATER, Later, spare_of
from gpufs.fetch.messages import Wanted
from gpufs.index import ROOT, Index, Inode
from gpufs.source.base import Kind, ObjectRef

SHARE = 0.02  # of a subtree's files missed, that starts its fill
FEWEST = 8  # misses in one subtree; fewer say nothing about a job
BATCH = 256  # names taken from the index at a time

log = logging.getLogger("gpufs.fill")


class EpochFill:
    """Says what to fetch in advance, subtree after subtree. One thread; never waits."""

    def __init__(self, index: Index, cache: Cache) -> None:
        self._index = index
        self._cache = cache
        self._subtrees: dict[int, _Subtree] = {}
        self._queue: deque[int] = deque()
        self._missing: Iterator[Wanted | Later] = iter(())

    def missed(self, directory: int) -> None:
        """A reader had to wait for a file of this directory: counted for it and for all above it."""
        chain = self._chain(directory)
        if any(subtree.wanted for subtree in chain):
            return  # it is on its way, or did not fit
        below: _Subtree | None = None
        for subtree in chain:
            subtree.misses += 1
            if below is not None:
                subtree.misses_below += 1
                subtree.branches += below.misses == 1
            below = subtree
        for subtree in chain:  # the smallest that is enough
            if subtree.misses >= FEWEST and self._is_spread(subtree) and self._is_enough(subtree):
                subtree.wanted = True
                self._queue.append(subtree.number)
                return

    def filling(self, number: int) -> bool:
        """Whether this directory is being filled, or was: with all of a subtree that it belongs to."""
        return any(subtree.wanted for subtree in self._chain(number))

    def next(self) -> Wanted | Later | None:
        """What to fetch next; None for nothing. LATER: there is more, but do something else first."""
        while (wanted := next(self._missing, None)) is None:
            if not self._queue:
                return None
            self._missing = self._missing_of(self._queue.popleft())
        return wanted

    def failed(self, number: int, error: GpufsError) -> None:
        """An object of the subtree could not be had: its fill is given up."""
        if self._subtrees.pop(number, None) is not None:  # the readers' next misses start it again
            log.info("filling the cache in advance was given up: %s", error)

    def _chain(self, number: int) -> list[_Subtree]:
        """The directory and all above it, as far as they are known."""
        chain: list[_Subtree] = []
        while not chain or chain[-1].number != ROOT:
            subtree = self._subtrees.get(number)
            if subtree is None:
                inode = self._index.get(number)
                if inode is None:
                    break
                subtree = self._subtrees[number] = _Subtree(number, inode.parent)
            chain.append(subtree)
            number = subtree.parent
        return chain

    def _is_spread(self, subtree: _Subtree) -> bool:
        """Whether the misses lie in most branches. A job that reads one class does not want them all."""
        branches = 2 * subtree.branches
        if branches > subtree.misses_below or not subtree.misses_below:
            return True
        while not subtree.all_seen and branches > subtree.directories:
            batch = self._index.children(subtree.number, subtree.seen, BATCH)
            subtree.directories += sum(child.kind is Kind.DIRECTORY for child in batch)
            subtree.all_seen = not batch
            subtree.seen = batch[-1].name if batch else None
        return branches > subtree.directories

    def _is_enough(self, subtree: _Subtree) -> bool:
        """Whether the share was missed. Counts files only as far as that takes, each once."""
        if subtree.counting is None:
            subtree.counting = self._names_below(subtree)
        while subtree.files * SHARE <= subtree.misses:
            batch = next(subtree.counting, None)
            if batch is None:
                return True
            subtree.files += sum(child.kind is Kind.FILE for child in batch)
        return False

    def _names_below(self, subtree: _Subtree) -> Iterator[list[Inode]]:
        """All names of the subtree, as far as they were listed: some of one directory at a time."""
        pending = [subtree.number]
        while pending:
            number = pending.pop()
            subtree.unlisted |= self._index.listed(number) is None
            after = None
            directories: list[int] = []
            while batch := self._index.children(number, after, BATCH):
                directories += (child.number for child in batch if child.kind is Kind.DIRECTORY)
                after = batch[-1].name
                yield batch
            pending += reversed(directories)

    def _missing_of(self, number: int) -> Iterator[Wanted | Later]:
        """The small files of a subtree that are not here; ends when the cache has no more room."""
        subtree = self._subtrees[number]
        spare = spare_of(self._cache)
        subtree.unlisted = False
        for batch in self._names_below(subtree):
            path = self._index.path(batch[0].parent)
            below = path + b"/" if path else b""
            for child in batch:
                if self._subtrees.get(number) is not subtree:  # given up
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
            yield LATER
        if subtree.unlisted:  # there is more than was known: further misses start it again
            del self._subtrees[number]


class _Subtree:
    """What was missed in a directory and below it, and how far its files were counted."""

    __slots__ = ("all_seen", "branches", "counting", "directories", "files", "misses", "misses_below",
                 "number", "parent", "seen", "unlisted", "wanted")  # fmt: skip

    def __init__(self, number: int, parent: int) -> None:
        self.number = number
        self.parent = parent
        self.misses = 0
        self.misses_below = 0  # those not in the directory itself
        self.branches = 0  # its subdirectories with a miss
        self.directories = 0  # its subdirectories, as far as they were counted: up to the name `seen`
        self.seen: bytes | None = None
        self.all_seen = False
        self.files = 0  # as far as they were counted
        self.counting: Iterator[list[Inode]] | None = None
        self.unlisted = False  # a directory below it was never listed
        self.wanted = False
