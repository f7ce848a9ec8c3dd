"""Opening and releasing files towards the kernel, so that one inode is only ever open in one mode."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from gpufs.fastpath import wire
from gpufs.fastpath.device import Device
from gpufs.fastpath.opens import CACHED, PASSTHROUGH, OpenInode, OpenTable
from gpufs.handoff.handles import INODE, OURS, handed_fd

LOOP, RELAY = 0, 1  # the two threads that answer the kernel


class Opening:
    """The open files of a mount as the kernel knows them; used by both threads.

    `passthrough` is whether files of the cache can be handed to the kernel. Where they cannot,
    `file_of` has the descriptors that READ is answered from, and `close` is called with each of them at
    the end.
    """

    def __init__(
        self, device: Device, table: OpenTable, passthrough: bool, close: Callable[[int], None] = os.close
    ) -> None:
        self._device = device
        self._table = table
        self._passthrough = passthrough
        self._close = close
        self._files: dict[int, int] = {}
        self._in_doubt = table.doubts()
        for backing_id in table.strays() if passthrough else ():
            if device.backing_close(backing_id):
                table.saw(backing_id)

    def hit(self, unique: int, inode: int, open_object: Callable[[], int]) -> bool:
        """Answer an OPEN from the cache; False when the filesystem process must answer.

        `open_object` gives a descriptor of the object, or raises OSError when it is not here.
        """
        with self._table.lock:
            entry = self._table.get(inode)
            if entry is None:
                try:
                    entry = self._register(inode, open_object())
                except OSError:
                    return False
            elif entry.mode == CACHED and inode not in self._files:
                return False
            if entry.mode == PASSTHROUGH:
                self._answer(LOOP, unique, inode, entry, inode | OURS, wire.FOPEN_PASSTHROUGH)
            else:
                self._answer(LOOP, unique, inode, entry, inode | OURS, wire.FOPEN_KEEP_CACHE)
        return True

    def opened(self, unique: int, handle: int, flags: int, directory_of_fds: str) -> bool:
        """Answer an OPEN as the filesystem process did, if need be in another mode.

        True when the kernel got the handle of that process, which must keep its file open then.
        """
        inode, fd = handle & INODE, handed_fd(handle)
        with self._table.lock:
            entry = self._table.get(inode)
            if entry is None and fd is not None and self._passthrough:
                try:
                    path = f"{directory_of_fds}/{fd}"
                    entry = self._register(inode, os.open(path, os.O_RDONLY | os.O_CLOEXEC))
                except OSError:
                    entry = None  # read through the filesystem process: slower, and right
            if entry is not None and entry.mode == PASSTHROUGH:
                self._answer(RELAY, unique, inode, entry, inode | OURS, wire.FOPEN_PASSTHROUGH)
                return False
            if entry is None:
                try:
                    entry = self._table.enter(inode, CACHED, 0)
                except OSError:
                    self._device.error(unique, errno.ENFILE)
                    return False
            return self._answer(RELAY, unique, inode, entry, inode, flags)

    def released(self, unique: int, inode: int, counted: bool) -> None:
        """Answer a RELEASE; `counted` when a predecessor had already counted it."""
        with self._table.lock:
            entry = self._table.get(inode)
            if entry is not None and not counted:
                opens = entry.opens
                self._table.doubt(LOOP, unique & ~wire.UNIQUE_RESEND, inode, opens, opens - 1 if opens else 0)
                self._uncount(inode, entry)
            self._device.released(unique)
            self._table.settle(LOOP)

    def take_back(self, unique: int) -> int:
        """A request has come again: undo an open counted for it; -1 when it was a release counted already."""
        doubt = self._in_doubt.pop(unique & ~wire.UNIQUE_RESEND, None)
        if doubt is None:
            return 0
        thread, inode, change = doubt
        with self._table.lock:
            entry = self._table.get(inode)
            if change > 0 and entry is not None:
                self._uncount(inode, entry)
            self._table.settle(thread)
        return change

    def file_of(self, inode: int) -> int | None:
        """The descriptor to answer READ from, of a file that the fast path opened without passthrough."""
        return self._files.get(inode)

    def adopt(self, inode: int, fd: int) -> None:
        """Answer READ of a file that a predecessor opened from `fd` from now on."""
        self._files[inode] = fd

    # -- with the table's lock held

    def _register(self, inode: int, fd: int) -> OpenInode:
        """Enter an inode whose bytes are in `fd`, which becomes ours."""
        if self._passthrough:
            try:
                backing_id = self._device.backing_open(fd)
                self._table.saw(backing_id)
            finally:
                os.close(fd)
            try:
                return self._table.enter(inode, PASSTHROUGH, backing_id)
            except OSError:
                self._device.backing_close(backing_id)
                raise
        try:
            entry = self._table.enter(inode, CACHED, 0)
        except OSError:
            os.close(fd)
            raise
        self._files[inode] = fd
        return entry

    def _answer(
        self, thread: int, unique: int, inode: int, entry: OpenInode, handle: int, flags: int
    ) -> bool:
        backing_id = entry.backing_id if flags & wire.FOPEN_PASSTHROUGH else 0
        opens = entry.opens
        self._table.doubt(thread, unique & ~wire.UNIQUE_RESEND, inode, opens, opens + 1)
        self._table.count(entry, opens + 1)
        wanted = self._device.opened(unique, handle, flags, backing_id)
        if not wanted:  # the program was interrupted: to the kernel this file was never opened
            self._uncount(inode, entry)
        self._table.settle(thread)
        return wanted

    def _uncount(self, inode: int, entry: OpenInode) -> None:
        if entry.opens > 1:
            self._table.count(entry, entry.opens - 1)
        else:
            self._table.forget(inode)
            if entry.mode == PASSTHROUGH:
                self._device.backing_close(entry.backing_id)
            fd = self._files.pop(inode, None)
            if fd is not None:
                self._close(fd)
