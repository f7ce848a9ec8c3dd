"""Making room and removing entries. Files are unlinked, never truncated: open ones keep their bytes."""

from __future__ import annotations

import logging
import os
import threading
import time

from gpufs.cache.catalogue import Catalogue
from gpufs.cache.entry import COMPRESSED, EARLY, Entry, Kind
from gpufs.cache.failures import Failures
from gpufs.cache.layout import Layout, unlink
from gpufs.cache.policy import Purpose, Shortage, least_recently_used, needless
from gpufs.cache.sharing import Sharing
from gpufs.cache.space import Space
from gpufs.metrics import Metrics
from gpufs.options import Policy

# For which a newcomer is refused without another look, when the last one found nothing to evict.
_REFUSING_SECONDS = 0.1
# What staged objects may have, in one order, of the room of what is still of use.
_ALLOWANCE = 2**30
_ALLOWANCE_SHARE = 0.05
_LOOKED_AT = 10_000  # entries, for the room of staged objects
_TELL_EVERY = 3600.0  # seconds between two lines of the log about a full cache

log = logging.getLogger("gpufs.cache")


class Eviction:
    """Finds room for new bytes, and removes entries by policy or by name. Any thread; never raises."""

    def __init__(
        self,
        layout: Layout,
        catalogue: Catalogue,
        space: Space,
        sharing: Sharing,
        failures: Failures,
        metrics: Metrics,
        policy: Policy,
    ) -> None:
        self._layout = layout
        self._catalogue = catalogue
        self._space = space
        self._sharing = sharing
        self._failures = failures
        self._metrics = metrics
        self._policy = policy
        self._refused_size, self._refused_until = 0, float("-inf")
        self._allowance_lock = threading.Lock()
        self._allowance = 0
        self.renew_allowance()
        self._stopped = False
        self._tell_at = float("-inf")

    def stop(self) -> None:
        """Keep nothing more from now on: the catalogue is about to close."""
        self._stopped = True

    def reserve(self, size: int, purpose: Purpose) -> bool:
        """Take room for `size` bytes, evicting if need be; False when they cannot be kept."""
        if self._stopped or not self._space.possible(size):
            return False
        try:
            if purpose is Purpose.FILL:
                return self._space.reserve(size)
            if purpose is Purpose.DEMAND and self.refuses(size):
                self._metrics.not_admitted.add()
                return False
            if self._space.reserve(size):
                return True
            self._make_room(size, purpose)
            return self._space.reserve(size)
        except OSError as error:
            self._failures.report("making room", error)
            return False

    def release(self, size: int) -> None:
        """Give reserved room back: the bytes are in the catalogue now, or nowhere."""
        self._space.release(size)

    def refuses(self, size: int) -> bool:
        """Whether a newcomer of `size` bytes is refused just now, because all that is kept is of use."""
        return size >= self._refused_size and time.monotonic() < self._refused_until

    def renew_allowance(self) -> None:
        """Another order of objects to be staged begins."""
        with self._allowance_lock:
            self._allowance = min(_ALLOWANCE, int(self._space.limit * _ALLOWANCE_SHARE))

    def room_for_staged(self) -> int:
        """Bytes that staged objects can have now."""
        before = self._catalogue.history().needless_before
        room = self._space.room(0) + self._allowance
        for _, (_, entry) in zip(range(_LOOKED_AT), self._catalogue.oldest(), strict=False):
            if entry.accessed >= before:
                break
            room += entry.charge
        return room

    def _make_room(self, size: int, purpose: Purpose) -> None:
        with self._sharing.gate():
            # Whoever held the gate before may have made enough room for all of us.
            shortage = self._space.shortage(size)
            if not shortage.least:
                return
            # Chosen first, so that no read transaction is open while files are removed. One round only:
            # when readers hold what was unlinked, evicting more and more would not help them.
            victims = self._victims(shortage, size, purpose)
            self._tell_full(len(victims))
            for digest in victims:
                if self._drop(digest):
                    self._metrics.evictions.add()
            if victims:
                # Before the gate opens, so that no other process chooses the same victims.
                self._catalogue.flush()
                self._space.forget_measure()

    def _tell_full(self, victims: int) -> None:
        now = time.monotonic()
        if now < self._tell_at:
            return
        self._tell_at = now + _TELL_EVERY
        kept = self._catalogue.totals()[0]
        if victims:
            what = f"{victims} entries make room"
        elif kept < self._space.limit // 2:
            what = "others have filled its disk, newcomers are not kept"
        else:
            what = "all of it is of use, newcomers are not kept"
        log.info("the cache is full (%d bytes kept, limit %d): %s", kept, self._space.limit, what)

    def _victims(self, shortage: Shortage, size: int, purpose: Purpose) -> list[bytes]:
        oldest = self._catalogue.oldest
        if self._policy == "lru" and purpose is Purpose.DEMAND:
            return least_recently_used(oldest(), shortage.wanted, self._is_in_use)
        before = self._catalogue.history().needless_before
        with self._allowance_lock:
            allowance = self._allowance if purpose is Purpose.STAGE else 0
            victims, taken = needless(oldest(), shortage, self._is_in_use, before, allowance)
            self._allowance -= taken
        if victims:
            return victims
        if purpose is Purpose.DEMAND:
            self._metrics.not_admitted.add()
            self._refused_size, self._refused_until = size, time.monotonic() + _REFUSING_SECONDS
        # The limits hold, whatever is of use: they were made smaller, or others have filled the disk.
        return least_recently_used(oldest(), shortage.over, self._is_in_use) if shortage.over else []

    def _is_in_use(self, digest: bytes, entry: Entry) -> bool:
        return entry.kind is Kind.PARTIAL and self._layout.partial_is_in_use(digest)

    def remove(self, digest: bytes) -> int:
        """Remove one entry now; the bytes it held."""
        try:
            with self._sharing.gate():
                entry = self._catalogue.get(digest)
                size = entry.size if entry is not None else self._size_of(digest)
                freed = size if self._drop(digest) else 0
        except FileNotFoundError:
            return 0
        except OSError as error:
            self._failures.report("evicting", error)
            return 0
        self._space.forget_measure()
        return freed

    def _size_of(self, digest: bytes) -> int:
        """Of an object the catalogue does not know of."""
        try:
            return os.stat(self._layout.object_path(digest)).st_size
        except FileNotFoundError:
            return os.stat(self._layout.compressed_path(digest)).st_size

    def _drop(self, digest: bytes) -> bool:
        """Unlink the files of an entry and forget it; False when none was there or one cannot be removed."""
        layout = self._layout
        entry = self._catalogue.get(digest)
        partial = layout.partial_path(digest)
        places = [
            [layout.object_path(digest)],
            [partial, partial + ".map"],
            [layout.unverified_path(digest)],
            [layout.compressed_path(digest)],
        ]
        if entry is not None and entry.kind is Kind.PARTIAL:
            places[0], places[1] = places[1], places[0]
        elif entry is not None and entry.marks & COMPRESSED:
            places.reverse()
        try:
            # After a crash the entry may be in another place than the catalogue says.
            found = any(any([unlink(path) for path in place]) for place in places)
        except OSError as error:
            self._failures.report("evicting", error)
            return False
        if entry is not None:
            self._catalogue.remove(digest, entry)
            if found and entry.marks & EARLY:
                self._metrics.prefetched_wasted.add()
        return found
