"""Making room and removing entries. Files are unlinked, never truncated: open ones keep their bytes."""

from __future__ import annotations

import os

from gpufs.cache.catalogue import COMPRESSED, EARLY, Catalogue, Entry, Kind
from gpufs.cache.failures import Failures
from gpufs.cache.layout import Layout, unlink
from gpufs.cache.policy import LeastRecentlyUsed, Purpose
from gpufs.cache.sharing import Sharing
from gpufs.cache.space import Space
from gpufs.metrics import Metrics


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
    ) -> None:
        self._layout = layout
        self._catalogue = catalogue
        self._space = space
        self._sharing = sharing
        self._failures = failures
        self._metrics = metrics
        self._policy = LeastRecentlyUsed()
        self._stopped = False

    def stop(self) -> None:
        """Keep nothing more from now on: the catalogue is about to close."""
        self._stopped = True

    def reserve(self, size: int, purpose: Purpose) -> bool:
        """Take room for `size` bytes, evicting if need be; False when they cannot be kept."""
        if self._stopped or not self._space.possible(size):
            return False
        try:
            if self._space.reserve(size):
                return True
            if purpose is Purpose.FILL:
                return False
            self._make_room(size)
            return self._space.reserve(size)
        except OSError as error:
            self._failures.report("making room", error)
            return False

    def release(self, size: int) -> None:
        """Give reserved room back: the bytes are in the catalogue now, or nowhere."""
        self._space.release(size)

    def _make_room(self, size: int) -> None:
        with self._sharing.gate():
            # Whoever held the gate before may have made enough room for all of us.
            wanted = self._space.to_free(size)
            if wanted == 0:
                return
            # Chosen first, so that no read transaction is open while files are removed. One round only:
            # when readers hold what was unlinked, evicting more and more would not help them.
            for digest in self._policy.victims(self._catalogue.oldest(), wanted, self._is_in_use):
                if self._drop(digest):
                    self._metrics.evictions.add()
            # Before the gate opens, so that no other process chooses the same victims.
            self._catalogue.flush()
            self._space.forget_measure()

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
