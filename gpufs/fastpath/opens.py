"""The open-mode table: how each open inode is open, kept in memory that outlives this process.

Kernel rule: an inode cannot be open in cached mode and in passthrough mode at once, nor with two
backing ids (the loser gets EIO). So every open is counted here before the kernel is answered, and a
process that takes over finds what its predecessor had told the kernel.

A process may be killed between any two stores. Each changes one word, and their order is such that the
words are right after each of them; hence words and no packed structures.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading

CACHED, PASSTHROUGH = 1, 2

# In words of 8 bytes. A slot: inode (0: free), mode and backing id, opens.
_USED_AT = 0  # slots ever used
_HIGHEST_AT, _LEAVING_AT = 2, 3  # backing ids: the highest ever seen, the last taken out
_DOUBT_AT = (8, 12)  # one for each thread that answers the kernel: unique, inode, opens before, opens after
_AGREEMENT_AT, _AGREEMENT_SIZE = 128, 12  # in bytes
_SLOTS_AT, _SLOT_WORDS = 512, 3
SLOTS = 1 << 20
TABLE_SIZE = 8 * (_SLOTS_AT + SLOTS * _SLOT_WORDS)  # bytes of address space; only what is used takes memory


class OpenInode:
    """One inode that is open, or is about to be (`opens` is 0 then)."""

    __slots__ = ("backing_id", "mode", "opens", "slot")

    def __init__(self, slot: int, mode: int, backing_id: int, opens: int) -> None:
        self.slot = slot
        self.mode = mode
        self.backing_id = backing_id
        self.opens = opens


class OpenTable:
    """All open inodes of one mount. Used by two threads: hold `lock` around what belongs together.

    `fd` is a memfd, owned by the supervisor; zeroed when new, its size says how many fit in.
    """

    def __init__(self, fd: int) -> None:
        self.lock = threading.Lock()
        size = os.fstat(fd).st_size
        self._memory = mmap.mmap(fd, size)
        self._words = memoryview(self._memory).cast("Q")
        self._slots = (size // 8 - _SLOTS_AT) // _SLOT_WORDS
        self._inodes: dict[int, OpenInode] = {}
        self._free: list[int] = []
        for slot in range(self._words[_USED_AT]):
            at = _SLOTS_AT + slot * _SLOT_WORDS
            inode, how, opens = self._words[at : at + _SLOT_WORDS]
            if inode:
                self._inodes[inode] = OpenInode(slot, how & 0xFF, how >> 8, opens)
            else:
                self._free.append(slot)

    def get(self, inode: int) -> OpenInode | None:
        return self._inodes.get(inode)

    def __len__(self) -> int:
        return len(self._inodes)

    def enter(self, inode: int, mode: int, backing_id: int) -> OpenInode:
        """Enter an inode that is not here, not open yet. Raises OSError(ENFILE) when there is no room."""
        words = self._words
        if self._free:
            slot = self._free.pop()
        else:
            slot = words[_USED_AT]
            if slot == self._slots:
                raise OSError(errno.ENFILE, "the table of open files is full")
            words[_USED_AT] = slot + 1
        at = _SLOTS_AT + slot * _SLOT_WORDS
        words[at + 1] = mode | backing_id << 8
        words[at + 2] = 0
        words[at] = inode
        entry = self._inodes[inode] = OpenInode(slot, mode, backing_id, 0)
        return entry

    def count(self, entry: OpenInode, opens: int) -> None:
        """Set the opens of an inode."""
        entry.opens = opens
        self._words[_SLOTS_AT + entry.slot * _SLOT_WORDS + 2] = opens

    def forget(self, inode: int) -> None:
        """Take an inode out."""
        entry = self._inodes.pop(inode)
        self._words[_LEAVING_AT] = entry.backing_id
        self._words[_SLOTS_AT + entry.slot * _SLOT_WORDS] = 0
        self._free.append(entry.slot)

    # -- doubt: a change is noted before the kernel is answered, and the note removed after. When a
    # process dies in between, the request comes again, and its successor knows what was counted.

    def doubt(self, thread: int, unique: int, inode: int, before: int, after: int) -> None:
        """Note that request `unique` is going to change the opens of `inode`."""
        words, at = self._words, _DOUBT_AT[thread]
        words[at] = 0  # a predecessor may have left a doubt
        words[at + 1] = inode
        words[at + 2] = before
        words[at + 3] = after
        words[at] = unique

    def settle(self, thread: int) -> None:
        self._words[_DOUBT_AT[thread]] = 0

    def doubts(self) -> dict[int, tuple[int, int, int]]:
        """What a predecessor had counted without a sure answer to the kernel.

        unique -> (thread, inode, change); what was noted and not yet counted is left out.
        """
        found = {}
        for thread, at in enumerate(_DOUBT_AT):
            unique, inode, before, after = self._words[at : at + 4]
            entry = self._inodes.get(inode)
            if unique and before != (entry.opens if entry is not None else 0):
                found[unique] = (thread, inode, after - before)
        return found

    def strays(self) -> set[int]:
        """Backing ids that a killed predecessor may have left with the kernel: opened and not entered yet, or
        taken out and not closed yet. The kernel gives out ids in their order."""
        highest, leaving = self._words[_HIGHEST_AT], self._words[_LEAVING_AT]
        known = {entry.backing_id for entry in self._inodes.values()}
        return {leaving, highest, highest + 1, highest + 2} - known - {0}

    def saw(self, backing_id: int) -> None:
        """The kernel has given out this id."""
        if backing_id > self._words[_HIGHEST_AT]:
            self._words[_HIGHEST_AT] = backing_id

    # -- what INIT settled holds for the life of the mount, as the table does

    def agreement(self) -> bytes:
        return self._memory[_AGREEMENT_AT : _AGREEMENT_AT + _AGREEMENT_SIZE]

    def set_agreement(self, packed: bytes) -> None:
        self._memory[_AGREEMENT_AT : _AGREEMENT_AT + _AGREEMENT_SIZE] = packed

    def close(self) -> None:
        self._words.release()
        self._memory.close()
