"""Handles of names that were looked up lately, so that reading a file need not begin at the root."""

from __future__ import annotations

import threading
from collections import OrderedDict

_MOST = 20_000


class Handles:
    """Path -> handle. Thread-safe.

    A handle outlives its name: what a path is called now, it does not tell. That is good enough for
    reading, where the version decides, and for nothing else.
    """

    def __init__(self) -> None:
        self._handles: OrderedDict[bytes, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, path: bytes) -> bytes | None:
        with self._lock:
            handle = self._handles.get(path)
            if handle is not None:
                self._handles.move_to_end(path)
            return handle

    def put(self, path: bytes, handle: bytes) -> None:
        with self._lock:
            self._handles[path] = handle
            self._handles.move_to_end(path)
            if len(self._handles) > _MOST:
                self._handles.popitem(last=False)

    def drop(self, path: bytes) -> None:
        """Those of `path` and of the directories above it."""
        with self._lock:
            while path:
                self._handles.pop(path, None)
                path = path.rpartition(b"/")[0]
