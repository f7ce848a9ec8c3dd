"""How much the cache may keep: the two limits, what is in flight, and whether some bytes still fit."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpufs.cache.catalogue import charge_of
from gpufs.options import Size as Limit

__all__ = ["Limit", "Space", "Usage"]

_MIB = 2**20
# Another process may keep as much as this before its catalogue rows are seen (see `unflushed_limit`).
_MARGIN = 1024 * _MIB
_UNFLUSHED = 256 * _MIB
# Evicted at once, so that not every newcomer has to evict.
_BATCH = 256 * _MIB
_BATCH_FOR_DISK = 32 * _MIB
# How long a count of what all processes keep is believed, and no longer than for as many bytes as
# each of them may keep without telling.
_COUNT_SECONDS = 0.1
# How long and for how many bytes one statvfs(2) is believed.
_MEASURE_SECONDS = 1.0
_MEASURE_BYTES = 4 * _MIB


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes on disk (whole blocks, partial objects included), whole objects, and the limit in bytes."""

    bytes: int
    objects: int
    limit: int


class Space:
    """Both limits hold for every reservation made here. Any thread. statvfs failing raises OSError."""

    def __init__(self, root: Path, cache_size: Limit, min_free: Limit, used: Callable[[], int]) -> None:
        """`used` gives the bytes charged for all that is kept."""
        disk = os.statvfs(root)
        total = disk.f_blocks * disk.f_frsize
        self.limit = cache_size.in_bytes(total)
        self._min_free = min_free.in_bytes(total)
        self._usable = self.limit - min(self.limit // 32, _MARGIN)
        self._root = root
        self._used = used
        self._lock = threading.Lock()
        self._in_flight = 0
        self._room = self._recount_at = self._budget = 0
        self._counted = self._measured = float("-inf")
        self._spent = 0

    @property
    def unflushed_limit(self) -> int:
        """More than this must not be kept without telling the catalogue."""
        return min(self.limit // 100, _UNFLUSHED)

    def possible(self, size: int) -> bool:
        """Whether something of `size` bytes could be kept at all, all else evicted."""
        return charge_of(size) <= self._usable

    def reserve(self, size: int) -> bool:
        """Take room for `size` bytes in flight, if there is; to be given back by release()."""
        charge = charge_of(size)
        with self._lock:
            if self._room_for(charge) < charge or self._disk_budget(charge) < charge:
                return False
            self._in_flight += charge
            self._room -= charge
            self._budget -= charge
            self._spent += charge
            return True

    def fits(self, size: int) -> bool:
        """Whether reserve() would succeed now. OSError is for reserve() to raise."""
        charge = charge_of(size)
        with self._lock, contextlib.suppress(OSError):
            return self._room_for(charge) >= charge and self._disk_budget(charge) >= charge
        return False

    def release(self, size: int) -> None:
        """The bytes are no longer in flight: they are in the catalogue, or nowhere."""
        with self._lock:
            self._in_flight -= charge_of(size)

    @property
    def in_flight(self) -> int:
        return self._in_flight

    def to_free(self, size: int) -> int:
        """Bytes to evict so that `size` fit with something to spare; 0 when they fit already."""
        charge = charge_of(size)
        with self._lock:
            used = self._used()
            for_limit = used + self._in_flight + charge - self._usable
            for_disk = charge - self._disk_budget(charge)
        return max(
            for_limit + min(used // 32, _BATCH) if for_limit > 0 else 0,
            for_disk + min(used // 32, _BATCH_FOR_DISK) if for_disk > 0 else 0,
        )

    def disk_has(self, size: int) -> bool:
        """Whether `size` bytes leave min_free untouched, the cache's own limit aside."""
        with self._lock:
            return self._disk_budget(size) >= size

    def forget_measure(self) -> None:
        """Space was freed: measure again at the next question."""
        with self._lock:
            self._measured = self._counted = float("-inf")

    def _room_for(self, wanted: int) -> int:
        """Bytes the cache's own limit leaves: as counted, less all that was reserved since.

        Counting is a read of the catalogue; done for each reservation, under the lock, it kept
        the threads of a busy process waiting for one another.
        """
        now = time.monotonic()
        if self._room < max(wanted, self._recount_at) or now - self._counted > _COUNT_SECONDS:
            self._room = self._usable - self._used() - self._in_flight
            self._recount_at = self._room - self.unflushed_limit
            self._counted = now
        return self._room

    def _disk_budget(self, wanted: int) -> int:
        now = time.monotonic()
        old = now - self._measured > _MEASURE_SECONDS or self._spent > _MEASURE_BYTES
        if old or self._budget < wanted:
            disk = os.statvfs(self._root)
            # What is in flight may or may not be on the disk yet: counted as not.
            self._budget = disk.f_bavail * disk.f_frsize - self._min_free - self._in_flight
            self._measured = now
            self._spent = 0
        return self._budget
