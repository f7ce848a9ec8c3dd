"""How much the cache may keep: the two limits, what is in flight, and whether some bytes still fit."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpufs.cache.entry import charge_of
from gpufs.cache.policy import Shortage
from gpufs.cache.reservations import Reservations
from gpufs.options import Size as Limit

__all__ = ["Limit", "Space", "Usage"]

_MIB = 2**20
# Evicted at once, so that not every newcomer has to evict.
_BATCH = 256 * _MIB
_BATCH_FOR_DISK = 32 * _MIB
# For how long and for how many bytes of ours a count of what all processes keep is believed. So much may
# be kept by others meanwhile: that much of the limit is never used.
_COUNT_SECONDS = 0.1
_COUNT_BYTES = 256 * _MIB
# How long and for how many bytes one statvfs(2) is believed.
_MEASURE_SECONDS = 1.0
_MEASURE_BYTES = 4 * _MIB
# With less than this to min_free each reservation measures anew: others write too.
_NEARLY_FULL = 64 * _MIB


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes on disk (whole blocks, partial objects included), whole objects, and the limit in bytes."""

    bytes: int
    objects: int
    limit: int


class Space:
    """Both limits hold for every reservation made here. Any thread. statvfs failing raises OSError."""

    def __init__(
        self,
        root: Path,
        cache_size: Limit,
        min_free: Limit,
        used: Callable[[], int],
        unflushed: Callable[[], int],
    ) -> None:
        """`used`: bytes charged for all that is kept; `unflushed`: those only this process knows of."""
        disk = os.statvfs(root)
        total = disk.f_blocks * disk.f_frsize
        self.limit = cache_size.in_bytes(total)
        self._min_free = min_free.in_bytes(total)
        self._trusted = min(self.limit // 100, _COUNT_BYTES)
        self._usable = self.limit - self._trusted
        self._root = root
        self._used = used
        self._unflushed = unflushed
        self._reservations = Reservations(root)
        self._lock = threading.Lock()
        self._in_flight = 0
        self._room = self._recount_at = self._budget = 0
        self._counted = self._measured = float("-inf")
        self._spent = 0

    def possible(self, size: int) -> bool:
        """Whether something of `size` bytes could be kept at all, all else evicted."""
        return charge_of(size) <= self._usable

    def reserve(self, size: int) -> bool:
        """Take room for `size` bytes in flight, if there is; to be given back by release()."""
        charge = charge_of(size)
        with self._lock:
            # Before the others' are counted: of two that want the last room at once, none gets it.
            self._tell(charge)
            if self._room_for(charge) < charge or self._disk_budget(charge) < charge:
                self._tell()
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

    def room(self, spare: int) -> int:
        """Bytes that could be reserved now with `spare` bytes left; 0 if none."""
        with self._lock, contextlib.suppress(OSError):
            return max(0, min(self._count(), self._disk_budget(0)) - spare)
        return 0

    def release(self, size: int) -> None:
        """The bytes are no longer in flight: they are in the catalogue, or nowhere."""
        with self._lock:
            self._in_flight -= charge_of(size)
            self._tell()

    def tell(self) -> None:
        """The catalogue was flushed: what others count for us is less now."""
        with self._lock:
            self._tell()

    def close(self) -> None:
        """Take nothing any more; what is in flight is no longer counted by others."""
        self._reservations.close()

    @property
    def in_flight(self) -> int:
        return self._in_flight

    def shortage(self, size: int) -> Shortage:
        """What to evict so that `size` bytes fit; `least` is 0 when they fit already. OSError."""
        charge = charge_of(size)
        with self._lock:
            used = self._used_by_all()
            for_limit = used + self._in_flight + charge - self._usable
            for_disk = charge - self._disk_budget(charge)
        # What is in flight may be counted twice, and is not what is kept already.
        over = max(0, used - self.limit, self._min_free - _free_bytes(self._root))
        wanted = max(
            for_limit + min(used // 32, _BATCH) if for_limit > 0 else 0,
            for_disk + min(used // 32, _BATCH_FOR_DISK) if for_disk > 0 else 0,
        )
        return Shortage(over, max(0, for_limit, for_disk), wanted)

    def disk_has(self, size: int) -> bool:
        """Whether `size` bytes leave min_free untouched, the cache's own limit aside."""
        with self._lock:
            return self._disk_budget(size) >= size

    def forget_measure(self) -> None:
        """Space was freed: measure again at the next question."""
        with self._lock:
            self._measured = self._counted = float("-inf")

    def _tell(self, more: int = 0) -> None:
        self._reservations.tell(self._in_flight + more, max(0, self._unflushed()))

    def _used_by_all(self) -> int:
        """Bytes kept, and in flight in other processes."""
        # In this order: what another process moves from the one into the other is not missed.
        others = sum(self._reservations.of_others())
        return self._used() + others

    def _count(self) -> int:
        """Bytes the cache's own limit leaves now."""
        return self._usable - self._used_by_all() - self._in_flight

    def _room_for(self, wanted: int) -> int:
        """Bytes the cache's own limit leaves: as counted, less all that was reserved since.

        Counting is a read of the catalogue; done for each reservation, under the lock, it kept
        the threads of a busy process waiting for one another.
        """
        now = time.monotonic()
        if self._room - wanted < self._recount_at or now - self._counted > _COUNT_SECONDS:
            self._room = self._count()
            self._recount_at = max(0, self._room - self._trusted)
            self._counted = now
        return self._room

    def _disk_budget(self, wanted: int) -> int:
        now = time.monotonic()
        old = now - self._measured > _MEASURE_SECONDS or self._spent > _MEASURE_BYTES
        if old or self._budget < max(wanted, _NEARLY_FULL):
            # What is in flight may or may not be on the disk yet: counted as not.
            in_flight = self._in_flight + self._reservations.of_others()[0]
            self._budget = _free_bytes(self._root) - self._min_free - in_flight
            self._measured = now
            self._spent = 0
        return self._budget


def _free_bytes(root: Path) -> int:
    disk = os.statvfs(root)
    return disk.f_bavail * disk.f_frsize
