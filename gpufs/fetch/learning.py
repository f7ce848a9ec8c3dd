"""Guesses at what will be read next, from what was: the order of before, or the order of names."""

from __future__ import annotations

from collections import OrderedDict, deque

from gpufs.fetch.orders import History, Listing
from gpufs.index import Index, Inode
from gpufs.source.base import Kind

RECENT = 32  # opens that are compared with those of before
AGREE = 16  # of them must have been there too
SPREAD = 256  # positions on either side: workers take turns, never quite the same
LEAST_SPREAD = 32
MOST_PAUSE = 256  # misses after which it is tried again, when the order did not repeat
DIRECTORIES = 64  # in which neighbours are looked for
SUCCESSORS = 8  # names behind a missed one
EXPECTED = 128  # of such names remembered in one directory
MISSES = 8  # in one directory, of which
IN_A_ROW = 4  # were expected


class Replay:
    """Whether files are opened in the order of before."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._pause = self._skip = 0

    def missed(self, before: int | None) -> int | None:
        """A reader waits for a file that was opened last at position `before`; where to follow on, if so.

        It is in the history already.
        """
        if self._skip:
            self._skip -= 1
            return None
        history = self._history
        recent_from = history.end - RECENT
        if before is None or before >= recent_from:
            return None
        spread = max(LEAST_SPREAD, min(SPREAD, history.end // 16))  # of a small order all is near
        around = set(history.numbers(before - spread, min(before + spread, recent_from)))
        if sum(number in around for number in history.numbers(recent_from, history.end)) >= AGREE:
            self._pause = 0
            return before + 1
        self._pause = self._skip = min(2 * self._pause + 1, MOST_PAUSE)
        return None


class Neighbours:
    """Whether files are missed in the order of their names, by one reader or by some that share them out."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._directories: OrderedDict[int, _Directory] = OrderedDict()

    def missed(self, inode: Inode) -> Listing | None:
        """A reader waits for this file; those that will be wanted next, if it is so."""
        directory = self._directories.setdefault(inode.parent, _Directory())
        self._directories.move_to_end(inode.parent)
        if len(self._directories) > DIRECTORIES:
            self._directories.popitem(last=False)
        directory.misses.append(directory.expected.pop(inode.number, False))
        if sum(directory.misses) >= IN_A_ROW:
            directory.misses.clear()
            return Listing(self._index, inode.parent, inode.name)
        for child in self._index.children(inode.parent, inode.name, SUCCESSORS):
            if child.kind is Kind.FILE:
                directory.expected[child.number] = True
        while len(directory.expected) > EXPECTED:
            directory.expected.popitem(last=False)
        return None


class _Directory:
    __slots__ = ("expected", "misses")

    def __init__(self) -> None:
        self.expected: OrderedDict[int, bool] = OrderedDict()
        self.misses: deque[bool] = deque(maxlen=MISSES)
