"""The access feed: opens answered by the fast path, told to the filesystem process in batches.

One message is a header and one record per open; the filesystem process counts them, keeps the access
times of the cache, and learns what is being read.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from struct import Struct

_HEADER = Struct("<QIII")  # time in ns, pid of the fast path, passthrough, number of records
_RECORD = Struct("<Q16sI")  # inode, digest, pid of the reader
MAX_RECORDS = 2048  # in one message: 56 KiB
MESSAGE_SIZE = _HEADER.size + MAX_RECORDS * _RECORD.size


@dataclass(frozen=True, slots=True)
class Opened:
    """One open: the inode, the digest of its object, and the process that opened it."""

    inode: int
    digest: bytes
    pid: int


@dataclass(frozen=True, slots=True)
class Batch:
    """`opens` in the order they happened, the last of them at `time_ns`."""

    time_ns: int
    fastpath_pid: int
    passthrough: bool
    opens: list[Opened]


class Recorder:
    """Collects opens in the fast path; the cost of one is a list append."""

    def __init__(self, sock: socket.socket, pid: int, passthrough: bool) -> None:
        self._socket = sock
        self._pid = pid
        self._passthrough = passthrough
        self._opens: list[tuple[int, bytes, int]] = []

    def add(self, inode: int, digest: bytes, pid: int) -> bool:
        """Note one open; True when it is time to send."""
        self._opens.append((inode, digest, pid))
        return len(self._opens) >= MAX_RECORDS

    def send(self, time_ns: int) -> None:
        """Send what was collected. What the other end has no room for is dropped: it is only advice."""
        opens, self._opens = self._opens, []
        for start in range(0, max(len(opens), 1), MAX_RECORDS):
            part = opens[start : start + MAX_RECORDS]
            message = bytearray(_HEADER.pack(time_ns, self._pid, self._passthrough, len(part)))
            for record in part:
                message += _RECORD.pack(*record)
            try:
                self._socket.send(message, socket.MSG_DONTWAIT)
            except (BlockingIOError, ConnectionError):
                return


def unpack(message: bytes) -> Batch:
    """One message of the feed."""
    time_ns, pid, passthrough, count = _HEADER.unpack_from(message)
    end = _HEADER.size + count * _RECORD.size
    opens = [Opened(*record) for record in _RECORD.iter_unpack(message[_HEADER.size : end])]
    return Batch(time_ns, pid, bool(passthrough), opens)
