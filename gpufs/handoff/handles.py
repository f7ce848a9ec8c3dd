"""What the 64 bits of a file handle say, between the fast path, the filesystem process and the kernel.

A handle is the inode number, so it means the same to any process that takes over. The fast path adds
OURS to the handles it gave out itself; the filesystem process adds HANDED and one of its descriptors
to tell the fast path where the bytes are (such a handle never reaches the kernel).
"""

from __future__ import annotations

INODE = (1 << 40) - 1  # an inode number; gpufs.index gives no larger ones
OURS = 1 << 62
HANDED = 1 << 61
FD_SHIFT, FD_MASK = 40, (1 << 21) - 1


def handed(inode: int, fd: int) -> int:
    """The handle that hands descriptor `fd` over; the plain one when it has no room for it."""
    return HANDED | fd << FD_SHIFT | inode if fd <= FD_MASK else inode


def handed_fd(handle: int) -> int | None:
    """The filesystem process's descriptor in a handle, if there is one."""
    return handle >> FD_SHIFT & FD_MASK if handle & HANDED else None
