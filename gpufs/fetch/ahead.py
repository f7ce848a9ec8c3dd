"""Objects that somebody wants to have before they are read: in batches, answered when one is through."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from gpufs.cache import Cache, charge_of
from gpufs.errors import GpufsError, VersionGone
from gpufs.fetch.messages import Named, Through
from gpufs.index import Index
from gpufs.source.base import ObjectRef

SPARE = 32 << 20  # bytes of room, or SPARE_SHARE of the limit if that is less, that are left to readers
SPARE_SHARE = 0.05
LOOKS = 64  # objects looked at before whoever asks gets a pause
COUNT_SECONDS = 0.1  # for which a count of the room is believed
STAGED_SECONDS = 0.5  # and of the room for staged objects, which takes longer to count
RENEWED_SECONDS = 60.0  # at least, between two allowances for staged objects

# Told who asked, what came of it, and the first error.
Told = Callable[[int, Through, GpufsError | None], None]


class Later(Enum):
    LATER = 0


LATER = Later.LATER


def spare_of(cache: Cache) -> int:
    """Bytes of room that are left alone by what nobody has asked for yet."""
    return min(SPARE, int(cache.limit * SPARE_SHARE))


class Batch:
    """What one asker wants: the inodes not looked at yet, and what became of the others."""

    __slots__ = ("asker", "at_once", "cached", "cached_bytes", "error", "failed", "fetched", "fetched_bytes",
                 "numbers", "pending", "soon")  # fmt: skip

    def __init__(self, asker: int, named: Named) -> None:
        self.asker = asker
        self.at_once = named.at_once
        self.numbers = deque(named.numbers)
        self.soon = named.soon
        self.pending = 0  # on their way
        self.cached = self.cached_bytes = self.fetched = self.fetched_bytes = self.failed = 0
        self.error: GpufsError | None = None


class Early(NamedTuple):
    """An object to start. `staged`: there is no room for it but for a short while."""

    digest: bytes
    ref: ObjectRef
    batch: Batch
    staged: bool


class Ahead:
    """Says which of the objects that were asked for to start next. One thread; never waits.

    Those that will be read soon come first. For the others nothing is evicted: what does not fit is left out.
    """

    def __init__(self, index: Index, cache: Cache, told: Told) -> None:
        self._index = index
        self._cache = cache
        self._told = told
        # Those with inodes not looked at.
        self._soon: deque[Batch] = deque()
        self._some_time: deque[Batch] = deque()
        self._on_their_way = 0
        self._bytes_on_their_way = 0
        self._room = 0
        self._landed = False  # something, since the room was counted
        self._counted = float("-inf")
        self._staged_room = 0
        self._staged_counted = float("-inf")
        self._order = 0  # the newest
        self._renewed = time.monotonic()

    @property
    def at_once(self) -> int:
        """How many may be on their way; 0 when nothing is wanted."""
        batches = self._soon or self._some_time
        return batches[0].at_once if batches else 0

    @property
    def soon(self) -> bool:
        """What next() would give will be read soon."""
        return bool(self._soon)

    def ask(self, asker: int, named: Named) -> None:
        batch = Batch(asker, named)
        if named.soon > self._order:
            self._order = named.soon
            # Whoever announces order after order and reads none of them does not empty the cache.
            if time.monotonic() - self._renewed > RENEWED_SECONDS:
                self._renewed = time.monotonic()
                self._cache.begin_order()
        if batch.numbers:
            (self._soon if batch.soon else self._some_time).append(batch)
        else:
            self._end(batch)

    def cancel(self, asker: int) -> None:
        """Start no more of what `asker` wanted."""
        for batches in (self._soon, self._some_time):
            for batch in batches:
                if batch.asker == asker:
                    batch.numbers.clear()
                    batches.remove(batch)
                    return

    def next(self) -> Early | Later | None:
        """What to start next, landed() being told of it; None for nothing. LATER: do something else first."""
        for _ in range(LOOKS):
            if self._on_their_way >= self.at_once:
                return None
            batches = self._soon or self._some_time
            batch = batches[0]
            early = self._look_at(batch.numbers[0], batch)
            if early is LATER:
                return None  # landed() comes first
            batch.numbers.popleft()
            if not batch.numbers:
                batches.popleft()
            if isinstance(early, Early):
                batch.pending += 1
                self._on_their_way += 1
                self._bytes_on_their_way += charge_of(early.ref.size)
                return early
            self._end(batch)
        return LATER

    def landed(self, early: Early, error: GpufsError | None) -> None:
        digest, ref, batch, _ = early
        self._landed = True
        batch.pending -= 1
        self._on_their_way -= 1
        self._bytes_on_their_way -= charge_of(ref.size)
        if error is not None:
            _fail(batch, error)
        else:
            batch.fetched += 1
            batch.fetched_bytes += ref.size
            if self._cache.has_object(digest):  # else there was no room for it in the end
                _count(batch, ref.size)
        self._end(batch)

    def _look_at(self, number: int, batch: Batch) -> Early | Later | None:
        """None: nothing to start. LATER: whether it fits will be known when another object has landed."""
        inode = self._index.get(number)
        if inode is None:
            _fail(batch, VersionGone(f"inode {number} is no longer in the index"))
        elif not inode.size or self._cache.has_object(inode.digest):
            _count(batch, inode.size)
        elif (fits := self._fits(inode.size)) or (batch.soon and self._can_be_staged(inode.size)):
            ref = ObjectRef(self._index.path(number), inode.version, inode.size)
            return Early(inode.digest, ref, batch, staged=not fits)
        elif self._on_their_way:  # what is being kept just now may be counted twice
            return LATER
        return None

    def _fits(self, size: int) -> bool:
        now, charge = time.monotonic(), charge_of(size)
        if now - self._counted > COUNT_SECONDS or (charge > self._room and self._landed):
            self._room = self._cache.room(spare_of(self._cache)) - self._bytes_on_their_way
            self._counted, self._landed = now, False
        if charge > self._room:
            return False
        self._room -= charge
        return True

    def _can_be_staged(self, size: int) -> bool:
        """Else it would be fetched for nothing, and again when it is read."""
        now, charge = time.monotonic(), charge_of(size)
        if now - self._staged_counted > STAGED_SECONDS:
            # Others take room meanwhile, and what is evicted does not come in the right sizes.
            self._staged_room = self._cache.room_for_staged() * 7 // 8 - self._bytes_on_their_way
            self._staged_counted = now
        if charge > self._staged_room:
            return False
        self._staged_room -= charge
        return True

    def _end(self, batch: Batch) -> None:
        """Tell, if that was the last of the batch."""
        if not batch.numbers and not batch.pending:
            through = Through(
                batch.cached, batch.cached_bytes, batch.fetched, batch.fetched_bytes, batch.failed
            )
            self._told(batch.asker, through, batch.error)


def _count(batch: Batch, size: int) -> None:
    batch.cached += 1
    batch.cached_bytes += size


def _fail(batch: Batch, error: GpufsError) -> None:
    batch.failed += 1
    batch.error = batch.error or error
