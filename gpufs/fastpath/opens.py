"""The open-mode table: how each open inode is open, kept in memory that outlives this process.

Kernel rule: an inode cannot be open in cached mode and in passthrough mode at once, nor with two
backing ids (the loser gets EIO). So every open is counted here before the kernel is answered, and a
process that takes over finds what its predecessor had told the kernel.
"""

from __future__ import annotations

import mmap
import threading
from struct import Struct

CACHED, PASSTHROUGH = 1, 2

_SLOT = Struct("<QIiII")  # inode (0: free), mode, backing id, opens, unused
_HEADER = Struct("<QQI")  # magic, slots ever used, last backing id
_MAGIC = 0x31304E45504F4647  # "GFOPEN01"
_DOUBT = Struct("<QQI")  # unique, inode, +1 for an open or -1 for a release as an unsigned number
_DOUBT_AT = (64, 96)  # one for each thread that answers the kernel
_AGREEMENT_AT, _AGREEMENT_SIZE = 128, 12
_SLOTS_AT = 4096
SLOTS = 1 << 20
TABLE_SIZE = _SLOTS_AT + SLOTS * _SLOT.size  # bytes of address space; only what is used takes memory
_RELEASED = (1 << 32) - 1


class OpenInode:
    """One inode that is open, or whose backing id is kept for its next open (`opens` is 0 then)."""

    __slots__ = ("backing_id", "mode", "opens", "slot")

    def __init__(self, slot: int, mode: int, backing_id: int, opens: int) -> None:
        self.slot = slot
        self.mode = mode
        self.backing_id = backing_id
        self.opens = opens


class OpenTable:
    """All open inodes of one mount. Used by two threads: hold `lock` around what belongs together.

    `fd` is a memfd of TABLE_SIZE bytes, owned by the supervisor; zeroed when new.
    """

    def __init__(self, fd: int) -> None:
        self.lock = threading.Lock()
        self._memory = mmap.mmap(fd, TABLE_SIZE)
        self._inodes: dict[int, OpenInode] = {}
        self._free: list[int] = []
        magic, self._used, self.last_backing_id = _HEADER.unpack_from(self._memory, 0)
        if magic != _MAGIC:
            self._used = self.last_backing_id = 0
            self._write_header()
        for slot in range(self._used):
            inode, mode, backing_id, opens, _ = _SLOT.unpack_from(self._memory, self._at(slot))
            if inode:
                self._inodes[inode] = OpenInode(slot, mode, backing_id, opens)
            else:
                self._free.append(slot)

    def get(self, inode: int) -> OpenInode | None:
        return self._inodes.get(inode)

    def __len__(self) -> int:
        return len(self._inodes)

    def items(self) -> list[tuple[int, OpenInode]]:
        return list(self._inodes.items())

    def set(self, inode: int, mode: int, backing_id: int, opens: int) -> OpenInode:
        """Enter or change an inode. Raises MemoryError when the table is full."""
        entry = self._inodes.get(inode)
        if entry is None:
            if self._free:
                slot = self._free.pop()
            else:
                slot = self._used
                if slot >= SLOTS:
                    raise MemoryError("the table of open files is full")
                self._used += 1
                self._write_header()
            entry = self._inodes[inode] = OpenInode(slot, mode, backing_id, opens)
        else:
            entry.mode, entry.backing_id, entry.opens = mode, backing_id, opens
        if backing_id > self.last_backing_id:
            self.last_backing_id = backing_id
            self._write_header()
        _SLOT.pack_into(self._memory, self._at(entry.slot), inode, mode, backing_id, opens, 0)
        return entry

    def count(self, inode: int, entry: OpenInode, change: int) -> None:
        """Add `change` to the opens of an inode."""
        entry.opens += change
        _SLOT.pack_into(
            self._memory, self._at(entry.slot), inode, entry.mode, entry.backing_id, entry.opens, 0
        )

    def forget(self, inode: int) -> None:
        """Take an inode out."""
        entry = self._inodes.pop(inode)
        _SLOT.pack_into(self._memory, self._at(entry.slot), 0, 0, 0, 0, 0)
        self._free.append(entry.slot)

    # -- doubt: a change is noted before the kernel is answered, and the note removed after. When a
    # process dies in between, the request comes again, and its successor knows what was counted.

    def doubt(self, thread: int, unique: int, inode: int, change: int) -> None:
        _DOUBT.pack_into(self._memory, _DOUBT_AT[thread], unique, inode, change & _RELEASED)

    def settle(self, thread: int) -> None:
        _DOUBT.pack_into(self._memory, _DOUBT_AT[thread], 0, 0, 0)

    def doubts(self) -> dict[int, tuple[int, int]]:
        """What a predecessor had counted without a sure answer to the kernel: unique -> (inode, change)."""
        found = {}
        for at in _DOUBT_AT:
            unique, inode, change = _DOUBT.unpack_from(self._memory, at)
            if unique:
                found[unique] = (inode, -1 if change == _RELEASED else change)
        return found

    # -- what INIT settled holds for the life of the mount, as the table does

    def agreement(self) -> bytes:
        return self._memory[_AGREEMENT_AT : _AGREEMENT_AT + _AGREEMENT_SIZE]

    def set_agreement(self, packed: bytes) -> None:
        self._memory[_AGREEMENT_AT : _AGREEMENT_AT + _AGREEMENT_SIZE] = packed

    def close(self) -> None:
        self._memory.close()

    def _at(self, slot: int) -> int:
        return _SLOTS_AT + slot * _SLOT.size

    def _write_header(self) -> None:
        _HEADER.pack_into(self._memory, 0, _MAGIC, self._used, self.last_backing_id)
