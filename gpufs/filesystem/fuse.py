"""The FUSE adapter: pyfuse3's requests to names, files and attributes; errors to errno, in one border.

This is the only module that knows pyfuse3.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
import select
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import pyfuse3
import trio
from pyfuse3 import EntryAttributes, FileInfo, FUSEError, ReaddirToken, RequestContext, StatvfsData

from gpufs.errors import (
    GpufsError,
    MountFailed,
    NoAttribute,
    NotADirectory,
    NotFound,
    NotSupported,
    ReadOnly,
    errno_of,
)
from gpufs.filesystem.files import Files
from gpufs.filesystem.notifier import Notifier
from gpufs.filesystem.tree import Tree
from gpufs.filesystem.xattrs import Attributes
from gpufs.handoff.handles import INODE, OURS, handed
from gpufs.index import Change, Index, Inode
from gpufs.metrics import Metrics
from gpufs.source.base import Kind
from gpufs.view import FOREVER, NAME_MAX, PREFERRED_READ, View, attributes_hold

BLOCK = 4096  # bytes; what statfs counts in and what st_blksize advises at least
EAGER_REQUESTS = 16  # requests taken in a row before other tasks get their turn
TOLD_PATIENCE = 5.0  # seconds a refresh waits for the kernel to forget
BATCH = 256  # directory entries taken from the index at a time
FIRST_COOKIE = 2  # readdir offsets: 1 is behind ".", 2 behind "..", inode + 2 behind that inode

# Answers rather than failures: not logged.
_EVERYDAY = (NotFound, NoAttribute, NotSupported, ReadOnly, NotADirectory)

log = logging.getLogger("gpufs.fuse")

P = ParamSpec("P")
R = TypeVar("R")


def _border(
    handler: Callable[Concatenate[Operations, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Operations, P], Coroutine[Any, Any, R]]:
    """Let only FUSEError out of a handler: anything else would end the whole pyfuse3 loop."""

    @functools.wraps(handler)
    async def guarded(self: Operations, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return await handler(self, *args, **kwargs)
        except FUSEError:
            raise
        except GpufsError as error:
            if not isinstance(error, _EVERYDAY):
                log.warning("%s: %s", handler.__name__, error)
            raise FUSEError(errno_of(error)) from None
        except Exception as error:
            log.exception("%s failed", handler.__name__)
            raise FUSEError(errno_of(error)) from None

    return guarded


class Operations(pyfuse3.Operations):
    """One mounted tree. Names and the attributes of directories have a lifetime; those of a file never
    change, so the kernel may keep them for ever."""

    supports_dot_lookup = False
    enable_writeback_cache = False

    def __init__(
        self, tree: Tree, files: Files, xattrs: Attributes, index: Index, view: View, metrics: Metrics
    ) -> None:
        super().__init__()
        self._lookups = metrics.lookups
        self._tree = tree
        self._files = files
        self._xattrs = xattrs
        self._index = index
        self._view = view
        self._listers: dict[int, int] = {}  # of an open directory, the thread that has opened it last
        self._early: list[Change] | None = []  # found before the kernel's INIT; None after it
        self._notifier = Notifier(_invalidate)
        self.attached = False  # whether the fast path stands between the kernel and us; then also:
        self.hands_over = False  # whether it takes descriptors of whole objects
        self.passed_on = 0  # how many of our notifications it has given to the kernel

    def init(self) -> None:
        """The kernel's INIT has come: from now on it can be told something."""
        early, self._early = self._early, None
        for change in early or ():
            self._notifier.tell(change)

    def tell(self, change: Change) -> None:
        """Have the kernel forget what is no longer right; in the trio thread, at any time."""
        if self._early is not None:
            self._early.append(change)
        else:
            self._notifier.tell(change)

    async def told(self) -> None:
        """Wait until the kernel has forgotten all it was told to (bounded, should it be unable to)."""
        with trio.move_on_after(TOLD_PATIENCE):
            await self._notifier.flush()
            while self.attached and self.passed_on < self._notifier.sent:
                await trio.sleep(0.005)

    # -- names

    @_border
    async def lookup(self, parent_inode: int, name: bytes, ctx: RequestContext) -> EntryAttributes:
        self._lookups.add()
        inode, holds = await self._tree.lookup(parent_inode, name, ctx.pid)
        if inode is None:
            if len(name) > NAME_MAX:
                raise FUSEError(errno.ENAMETOOLONG)
            missing = EntryAttributes()
            missing.st_ino = cast(Any, 0)  # the kernel remembers the answer "no such name"
            missing.entry_timeout = holds
            return missing
        return self._attributes(inode, holds)

    @_border
    async def getattr(self, inode: int, ctx: RequestContext) -> EntryAttributes:
        self._lookups.add()
        found = self._tree.inode(inode)
        directory = found.kind is Kind.DIRECTORY
        return self._attributes(found, self._tree.fresh_for(found.parent) if directory else FOREVER)

    @_border
    async def readlink(self, inode: int, ctx: RequestContext) -> bytes:
        return self._tree.inode(inode).target

    @_border
    async def opendir(self, inode: int, ctx: RequestContext) -> int:
        if self._tree.inode(inode).kind is not Kind.DIRECTORY:
            raise NotADirectory(f"inode {inode} is not a directory")
        self._listers[inode] = ctx.pid
        return inode

    @_border
    async def readdir(self, fh: int, start_id: int, token: ReaddirToken) -> None:
        self._lookups.add()
        tid = self._listers.get(fh, 0)
        after: bytes | None = None
        if start_id < FIRST_COOKIE:
            here = self._tree.inode(fh)
            above = self._tree.inode(here.parent) if here.parent else here
            for cookie, name, inode in ((1, b".", here), (2, b"..", above)):
                if cookie > start_id and not self._reply(token, name, inode, FOREVER, cookie):
                    return
        else:
            after = self._tree.inode(start_id - FIRST_COOKIE).name if start_id > FIRST_COOKIE else None
        while True:
            children, holds = await self._tree.children(fh, after, BATCH, tid)
            for child in children:
                if not self._reply(token, child.name, child, holds, child.number + FIRST_COOKIE):
                    return
            if len(children) < BATCH:
                return
            after = children[-1].name

    @_border
    async def releasedir(self, fh: int) -> None:
        self._listers.pop(fh, None)

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        pass  # inodes live in the index, not in this process

    # -- contents

    @_border
    async def open(self, inode: int, flags: int, ctx: RequestContext) -> FileInfo:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_TRUNC | os.O_APPEND):
            raise ReadOnly("the tree is read-only")
        fd = await self._files.open(inode, ctx.pid)
        handle = handed(inode, fd) if fd is not None and self.hands_over else inode
        return FileInfo(fh=cast(Any, handle), keep_cache=True)

    @_border
    async def read(self, fh: int, off: int, size: int) -> bytes:
        # pyfuse3 takes any buffer, and sends it before it lets another task run.
        return cast(bytes, await self._files.read(fh & INODE, off, size, adopt=not fh & OURS))

    @_border
    async def release(self, fh: int) -> None:
        self._files.release(fh & INODE)

    # -- attributes

    @_border
    async def getxattr(self, inode: int, name: bytes, ctx: RequestContext) -> bytes:
        return self._xattrs.get(inode, name)

    @_border
    async def listxattr(self, inode: int, ctx: RequestContext) -> Sequence[Any]:
        return self._xattrs.names(inode)

    @_border
    async def statfs(self, ctx: RequestContext) -> StatvfsData:
        totals = self._index.totals()
        result = StatvfsData()
        result.f_bsize = result.f_frsize = BLOCK
        result.f_blocks = -(-totals.bytes // BLOCK)
        result.f_files = totals.files + totals.directories
        result.f_bfree = result.f_bavail = result.f_ffree = result.f_favail = 0
        result.f_namemax = NAME_MAX
        return result

    # -- helpers

    def _reply(self, token: ReaddirToken, name: bytes, inode: Inode, holds: float, cookie: int) -> bool:
        return pyfuse3.readdir_reply(token, cast(Any, name), self._attributes(inode, holds), cookie)

    def _attributes(self, inode: Inode, holds: float) -> EntryAttributes:
        shown = self._view.show(inode)
        entry = EntryAttributes()
        entry.st_ino = cast(Any, inode.number)
        entry.st_mode = cast(Any, shown.mode)
        entry.st_nlink = 1
        entry.st_uid = shown.uid
        entry.st_gid = shown.gid
        entry.st_size = shown.size
        entry.st_blksize = PREFERRED_READ
        entry.st_blocks = shown.blocks
        entry.st_atime_ns = entry.st_mtime_ns = entry.st_ctime_ns = inode.mtime_ns
        entry.entry_timeout = holds
        entry.attr_timeout = attributes_hold(inode, holds)
        return entry


async def _refuse(self: Operations, *args: object) -> Any:
    raise FUSEError(errno_of(ReadOnly()))


# The mount is read-only, so the kernel refuses changes by itself; this holds after a remount,rw too.
for _name in "setattr mknod mkdir unlink rmdir symlink rename link create write setxattr removexattr".split():
    setattr(Operations, _name, _refuse)


def mount(operations: Operations, mountpoint: str, source: str, allow_other: bool) -> None:
    """Mount the tree. Raises OSError or RuntimeError with libfuse's reason."""
    options = {f"fsname={source}", "subtype=gpufs", "ro", "default_permissions"}
    if allow_other:
        options.add("allow_other")
    pyfuse3.init(operations, mountpoint, options)
    _read_eagerly(_mounted_fd())


def attach(operations: Operations, fd: int) -> None:
    """Serve the requests that come from the fast path through `fd`; it and the mount are not ours."""
    operations.attached = True
    # An answer that finds no fast path any more is no failure: the kernel asks its successor again.
    logging.getLogger("pyfuse3").addFilter(lambda record: "Broken pipe" not in record.getMessage())
    pyfuse3.init(operations, f"/dev/fd/{fd}", set())
    _read_eagerly(fd)


def _read_eagerly(fd: int) -> None:
    """Have pyfuse3 take the next request without a turn through trio when one is waiting already.

    pyfuse3 goes through a lock, an epoll registration and two turns of the scheduler per request,
    which cost more than the request (measured: 10,500 against 18,000-31,000 opens/s with 8 readers).
    Its loop looks `_wait_fuse_readable` up in its module each time, so it can be given a better one.
    Every EAGER_REQUESTS-th request goes the long way, for the other tasks' sake. Whoever comes back
    from the long way looks again: another task may have taken what it was woken for, and the
    following read would block the whole process. When the fast path has ended, nobody wants an answer,
    and libfuse would complain about a device that gives nothing.
    """
    wait_long = getattr(pyfuse3, "_wait_fuse_readable", None)
    if wait_long is None:
        log.warning("this pyfuse3 reads requests in another way: small files are opened more slowly")
        return
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    waiting = poll.poll
    eager = EAGER_REQUESTS

    async def wait_readable() -> bool:
        nonlocal eager
        if eager and (found := waiting(0)):
            eager -= 1
            return not found[0][1] & select.POLLHUP
        eager = EAGER_REQUESTS
        while await wait_long():
            if found := waiting(0):
                return not found[0][1] & select.POLLHUP
        return False

    pyfuse3._wait_fuse_readable = wait_readable  # type: ignore[attr-defined]


def _mounted_fd() -> int:
    """The descriptor of /dev/fuse that libfuse has opened."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the descriptor of this listing
            if os.readlink(f"/proc/self/fd/{name}") == "/dev/fuse":
                return int(name)
    raise MountFailed("libfuse has opened no /dev/fuse")


async def serve(max_requests: int, *, attached: bool) -> None:
    """Answer requests until the tree is unmounted, by anybody; when `attached`, until the fast path ends."""
    try:
        await pyfuse3.main(min_tasks=2, max_tasks=max_requests)
    except BaseExceptionGroup as group:
        # To libfuse the end of a socket is a failure of the device, and not the end of a session.
        if not attached or group.split(OSError)[1] is not None:
            raise


def stop() -> None:
    """Make serve() return."""
    pyfuse3.terminate()


def close() -> None:
    """End the session; unmounts what mount() mounted, if nobody has yet."""
    pyfuse3.close(unmount=True)


def _invalidate(change: Change) -> None:
    """Tell the kernel to forget a name, or a directory's attributes; blocks. Raises OSError.

    Attributes alone, of which whoever is in the directory keeps the directory.
    """
    if change.name:
        pyfuse3.invalidate_entry(cast(Any, change.parent), cast(Any, change.name))
    else:
        pyfuse3.invalidate_inode(cast(Any, change.parent), attr_only=True)
