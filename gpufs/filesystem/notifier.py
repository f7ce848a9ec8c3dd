"""Telling the kernel what it should forget, in a thread of its own and in order."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

import trio

from gpufs.index import Change

log = logging.getLogger("gpufs.notifier")


class Notifier:
    """Calls `send(change)` for each change, one after the other; made inside trio.

    `send` may block: the kernel takes a lock that a program may hold while it waits for an answer of
    ours. So it is never called in the trio thread.
    """

    def __init__(self, send: Callable[[Change], None]) -> None:
        self._send = send
        self._queue: SimpleQueue[Change | trio.Event] = SimpleQueue()
        self._trio = trio.lowlevel.current_trio_token()
        self.sent = 0  # how many changes were sent
        threading.Thread(target=self._work, name="gpufs notifier", daemon=True).start()

    def tell(self, change: Change) -> None:
        self._queue.put(change)

    async def flush(self) -> None:
        """Wait until everything that was told so far has been sent."""
        event = trio.Event()
        self._queue.put(event)
        await event.wait()

    def _work(self) -> None:
        while True:
            item = self._queue.get()
            if isinstance(item, Change):
                self._give(item)
                continue
            try:
                self._trio.run_sync_soon(item.set)
            except trio.RunFinishedError:
                return

    def _give(self, change: Change) -> None:
        try:
            self._send(change)
        except FileNotFoundError:
            pass  # the kernel does not know that name or directory
        except OSError as error:
            log.warning("the kernel cannot be told of a change in inode %d: %s", change.parent, error)
        self.sent += 1
