"""The cache of one host: objects and partial objects on a local disk, within two limits.

Cache trouble is never the reader's trouble: after the directory was opened no method raises OSError or
lmdb.Error. What fails is counted, logged once, and bypassed.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from gpufs.cache.catalogue import Catalogue
from gpufs.cache.checksum import NO_HASH, content_hash
from gpufs.cache.compression import Compression
from gpufs.cache.entry import COMPRESSED, EARLY, NOW, STAGED, Entry, Kind, charge_of
from gpufs.cache.eviction import Eviction
from gpufs.cache.failures import Failures
from gpufs.cache.keeper import Keeper
from gpufs.cache.layout import Layout, unlink, write_at
from gpufs.cache.partial import Partial, open_files
from gpufs.cache.policy import Purpose
from gpufs.cache.recovery import reconcile, recover
from gpufs.cache.sharing import (
    Sharing,
    State,
    current_boot_id,
    read_state,
    sync_file_system,
    write_state,
)
from gpufs.cache.space import Limit, Space, Usage
from gpufs.cache.unverified import Unverified
from gpufs.errors import CacheUnusable
from gpufs.metrics import Metrics
from gpufs.options import Policy

_FLUSH_SECONDS = 1.0
_MARKS = {Purpose.DEMAND: 0, Purpose.FILL: EARLY, Purpose.STAGE: EARLY | STAGED}
_STALE_SECONDS = 60.0  # age of a temporary file that nobody is writing any more


class Cache:
    """All methods may be called from any thread; several processes may share one directory."""

    def __init__(
        self,
        directory: Path,
        *,
        cache_size: Limit,
        min_free: Limit,
        metrics: Metrics,
        policy: Policy = "epoch",
        boot_id: str | None = None,
    ) -> None:
        """Open or create the cache; CacheUnusable when that is impossible."""
        self._boot_id = boot_id or current_boot_id()
        self._metrics = metrics
        self._failures = Failures(metrics)
        self._compression = Compression()
        self._layout = Layout(directory)
        self._closed = threading.Event()
        self._scrubbing = threading.Lock()
        self._layout.prepare()
        try:
            self._sharing = Sharing(directory)
        except OSError as error:
            raise CacheUnusable(f"cache directory {directory}: {error.strerror}") from error
        try:
            with self._sharing.gate():
                self._open(metrics)
                self._sharing.join()
            self._space = Space(
                directory,
                cache_size,
                min_free,
                lambda: self._catalogue.totals()[0],
                lambda: self._catalogue.unflushed,
            )
        except OSError as error:
            self._sharing.close()
            raise CacheUnusable(f"cache directory {directory}: {error.strerror}") from error
        self._eviction = Eviction(
            self._layout, self._catalogue, self._space, self._sharing, self._failures, metrics, policy
        )
        self._unverified = Unverified(self._layout, self._catalogue, self._failures, metrics)
        self._flusher = threading.Thread(target=self._flush_often, name="gpufs-cache-flush", daemon=True)
        self._flusher.start()

    def _open(self, metrics: Metrics) -> None:
        root = self._layout.root
        self.first = self._sharing.alone()
        complete, dropped = True, list[bytes]()
        if self.first:
            left = read_state(root)
            complete = left is not None and left.clean and left.catalogued
            dropped = recover(self._layout, left, self._boot_id)
            try:
                write_state(root, State(self._boot_id, clean=False, catalogued=False))
            except OSError as error:
                # There is no state now, so a crash leaves everything to be verified: safe.
                self._failures.report("writing the state", error)
        self._layout.make_subdirectories()
        self._catalogue = Catalogue(
            self._layout.catalogue, self._failures, metrics, self._layout, first=self.first
        )
        # A scan of the files is owed; after a crash scrub() does it, as only the last second is missing.
        self._owes_scan = self._catalogue.unclean or not complete
        if self._catalogue.lost:
            reconcile(self._layout, self._catalogue, contextlib.nullcontext, lambda: False)
            self._owes_scan = False
        for digest in dropped:
            if entry := self._catalogue.get(digest):
                self._catalogue.remove(digest, entry)

    def index_directory(self, source_id: str) -> Path:
        """Where the metadata index of a source lives; created."""
        directory = self._layout.index_directory(source_id)
        try:
            self._layout.index.mkdir(mode=0o700, exist_ok=True)
            directory.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            self._failures.report("creating an index directory", error)
        return directory

    # Whole objects

    def open_object(self, digest: bytes) -> int | None:
        """A read-only descriptor of a whole object, the caller's to close; None when it is not here."""
        try:
            fd = self._layout.open_object(digest)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._failures.report("opening an object", error)
            return None
        self._catalogue.touch(digest)
        return fd

    def touch(self, digests: Iterable[bytes]) -> None:
        """Objects were used by others that opened them from the directory; memory only."""
        for digest in digests:
            self._catalogue.touch(digest)

    def has_object(self, digest: bytes) -> bool:
        """Whether the whole object is here, compressed or not, without counting as a use of it."""
        return self._layout.has_plain(digest) or self._layout.has_compressed(digest)

    def has_compressed(self, digest: bytes) -> bool:
        """Whether the object, which open_object() does not give, is something for expand()."""
        return self._layout.has_compressed(digest)

    def expand(self, digest: bytes, size: int) -> int | None:
        """Like open_object() for an object that is kept compressed: a descriptor of its `size` bytes.

        Reads, decompresses and checks all of it: a worker thread.
        """
        try:
            packed = self._layout.read_compressed(digest)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._failures.report("reading a compressed object", error)
            return None
        data = self._compression.unpack(digest, size, packed)
        if data is None:
            self._metrics.corrupt_entries.add()
            self.evict(digest)
            return None
        self._catalogue.touch(digest)
        return self._aside(data)

    def held(self, digest: bytes) -> int:
        """Bytes that are here of an object that is not whole, as far as is known."""
        entry = self._catalogue.get(digest)
        return entry.size if entry is not None and entry.kind is Kind.PARTIAL else 0

    @property
    def verifying(self) -> bool:
        """Whether there may be entries that rescue() would give."""
        return self._unverified.waiting

    @property
    def limit(self) -> int:
        """The bytes of `cache_size`."""
        return self._space.limit

    def fits(self, size: int) -> bool:
        """Whether publish() of so many bytes would find room without evicting anything."""
        return self._space.fits(size)

    def at_once(self, size: int) -> bool:
        """Whether publish() of so many bytes would not evict anything: they fit, or will not be kept."""
        return self._eviction.refuses(size) or self._space.fits(size)

    def room(self, spare: int) -> int:
        """Bytes of disk blocks that can be kept without evicting anything, `spare` being left free."""
        return self._space.room(spare)

    def room_for_staged(self) -> int:
        """Bytes that can be published with Purpose.STAGE now: free, of no use, or of the allowance."""
        return self._eviction.room_for_staged()

    def begin_order(self) -> None:
        """Objects are going to be staged in another order: renew the allowance of what may go for them."""
        self._eviction.renew_allowance()

    def rescue(self, digest: bytes) -> int | None:
        """Like open_object for an entry that must be verified first. Reads all of it: a worker thread."""
        fd = None if self._closed.is_set() else self._unverified.rescue(digest)
        if fd is not None:
            self._catalogue.touch(digest)
        return fd

    def publish(
        self,
        digest: bytes,
        data: memoryview,
        source: str = "",
        purpose: Purpose = Purpose.DEMAND,
        *,
        compress: bool = False,
    ) -> int:
        """Keep a whole object if it fits; a descriptor that reads its bytes (use pread) in any case.

        With `compress` it is kept compressed if that saves enough; that takes milliseconds.
        """
        packed = self._compression.pack(digest, data) if compress else None
        size = len(data if packed is None else packed)
        if purpose is Purpose.DEMAND:
            self._catalogue.touch(digest)
        if not self._eviction.reserve(size, purpose):
            return self._aside(data)
        try:
            self._unverified.discard(digest)
            if packed is None:
                return self._keep(digest, data, source, _MARKS[purpose])
            if self._keep_compressed(digest, packed, source, _MARKS[purpose]):
                self._metrics.compressed.add()
                self._metrics.compressed_saved.add(charge_of(len(data)) - charge_of(size))
        except OSError as error:
            self._failures.report("publishing", error)
        finally:
            self._eviction.release(size)
        return self._aside(data)

    def promises_compression(self, data: memoryview) -> bool:
        """Whether `data` are likely to be worth compressing, judged by a sample in microseconds.

        They are not when they will hardly be kept.
        """
        return not self._eviction.refuses(2 * len(data) // 3) and self._compression.promises(data)

    def _keep(self, digest: bytes, data: memoryview, source: str, marks: int) -> int:
        fd, path = self._write_temporary(data)
        try:
            self._layout.move_to_objects(path, digest)
        except OSError as error:
            # The bytes are there, only the name is not.
            self._failures.report("publishing", error)
            with contextlib.suppress(OSError):
                unlink(path)
        else:
            with contextlib.suppress(OSError):
                unlink(self._layout.compressed_path(digest))  # another process kept it so: never both
            checksum = content_hash(data)
            self._enter(digest, Entry(len(data), checksum, NOW, Kind.OBJECT, source, marks))
        return fd

    def _keep_compressed(self, digest: bytes, packed: bytes, source: str, marks: int) -> bool:
        fd, path = self._write_temporary(memoryview(packed))
        os.close(fd)
        try:
            self._layout.move_to_compressed(path, digest)
        except OSError:
            with contextlib.suppress(OSError):
                unlink(path)
            raise
        if self._layout.has_plain(digest):  # never both
            unlink(self._layout.compressed_path(digest))
            return False
        # Its checksum is in the file.
        self._enter(digest, Entry(len(packed), NO_HASH, NOW, Kind.OBJECT, source, marks | COMPRESSED))
        return True

    def _enter(self, digest: bytes, entry: Entry) -> None:
        # Of what waits to be verified there is an entry already.
        put = self._catalogue.put if self._unverified.waiting else self._catalogue.put_new
        put(digest, entry)

    def _write_temporary(self, data: memoryview) -> tuple[int, str]:
        fd, path = self._layout.create_temporary()
        try:
            write_at(fd, data, 0)
        except BaseException:
            os.close(fd)
            with contextlib.suppress(OSError):
                unlink(path)
            raise
        return fd, path

    def _aside(self, data: memoryview) -> int:
        """A descriptor with the bytes that keeps nothing: on the disk when there is room, else in memory."""
        try:
            if self._space.disk_has(len(data)):
                return _filled(self._layout.create_unlinked(), data)
        except OSError as error:
            self._failures.report("writing an unlinked file", error)
        return _filled(os.memfd_create("gpufs", os.MFD_CLOEXEC), data)

    # Partial objects

    def open_partial(self, digest: bytes, size: int) -> Partial:
        """A large object to be filled, with the chunks that are here already; the caller's to close."""
        keeper = Keeper(digest, self._layout, self._catalogue, self._eviction, self._sharing, self._failures)
        if size > 0 and self._space.possible(size):
            try:
                self._unverified.discard(digest)
                with self._sharing.gate():
                    files = open_files(self._layout, digest, size)
                return Partial(keeper, size, files)
            except OSError as error:
                self._failures.report("opening a partial object", error)
        return Partial(keeper, size, None)

    # The whole cache

    def usage(self) -> Usage:
        size, objects = self._catalogue.totals()
        return Usage(size, objects, self._space.limit)

    def evict(self, digest: bytes) -> int:
        """Remove an object, or what is there of it; bytes freed. Open descriptors stay readable."""
        return self._eviction.remove(digest)

    def owe_scan(self) -> None:
        """Another process that shares the directory has died: what it told the catalogue last is missing."""
        self._owes_scan = True

    def scrub(self, stop: Callable[[], bool]) -> None:
        """What is owed after an unclean end: scan the files, verify what waits. For a background thread.

        Returns soon after `stop()` is true, or after close().
        """

        def stop_now() -> bool:
            return self._closed.is_set() or stop()

        with self._scrubbing:
            if not stop_now():
                self._scrub(stop_now)

    def _scrub(self, stop: Callable[[], bool]) -> None:
        try:
            if self._owes_scan and reconcile(self._layout, self._catalogue, self._sharing.gate, stop):
                self._owes_scan = False
            self._unverified.scrub(stop)
        except OSError as error:
            self._failures.report("scrubbing", error)

    def flush(self) -> None:
        """Write catalogue changes and access times now; done every second anyway."""
        self._catalogue.flush()
        self._space.tell()

    def _flush_often(self) -> None:
        cleared = time.monotonic()
        while not self._closed.wait(_FLUSH_SECONDS):
            self.flush()
            if time.monotonic() - cleared > _STALE_SECONDS:
                cleared = time.monotonic()
                try:  # what a killed process has left, while others use the directory
                    self._layout.clear_temporary(older_than=_STALE_SECONDS)
                except OSError as error:
                    self._failures.report("removing temporary files", error)

    def close(self) -> None:
        """Write all that is pending; the last user leaves the mark that all data is on the disk."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._eviction.stop()
        self._flusher.join()
        root = self._layout.root
        try:
            with self._scrubbing, self._sharing.gate():
                # A worker that is still publishing is too late for the catalogue.
                told = self._space.in_flight == 0 and not self._owes_scan
                catalogued = self._catalogue.close(complete=told)
                try:
                    if self._sharing.alone():
                        sync_file_system(root)
                        write_state(root, State(self._boot_id, clean=True, catalogued=catalogued))
                finally:
                    # Before the gate opens: whoever comes next must find that it is the first.
                    self._sharing.leave()
        except OSError as error:
            # Not marked: the next user verifies after a reboot, and scans.
            self._failures.report("closing", error)
        finally:
            self._space.close()
            self._sharing.close()


def _filled(fd: int, data: memoryview) -> int:
    try:
        write_at(fd, data, 0)
    except BaseException:
        os.close(fd)
        raise
    return fd
