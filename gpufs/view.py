"""How an inode is shown to programs: its type, permissions, owners, sizes; and for how long that holds."""

from __future__ import annotations

import math
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from gpufs.index import Inode, Listed
from gpufs.source.base import Kind

FOREVER = 10 * 365 * 86400.0  # seconds; what the kernel is told when an answer never expires
PREFERRED_READ = 1 << 20  # bytes; st_blksize, so that cp and friends read in large pieces
NAME_MAX = 255  # bytes

_FORMAT = {Kind.FILE: stat.S_IFREG, Kind.DIRECTORY: stat.S_IFDIR, Kind.SYMLINK: stat.S_IFLNK}


@dataclass(frozen=True, slots=True)
class Ownership:
    """Owners and permission bits shown: those given here win, then the source's, then the defaults."""

    uid: int | None
    gid: int | None
    file_mode: int | None
    dir_mode: int | None


class Shown(NamedTuple):
    """`mode` has the type bits; `size` is in bytes, `blocks` in units of 512 bytes."""

    mode: int
    uid: int
    gid: int
    size: int
    blocks: int


class View:
    """One mount's way to show inodes."""

    def __init__(self, ownership: Ownership) -> None:
        self._own = ownership
        self._default_uid = os.getuid()
        self._default_gid = os.getgid()

    def show(self, inode: Inode) -> Shown:
        own = self._own
        directory = inode.kind is Kind.DIRECTORY
        mode = own.dir_mode if directory else own.file_mode
        if mode is None or inode.kind is Kind.SYMLINK:
            mode = inode.mode if inode.mode is not None else 0o555 if directory else 0o444
        uid = own.uid if own.uid is not None else inode.uid
        gid = own.gid if own.gid is not None else inode.gid
        size = len(inode.target) if inode.kind is Kind.SYMLINK else inode.size
        return Shown(
            _FORMAT[inode.kind] | mode,
            uid if uid is not None else self._default_uid,
            gid if gid is not None else self._default_gid,
            size,
            -(-size // 512),
        )


def attributes_hold(inode: Inode, listing_holds: float) -> float:
    """Seconds for which the kernel may keep the attributes of `inode`.

    `listing_holds` is fresh_for() of the directory it is in (`inode.parent`; the root is its own). A
    file or a link is one version, whose attributes never change. A directory's may, where the source has
    such: they are as good as the listing that told them, and no request is answered for less than a second.
    """
    return max(listing_holds, 1.0) if inode.kind is Kind.DIRECTORY else FOREVER


def fresh_for(listed: Listed | None, ttl: float, now_ns: Callable[[], int] = time.time_ns) -> float:
    """Seconds for which a directory's listing still holds; 0 or less when it must be renewed."""
    if listed is None or not listed.complete or not listed.at_ns:
        return 0.0
    if ttl == math.inf:
        return FOREVER
    return ttl - (now_ns() - listed.at_ns) / 1e9
