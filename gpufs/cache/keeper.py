"""What a partial object needs of the cache around it."""

from __future__ import annotations

import os

from gpufs.cache.catalogue import Catalogue
from gpufs.cache.checksum import NO_HASH
from gpufs.cache.entry import NOW, Entry, Kind
from gpufs.cache.eviction import Eviction
from gpufs.cache.failures import Failures
from gpufs.cache.layout import Layout, unlink
from gpufs.cache.policy import Purpose
from gpufs.cache.sharing import Sharing


class Keeper:
    """Room, bookkeeping and completion for one partial object. Any thread; no method raises OSError."""

    def __init__(
        self,
        digest: bytes,
        layout: Layout,
        catalogue: Catalogue,
        eviction: Eviction,
        sharing: Sharing,
        failures: Failures,
    ) -> None:
        self._digest = digest
        self._layout = layout
        self._catalogue = catalogue
        self._eviction = eviction
        self._sharing = sharing
        self._failures = failures

    def opened(self, held: int) -> None:
        """It is used from now on, and `held` bytes of it are there."""
        self._catalogue.touch(self._digest)
        known = self._catalogue.get(self._digest)
        if known is not None and known.size != held:
            self.holds(held)  # what the catalogue knows was evicted by another process

    def reserve(self, size: int) -> bool:
        """Take room for `size` bytes; False when they cannot be kept."""
        return self._eviction.reserve(size, Purpose.DEMAND)

    def release(self, size: int) -> None:
        self._eviction.release(size)

    def failed(self, error: Exception) -> None:
        """Report a write that was bypassed."""
        self._failures.report("writing a chunk", error)

    def holds(self, size: int) -> None:
        """`size` bytes of the object are kept now."""
        self._catalogue.put(self._digest, Entry(size, NO_HASH, NOW, Kind.PARTIAL, ""))

    def promote(self, fd: int, size: int, checksum: int) -> None:
        """All chunks of the file open as `fd` are there: make it an object."""
        path, target = self._layout.partial_path(self._digest), self._layout.object_path(self._digest)
        try:
            with self._sharing.gate():
                # The name may be another file's by now: evicted, and begun again by another process.
                if _names(path, fd):
                    self._layout.move_to_objects(path, self._digest)
                    unlink(path + ".map")
                elif not _names(target, fd):
                    return
                # Before the gate opens: another process may evict it then.
                self._catalogue.put(self._digest, Entry(size, checksum, NOW, Kind.OBJECT, ""))
        except OSError as error:
            self._failures.report("completing a partial object", error)


def _names(path: str, fd: int) -> bool:
    """Whether `path` is a name of the file that is open as `fd`."""
    try:
        named = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(named, os.fstat(fd))
