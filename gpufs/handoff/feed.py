"""The access feed: what the fast path did by itself, told to the filesystem process in batches.

One message is a header and one record per event. An event is an open that was answered from the
cache (to be counted, and its access time kept), or a file handed over that the fast path has taken or
has no use for, so that the filesystem process can let go of it.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from dataclasses import dataclass
from struct import Struct

_HEADER = Struct("<QIIIQQQ")  # time in ns, pid of the fast path, passthrough, records; and the counts
_RECORD = Struct("<Q16sII")  # inode, digest, pid of the reader, 1 for a file handed over
MAX_RECORDS = 2048  # in one message: 64 KiB
MAX_WAITING = 1 << 16  # opens kept for a filesystem process that takes no messages; more are not counted
SOON_NS = 10_000_000  # between messages that are sent because a reader has to wait
MESSAGE_SIZE = _HEADER.size + MAX_RECORDS * _RECORD.size

Record = tuple[int, bytes, int, bool]


@dataclass(frozen=True, slots=True)
class Batch:
    """`opened`: (inode, digest, pid) in the order it happened, the last at `time_ns`; `taken`: inodes.

    `notified`: how many notifications of the filesystem process the kernel has been given. `lookups`: names
    and attributes the fast path has answered since it began; `opened_bytes`: sizes of the files it opened.
    """

    time_ns: int
    fastpath_pid: int
    passthrough: bool
    opened: list[tuple[int, bytes, int]]
    taken: list[int]
    notified: int
    lookups: int
    opened_bytes: int


class Recorder:
    """Collects events in the fast path's threads; the cost of one is an append, which needs no lock."""

    def __init__(self, sock: socket.socket, pid: int, passthrough: bool) -> None:
        self._socket = sock
        self._pid = pid
        self._passthrough = passthrough
        self.notified = 0
        self.lookups = 0
        self.opened_bytes = 0
        self._records: deque[Record] = deque()
        self._sending = threading.Lock()
        self._sent_ns = 0

    def opened(self, inode: int, digest: bytes, pid: int) -> None:
        self._records.append((inode, digest, pid, False))

    def taken(self, inode: int) -> None:
        """An open of the filesystem process is not, or no longer, in use: it may let go of the file."""
        self._records.append((inode, b"", 0, True))

    def send(self, time_ns: int) -> None:
        """Send what was collected; what there is no room for waits for the next time."""
        with self._sending:
            self._sent_ns = time_ns
            while self._send_part(time_ns) and self._records:
                pass

    def send_soon(self, time_ns: int) -> None:
        """A reader has to wait: where the others are matters now, to whoever fetches ahead of them."""
        if self._records and not 0 <= time_ns - self._sent_ns < SOON_NS:
            self.send(time_ns)

    def _send_part(self, time_ns: int) -> bool:
        waiting = self._records
        part = [waiting.popleft() for _ in range(min(len(waiting), MAX_RECORDS))]
        counts = self.notified, self.lookups, self.opened_bytes
        message = bytearray(_HEADER.pack(time_ns, self._pid, self._passthrough, len(part), *counts))
        for record in part:
            message += _RECORD.pack(*record)
        try:
            self._socket.send(message, socket.MSG_DONTWAIT)
        except BlockingIOError:
            waiting.extendleft(reversed(part))
            self._drop_oldest_opens()
            return False
        except ConnectionError:
            return False
        return True

    def _drop_oldest_opens(self) -> None:
        """Keep within bounds what waits; a file that may be let go of is never forgotten."""
        waiting = self._records
        excess = len(waiting) - MAX_WAITING
        if excess > 0:
            oldest = [waiting.popleft() for _ in range(excess)]
            waiting.extendleft(reversed([record for record in oldest if record[3]]))


def unpack(message: bytes) -> Batch:
    """One message of the feed."""
    time_ns, pid, passthrough, count, *counts = _HEADER.unpack_from(message)
    opened: list[tuple[int, bytes, int]] = []
    taken: list[int] = []
    for inode, digest, reader, is_taken in _RECORD.iter_unpack(message[_HEADER.size :]):
        if is_taken:
            taken.append(inode)
        else:
            opened.append((inode, digest, reader))
    assert len(opened) + len(taken) == count
    return Batch(time_ns, pid, bool(passthrough), opened, taken, *counts)
