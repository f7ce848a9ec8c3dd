"""Orders in which files are read: announced, remembered from before, or that of a directory's names."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Protocol

from gpufs.index import Index
from gpufs.source.base import Kind

SPARSE_FROM = 4096  # positions; behind that one in SPARSE inodes can be found, which saves 80% of the memory
SPARSE = 13  # a prime: shards of an order take every 2nd, 8th or 10th file
BATCH = 256  # names taken from the index at a time


class Order(Protocol):
    """Inode numbers by position."""

    def numbers(self, start: int, stop: int) -> Sequence[int]:
        """Those at the positions from `start` to `stop`; fewer, or none, when it ends before."""
        ...

    def find(self, number: int) -> int | None:
        """A position of this inode; None if there is none, and for many of those in a long order."""
        ...


class Announced:
    """An order that was told. 8 bytes a file, and some 8 more to find it."""

    def __init__(self) -> None:
        self._numbers = array("Q")
        self._at: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def extend(self, numbers: Sequence[int]) -> None:
        for position, number in enumerate(numbers, len(self._numbers)):
            if position < SPARSE_FROM or not number % SPARSE:
                self._at[number] = position
        self._numbers.extend(numbers)

    def numbers(self, start: int, stop: int) -> Sequence[int]:
        return self._numbers[start:stop]

    def find(self, number: int) -> int | None:
        return self._at.get(number)


class History:
    """What was opened, the last `most` files of it; positions count from the first ever."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._numbers = array("Q")  # a ring when it is full
        self._at: dict[int, int] = {}
        self.end = 0  # the position of what will be opened next

    def record(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            slot = self.end % self._most
            if slot < len(self._numbers):
                old = self._numbers[slot]
                if self._at.get(old) == self.end - self._most:
                    del self._at[old]
                self._numbers[slot] = number
            else:
                self._numbers.append(number)
            if not number % SPARSE or self.end < SPARSE_FROM:
                self._at[number] = self.end
            self.end += 1

    def numbers(self, start: int, stop: int) -> Sequence[int]:
        start, stop = max(start, self.end - self._most, 0), min(stop, self.end)
        if start >= stop:
            return ()
        first, last = start % self._most, (stop - 1) % self._most + 1
        if first < last:
            return self._numbers[first:last]
        return self._numbers[first:] + self._numbers[:last]

    def find(self, number: int) -> int | None:
        """Where it was last, as far as it can be found."""
        return self._at.get(number)


class Listing:
    """The files of a directory behind one of its names, in the order of names."""

    def __init__(self, index: Index, directory: int, after: bytes) -> None:
        self._index = index
        self._directory = directory
        self._after: bytes | None = after  # None: there are no more
        self._numbers = array("Q")

    def numbers(self, start: int, stop: int) -> Sequence[int]:
        while len(self._numbers) < stop and self._after is not None:
            batch = self._index.children(self._directory, self._after, BATCH)
            self._numbers.extend(child.number for child in batch if child.kind is Kind.FILE)
            self._after = batch[-1].name if batch else None
        return self._numbers[start:stop]

    def find(self, number: int) -> int | None:
        return None
