"""Lets memory go that holds what the mount's own page cache holds as well."""

from __future__ import annotations

import os
import queue
import threading


class PageDropper:
    """Closes descriptors of cache files, and has the kernel drop the files' pages, in a thread of its own.

    Without passthrough a file that was read is in memory twice: as a file of the mount, from which the next
    open is read, and as the file of the cache. What is not on the disk yet is written first, which may take
    a while: hence the thread.
    """

    def __init__(self) -> None:
        self._fds: queue.SimpleQueue[int] = queue.SimpleQueue()

    def start(self) -> None:
        threading.Thread(target=self._run, name="gpufs pages", daemon=True).start()

    def close(self, fd: int) -> None:
        """Close `fd` soon."""
        self._fds.put(fd)

    def _run(self) -> None:
        while True:
            fd = self._fds.get()
            try:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)
