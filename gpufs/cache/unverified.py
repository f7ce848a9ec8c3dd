"""Objects from before an unclean reboot: each comes back when its checksum matches, or is deleted."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable

from gpufs.cache.catalogue import Catalogue
from gpufs.cache.checksum import NO_HASH, file_hash
from gpufs.cache.failures import Failures
from gpufs.cache.layout import Layout, remove_empty_directories, unlink, walk_objects
from gpufs.metrics import Metrics

_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW


class _Stopped(Exception):
    """The scrub was asked to stop in the middle of an object."""


class Unverified:
    """The entries waiting in unverified/. Any thread."""

    def __init__(self, layout: Layout, catalogue: Catalogue, failures: Failures, metrics: Metrics) -> None:
        self._layout = layout
        self._catalogue = catalogue
        self._failures = failures
        self._metrics = metrics
        # Nothing is ever added while the directory is in use: once empty, it stays so.
        self._waiting = layout.unverified.exists()

    @property
    def waiting(self) -> bool:
        """Whether there is any; another process may verify them too."""
        if self._waiting:
            self._waiting = self._layout.unverified.exists()
        return self._waiting

    def rescue(self, digest: bytes) -> int | None:
        """Verify one entry; its descriptor when it is good. No system call when nothing waits."""
        if not self._waiting:
            return None
        return self._verify(digest, lambda _: None)

    def discard(self, digest: bytes) -> None:
        """The object is fetched anew: its old copy would take room that nothing counts. OSError."""
        if self._waiting:
            unlink(self._layout.unverified_path(digest))

    def scrub(self, stop: Callable[[], bool]) -> None:
        """Verify all of them, using at most about half of the disk's and one core's time."""
        if not self._waiting:
            return

        started = time.monotonic()

        def pause(length: int) -> None:
            nonlocal started
            time.sleep(min(time.monotonic() - started, 0.1))
            if stop():
                raise _Stopped
            started = time.monotonic()

        for digest, path in walk_objects(self._layout.unverified):
            try:
                if os.path.lexists(self._layout.object_path(digest)):
                    # Fetched anew meanwhile.
                    unlink(path)
                    continue
                fd = self._verify(digest, pause)
            except _Stopped:
                return
            except OSError as error:
                self._failures.report("scrubbing", error)
                continue
            if fd is not None:
                with contextlib.suppress(OSError):
                    # The scrub must not push what is being read out of the page cache.
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(fd)
        if remove_empty_directories(self._layout.unverified):
            self._waiting = False

    def _verify(self, digest: bytes, between_chunks: Callable[[int], None]) -> int | None:
        path = self._layout.unverified_path(digest)
        try:
            fd = os.open(path, _OPEN)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._failures.report("opening an unverified entry", error)
            return None
        keep = False
        try:
            keep = self._good(digest, fd, between_chunks)
            if not keep:
                self._delete(digest, path)
        except OSError as error:
            self._failures.report("verifying an entry", error)
            keep = False
        finally:
            if not keep:
                os.close(fd)
        if not keep:
            return None
        try:
            self._layout.move_to_objects(path, digest)
        except FileNotFoundError:
            # Another process was faster, or it was evicted: the bytes are good all the same.
            pass
        except OSError as error:
            self._failures.report("moving a verified entry", error)
        return fd

    def _good(self, digest: bytes, fd: int, between_chunks: Callable[[int], None]) -> bool:
        entry = self._catalogue.get(digest)
        if entry is None or entry.checksum == NO_HASH:
            # Published in the last second before the crash, or the catalogue was lost: nothing to compare.
            return False
        if os.fstat(fd).st_size == entry.size and file_hash(fd, between_chunks) == entry.checksum:
            return True
        self._metrics.corrupt_entries.add()
        return False

    def _delete(self, digest: bytes, path: str) -> None:
        entry = self._catalogue.get(digest)
        if unlink(path) and entry is not None and not os.path.lexists(self._layout.object_path(digest)):
            self._catalogue.remove(digest, entry)
