"""The kernel's end: /dev/fuse as a descriptor, and its ioctls."""

from __future__ import annotations

import ctypes
import errno
import os

from gpufs.fastpath import wire


class Device:
    """An open /dev/fuse of a mounted connection."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._ioctl = ctypes.CDLL(None, use_errno=True).ioctl
        self._ioctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p)

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
        argument = ctypes.create_string_buffer(wire.BACKING_MAP.pack(fd, 0, 0), wire.BACKING_MAP.size)
        backing_id = self._ioctl(self.fd, wire.BACKING_OPEN, ctypes.addressof(argument))
        if backing_id <= 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return int(backing_id)

    def backing_close(self, backing_id: int) -> bool:
        """Let the kernel forget a backing id; files open with it keep their bytes."""
        argument = ctypes.c_uint32(backing_id)
        return bool(self._ioctl(self.fd, wire.BACKING_CLOSE, ctypes.addressof(argument)) == 0)

    @staticmethod
    def _refused(error: OSError) -> bool:
        # ENOENT: the request was interrupted meanwhile, or a notification named what is not there.
        if error.errno in (errno.ENOENT, errno.ENODEV, errno.ECONNABORTED, errno.ENOTCONN):
            return False
        raise error
