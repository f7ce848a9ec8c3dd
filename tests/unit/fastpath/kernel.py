"""A kernel to answer: it counts opens and refuses what Linux refuses with EIO; and kills at any store."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable

from gpufs.fastpath import wire
from gpufs.fastpath.opening import Opening
from gpufs.fastpath.opens import OpenTable
from gpufs.handoff.handles import handed

ROOM = 8 * (512 + 3 * 64)  # bytes of a table of 64 slots


class Killed(BaseException):
    """The process was killed here."""


class Kernel:
    """Plays gpufs.fastpath.device.Device, and the programs that open and close files.

    `opens`: what is open now, as (inode, handle, mode, backing id). `step` is called before and after
    everything that the kernel is told.
    """

    def __init__(self) -> None:
        self.opens: list[tuple[int, int, str, int]] = []
        self.asked: dict[int, tuple[str, int, int]] = {}  # unanswered: unique -> what, inode, handle
        self.interrupted: set[int] = set()
        self.refused: list[int] = []  # the errors that OPENs were answered with
        self.registered: set[int] = set()
        self.can_back = True
        self.step: Callable[[], None] = lambda: None
        self._unique = 0
        self._ids = 0

    # -- requests

    def ask_open(self, inode: int) -> int:
        self._unique += 2
        self.asked[self._unique] = ("open", inode, 0)
        return self._unique

    def ask_release(self, number: int) -> int:
        """Close one of `opens`: to the kernel it is closed before anybody is told."""
        inode, handle, _, _ = self.opens.pop(number)
        self._unique += 2
        self.asked[self._unique] = ("release", inode, handle)
        return self._unique

    # -- the device

    def opened(self, unique: int, handle: int, flags: int, backing_id: int) -> bool:
        self.step()
        wanted = self._answered(unique & ~wire.UNIQUE_RESEND, handle, flags, backing_id)
        self.step()
        return wanted

    def released(self, unique: int) -> bool:
        return self.opened(unique, 0, 0, 0)

    def _answered(self, unique: int, handle: int, flags: int, backing_id: int) -> bool:
        if unique in self.interrupted:
            del self.asked[unique]
            return False
        what, inode, _ = self.asked.pop(unique)
        if what == "open":
            mode = "passthrough" if flags & wire.FOPEN_PASSTHROUGH else "cached"
            others = {(m, b) for i, _, m, b in self.opens if i == inode}
            assert others <= {(mode, backing_id)}, f"EIO: inode {inode} is open as {others}, now {mode}"
            assert mode == "cached" or backing_id in self.registered, "EIO: no such backing id"
            self.opens.append((inode, handle, mode, backing_id))
        return True

    def error(self, unique: int, number: int) -> bool:
        self.step()
        del self.asked[unique & ~wire.UNIQUE_RESEND]
        self.refused.append(number)
        return True

    def backing_open(self, fd: int) -> int:
        self.step()
        os.fstat(fd)
        if not self.can_back:
            raise OSError(errno.ELOOP, "too deep")
        self._ids += 1
        self.registered.add(self._ids)
        self.step()
        return self._ids

    def backing_close(self, backing_id: int) -> bool:
        self.step()
        known = backing_id in self.registered
        self.registered.discard(backing_id)
        self.step()
        return known


class Words:
    """The table's words; `step` is called before each store."""

    def __init__(self, words: memoryview, step: Callable[[], None]) -> None:
        self._words = words
        self._step = step

    def __getitem__(self, at: int | slice) -> int | memoryview:
        return self._words[at]

    def __setitem__(self, at: int, value: int) -> None:
        self._step()
        self._words[at] = value

    def release(self) -> None:
        self._words.release()


class Process:
    """One life of the fast path on a kernel: a table on the memfd, and what the two threads do with it."""

    def __init__(self, kernel: Kernel, fd: int, *, passthrough: bool = True) -> None:
        self.kernel = kernel
        self.table = OpenTable(fd)
        self.table._words = Words(self.table._words, lambda: kernel.step())  # type: ignore[assignment]
        self.opening = Opening(kernel, self.table, passthrough)  # type: ignore[arg-type]

    def hit(self, unique: int) -> bool:
        """The loop's thread answers an OPEN of an object that is in the cache."""
        return self.opening.hit(unique, self._inode(unique), bytes_of_an_object)

    def miss(self, unique: int) -> bool:
        """The loop's thread finds an OPEN whose object is not in the cache."""
        return self.opening.hit(unique, self._inode(unique), nothing_there)

    def by_filesystem(self, unique: int, hand: bool) -> bool:
        """The relay's thread passes on what the filesystem process answered."""
        inode = self._inode(unique)
        fd = bytes_of_an_object()
        try:
            handle = handed(inode, fd) if hand else inode
            return self.opening.opened(unique, handle, wire.FOPEN_KEEP_CACHE, "/proc/self/fd")
        finally:
            os.close(fd)

    def release(self, unique: int) -> None:
        counted = bool(unique & wire.UNIQUE_RESEND) and self.opening.take_back(unique) < 0
        self.opening.released(unique, self._inode(unique), counted)

    def answer_again(self, hand: bool = True) -> None:
        """Answer all that the kernel has asked and got no answer to, as resent requests."""
        for unique, (what, _, _) in list(self.kernel.asked.items()):
            again = unique | wire.UNIQUE_RESEND
            if what == "release":
                self.release(again)
            else:
                self.opening.take_back(again)
                if not self.hit(again):
                    self.by_filesystem(again, hand)

    def die(self) -> None:
        for fd in self.opening._files.values():
            os.close(fd)
        self.table.close()

    def check(self) -> None:
        """What the table says is what the kernel knows."""
        opens = self.kernel.opens
        table = {i: self.table.get(i) for i in {o[0] for o in opens}}
        for inode, count in Counter(o[0] for o in opens).items():
            entry = table[inode]
            assert entry is not None and entry.opens == count
        assert len(self.table) == len(table), "an inode that nobody has open"
        assert self.kernel.registered == {b for _, _, _, b in opens if b}, "backing ids kept for nobody"
        assert set(self.opening._files) <= set(table), "descriptors kept for nobody"

    def _inode(self, unique: int) -> int:
        return self.kernel.asked[unique & ~wire.UNIQUE_RESEND][1]


def bytes_of_an_object() -> int:
    return os.open("/proc/self/exe", os.O_RDONLY | os.O_CLOEXEC)


def nothing_there() -> int:
    raise FileNotFoundError(errno.ENOENT, "not in the cache")


def new_table() -> int:
    fd = os.memfd_create("opens", os.MFD_CLOEXEC)
    os.truncate(fd, ROOM)
    return fd
