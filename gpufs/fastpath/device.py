"""The kernel's end: /dev/fuse as a descriptor, and its ioctls."""

from __future__ import annotations

import errno
import fcntl
import os
import sys

from gpufs.fastpath import wire


class Device:
    """An open /dev/fuse of a mounted connection."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def reply(self, unique: int, *parts: bytes | memoryview) -> bool:
        """Answer a request; False when the kernel no longer wants the answer (interrupted, unmounted)."""
        size = 16
        for part in parts:
            size += len(part)
        try:
            os.writev(self.fd, [wire.OUT_HEADER.pack(size, 0, unique), *parts])
        except OSError as error:
            return self._refused(error)
        return True

    def opened(self, unique: int, handle: int, flags: int, backing_id: int) -> bool:
        """Answer an OPEN. In one piece, as this and released() are what a hit consists of."""
        return self.send(wire.OPEN_REPLY.pack(wire.OPEN_REPLY.size, 0, unique, handle, flags, backing_id))

    def released(self, unique: int) -> bool:
        """Answer a RELEASE."""
        return self.error(unique, 0)

    def error(self, unique: int, number: int) -> bool:
        try:
            os.write(self.fd, wire.OUT_HEADER.pack(16, -number, unique))
        except OSError as error:
            return self._refused(error)
        return True

    def send(self, message: memoryview | bytes) -> bool:
        """Pass on a whole message from libfuse: a reply or a notification."""
        try:
            os.write(self.fd, message)
        except OSError as error:
            return self._refused(error)
        return True

    def resend(self) -> None:
        """Have the kernel queue again every request that was handed out and not answered."""
        os.write(self.fd, wire.OUT_HEADER.pack(16, wire.NOTIFY_RESEND, 0))

    def backing_open(self, fd: int) -> int:
        """Register an open file for passthrough; its backing id. Raises OSError."""
        # With a buffer that could be changed, ioctl() returns what the kernel does.
        return int(fcntl.ioctl(self.fd, wire.BACKING_OPEN, bytearray(wire.BACKING_MAP.pack(fd, 0, 0))))

    def backing_close(self, backing_id: int) -> bool:
        """Let the kernel forget a backing id; files open with it keep their bytes."""
        try:
            fcntl.ioctl(self.fd, wire.BACKING_CLOSE, backing_id.to_bytes(4, sys.byteorder))
        except OSError:
            return False
        return True

    @staticmethod
    def _refused(error: OSError) -> bool:
        # ENOENT: the request was interrupted meanwhile, or a notification named what is not there.
        if error.errno in (errno.ENOENT, errno.ENODEV, errno.ECONNABORTED, errno.ENOTCONN):
            return False
        raise error
