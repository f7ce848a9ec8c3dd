"""The request loop: reads /dev/fuse, answers what is on this host, forwards the rest as it came."""

from __future__ import annotations

import errno
import logging
import os
import socket
import time
from collections.abc import Callable

import lmdb

from gpufs.cache.layout import Layout
from gpufs.fastpath import wire
from gpufs.fastpath.device import Device
from gpufs.fastpath.interrupts import Interrupts
from gpufs.fastpath.negotiation import LARGEST_READ
from gpufs.fastpath.opening import Opening
from gpufs.fastpath.patience import Patience
from gpufs.handoff.feed import Recorder
from gpufs.handoff.handles import OURS
from gpufs.index import Index, Inode
from gpufs.source.base import Kind
from gpufs.view import FOREVER, NAME_MAX, PREFERRED_READ, View, attributes_hold, fresh_for

REQUEST_SIZE = LARGEST_READ + (64 << 10)  # bytes; must exceed max_write + 4 KiB, or every read gives EINVAL
INTERNAL = 1 << 62  # set in the unique of our own requests to the filesystem process

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_TRUNC | os.O_APPEND
_BODY = wire.IN_HEADER_SIZE
_PID_AT = 32
_NO_ENTRY = bytes(wire.ATTR.size)

log = logging.getLogger("gpufs.fastpath")


class FilesystemGone(Exception):
    """The other process has ended; a new pair of processes must take over."""


class Loop:
    """Serves one mount until it is unmounted. Holds no truth of its own: index and cache have it."""

    def __init__(
        self,
        device: Device,
        pair: socket.socket,
        index: Index,
        objects: Layout,
        view: View,
        ttl: float,
        opening: Opening,
        recorder: Recorder,
    ) -> None:
        self._device = device
        self._pair = pair
        self._index = index
        self._objects = objects
        self._view = view
        self._ttl = ttl
        self._opening = opening
        self._recorder = recorder
        self._buffer = bytearray(REQUEST_SIZE)
        self._request = memoryview(self._buffer)
        self._data = memoryview(bytearray(LARGEST_READ))
        self._read_flags = os.RWF_NOWAIT
        self._internal = INTERNAL
        self.interrupts = Interrupts(device)
        self.opens_forwarded: set[int] = set()  # uniques of OPENs the relay will see an answer to
        self._handlers: dict[int, Callable[[int, int], bool]] = {
            wire.LOOKUP: self._lookup,
            wire.GETATTR: self._getattr,
            wire.OPEN: self._open,
            wire.READ: self._read,
            wire.RELEASE: self._release,
            wire.GETXATTR: self._getxattr,
            wire.FLUSH: self._not_implemented,  # and the kernel never asks again
            wire.IOCTL: self._not_implemented,  # Python's open() asks of every file whether it is a terminal
            wire.FORGET: self._no_reply,
            wire.BATCH_FORGET: self._no_reply,
            wire.INTERRUPT: self._interrupt,
        }

    def run(self) -> None:
        """Serve until the tree is unmounted."""
        unpack, handlers, fd = wire.IN_HEADER.unpack_from, self._handlers, self._device.fd
        waiting = self.interrupts.waiting
        patience = Patience(fd)
        while True:
            try:
                size = os.readv(fd, [self._buffer])
            except BlockingIOError:
                patience.wait()
                continue
            except OSError as error:
                if error.errno == errno.ENODEV:
                    return
                if error.errno not in (errno.ENOENT, errno.EINTR):
                    raise
                continue  # the request was taken back before it could be read
            _, opcode, unique, inode = unpack(self._buffer)
            handler = handlers.get(opcode)
            try:
                done = handler is not None and handler(unique, inode)
            except lmdb.Error as error:
                log.warning("the index cannot be read, the filesystem process is asked instead: %s", error)
                done = False
            if not done:
                waiting[unique] = int.from_bytes(self._request[_PID_AT : _PID_AT + 4], "little")
                try:
                    self._pair.send(self._request[:size])
                except ConnectionError:  # the filesystem process died; the kernel will ask again
                    raise FilesystemGone from None

    def _release_in_filesystem(self, inode: int) -> None:
        """Tell the filesystem process that one of its opens has ended."""
        self._internal += 1
        body = wire.RELEASE_IN.pack(inode) + bytes(16)
        header = wire.IN_HEADER.pack(_BODY + len(body), wire.RELEASE, self._internal, inode)
        try:
            self._pair.send(header + bytes(_BODY - len(header)) + body)
        except ConnectionError:
            raise FilesystemGone from None

    # -- handlers: True when the request is answered; False to forward it

    def _lookup(self, unique: int, parent: int) -> bool:
        length = wire.IN_HEADER.unpack_from(self._buffer)[0]
        name = bytes(self._request[_BODY : length - 1])
        holds = fresh_for(self._index.listed(parent), self._ttl)
        if holds <= 0 or len(name) > NAME_MAX:
            return False
        self._recorder.lookups += 1
        inode = self._index.lookup(parent, name)
        seconds = int(holds)
        nanoseconds = int((holds - seconds) * 1e9)
        if inode is None:
            self._device.reply(unique, wire.ENTRY.pack(0, 0, seconds, 0, nanoseconds, 0), _NO_ENTRY)
        else:
            kept = int(attributes_hold(inode, holds))
            entry = wire.ENTRY.pack(inode.number, 0, seconds, kept, nanoseconds, 0)
            self._device.reply(unique, entry, self._attributes(inode))
        return True

    def _getattr(self, unique: int, number: int) -> bool:
        inode = self._index.get(number)
        if inode is None:
            return False
        self._recorder.lookups += 1
        directory = inode.kind is Kind.DIRECTORY
        holds = fresh_for(self._index.listed(inode.parent), self._ttl) if directory else FOREVER
        kept = int(attributes_hold(inode, holds))
        self._device.reply(unique, wire.ATTR_OUT.pack(kept, 0, 0), self._attributes(inode))
        return True

    def _open(self, unique: int, number: int) -> bool:
        if unique & wire.UNIQUE_RESEND:
            self._opening.take_back(unique)
        flags, _ = wire.OPEN_IN.unpack_from(self._buffer, _BODY)
        contents = None if flags & _WRITING else self._index.contents(number)
        if contents is not None:
            digest, size = contents
            if digest and size and self._opening.hit(unique, number, lambda: self._object(digest, size)):
                pid = int.from_bytes(self._request[_PID_AT : _PID_AT + 4], "little")
                self._recorder.opened(number, digest, pid)
                self._recorder.opened_bytes += size
                return True
        self._recorder.send_soon(time.time_ns())
        self.opens_forwarded.add(unique)
        return False

    def _read(self, unique: int, number: int) -> bool:
        handle, offset, size = wire.READ_IN.unpack_from(self._buffer, _BODY)
        if not handle & OURS:
            return False
        inode = self._index.get(number)
        if inode is None:
            return False
        fd = self._opening.file_of(number)
        if fd is None:
            try:
                fd = self._object(inode.digest, inode.size)
            except OSError:
                return False
            self._opening.adopt(number, fd)
        data = self._data[: max(0, min(size, inode.size - offset))]
        if not self._read_from(fd, data, offset):
            return False
        self._device.reply(unique, data)
        return True

    def _read_from(self, fd: int, data: memoryview, offset: int) -> bool:
        """Fill `data` from memory; False when it is not there: a wait that belongs to another process."""
        try:
            return os.preadv(fd, [data], offset, self._read_flags) == len(data)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP or not self._read_flags:
                return False
            # Overlayfs, say: it cannot tell, and most of what is read is in memory.
            self._read_flags = 0
            return self._read_from(fd, data, offset)

    def _release(self, unique: int, number: int) -> bool:
        counted = bool(unique & wire.UNIQUE_RESEND) and self._opening.take_back(unique) < 0
        (handle,) = wire.RELEASE_IN.unpack_from(self._buffer, _BODY)
        self._opening.released(unique, number, counted)
        if not handle & OURS:
            self._release_in_filesystem(number)
        return True

    def _getxattr(self, unique: int, number: int) -> bool:
        # struct fuse_getxattr_in: size, padding; then the name.
        if self._buffer.startswith(b"user.", _BODY + 8):
            return False
        self._device.error(unique, errno.EOPNOTSUPP)
        return True

    def _not_implemented(self, unique: int, number: int) -> bool:
        self._device.error(unique, errno.ENOSYS)
        return True

    def _interrupt(self, unique: int, number: int) -> bool:
        (interrupted,) = wire.INTERRUPT_IN.unpack_from(self._buffer, _BODY)
        self.interrupts.ask(interrupted)
        return True

    def _no_reply(self, unique: int, number: int) -> bool:
        return True

    def _object(self, digest: bytes, size: int) -> int:
        """A descriptor of an object in the cache. Raises OSError when it is not there, or not all of it."""
        fd = self._objects.open_object(digest)
        if os.lseek(fd, 0, os.SEEK_END) != size:  # the kernel would read it as a shorter file
            os.close(fd)
            raise OSError(errno.EIO, "damaged")
        return fd

    def _attributes(self, inode: Inode) -> bytes:
        shown = self._view.show(inode)
        seconds, nanoseconds = divmod(inode.mtime_ns, 1_000_000_000)
        return wire.ATTR.pack(
            inode.number,
            shown.size,
            shown.blocks,
            seconds,
            seconds,
            seconds,
            nanoseconds,
            nanoseconds,
            nanoseconds,
            shown.mode,
            1,
            shown.uid,
            shown.gid,
            0,
            PREFERRED_READ,
            0,
        )
