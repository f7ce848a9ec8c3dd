"""The access feed: what the fast path did by itself, told to the filesystem process in batches.

One message is a header and one record per event. An event is an open that was answered from the
cache (to be counted, and its access time kept), or a file handed over that the fast path has taken or
has no use for, so that the filesystem process can let go of it.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from struct import Struct

_HEADER = Struct("<QIII")  # time in ns, pid of the fast path, passthrough, number of records
_RECORD = Struct("<Q16sII")  # inode, digest, pid of the reader, 1 for a file handed over
MAX_RECORDS = 2048  # in one message: 64 KiB
MAX_WAITING = 1 << 16  # opens kept for a filesystem process that takes no messages; more are not counted
MESSAGE_SIZE = _HEADER.size + MAX_RECORDS * _RECORD.size

Record = tuple[int, bytes, int, int]


@dataclass(frozen=True, slots=True)
class Batch:
    """`opened`: (inode, digest, pid) in the order it happened, the last at `time_ns`; `taken`: inodes."""

    time_ns: int
    fastpath_pid: int
    passthrough: bool
    opened: list[tuple[int, bytes, int]]
    taken: list[int]


class Recorder:
    """Collects events in the fast path's threads; the cost of one is a list append."""

    def __init__(self, sock: socket.socket, pid: int, passthrough: bool) -> None:
        self._socket = sock
        self._pid = pid
        self._passthrough = passthrough
        self._records: list[Record] = []

    def opened(self, inode: int, digest: bytes, pid: int) -> None:
        self._records.append((inode, digest, pid, 0))

    def taken(self, inode: int) -> None:
        """A file that was handed over needs no longer be held."""
        self._records.append((inode, b"", 0, 1))

    def send(self, time_ns: int) -> None:
        """Send what was collected; what there is no room for waits for the next time."""
        records, self._records = self._records, []
        for start in range(0, max(len(records), 1), MAX_RECORDS):
            part = records[start : start + MAX_RECORDS]
            message = bytearray(_HEADER.pack(time_ns, self._pid, self._passthrough, len(part)))
            for record in part:
                message += _RECORD.pack(*record)
            try:
                self._socket.send(message, socket.MSG_DONTWAIT)
            except BlockingIOError:
                waiting = records[start:]
                if len(waiting) > MAX_WAITING:
                    waiting = [r for r in waiting[:-MAX_WAITING] if r[3]] + waiting[-MAX_WAITING:]
                self._records = waiting + self._records
                return
            except ConnectionError:
                return


def unpack(message: bytes) -> Batch:
    """One message of the feed."""
    time_ns, pid, passthrough, count = _HEADER.unpack_from(message)
    opened: list[tuple[int, bytes, int]] = []
    taken: list[int] = []
    for inode, digest, reader, is_taken in _RECORD.iter_unpack(message[_HEADER.size :]):
        if is_taken:
            taken.append(inode)
        else:
            opened.append((inode, digest, reader))
    assert len(opened) + len(taken) == count
    return Batch(time_ns, pid, bool(passthrough), opened, taken)
