"""The disk of the cache: whether it can be used, what it is, what it has room for, how fast it is."""

from __future__ import annotations

import errno
import mmap
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpufs.cache.layout import walk_objects
from gpufs.control.paths import Mount
from gpufs.options import Options

from .finding import Finding, fail, ok, warn

LOCAL = frozenset({"ext4", "xfs", "btrfs", "ext3", "ext2", "f2fs", "zfs", "bcachefs"})
REMOTE = ("nfs", "cifs", "smb", "fuse", "ceph", "lustre", "gpfs", "9p", "virtiofs", "glusterfs")
SECONDS = 0.4  # of writing, and of reading
BLOCK = 4 << 20  # bytes: what a large object is kept in
MOST = 1 << 30  # bytes written
SLOW = 500e6  # bytes a second that less than a cheap NVMe disk reads


def existing(directory: Path) -> Path:
    """The directory itself, or the nearest above it that is there."""
    return next(path for path in (directory, *directory.parents) if path.exists())


def mount_at(path: Path, mounts: list[Mount]) -> Mount | None:
    """What holds `path`."""
    real = os.path.realpath(path)
    holding = [m for m in mounts if real == m.mountpoint or real.startswith(m.mountpoint.rstrip("/") + "/")]
    return max(holding, key=lambda m: len(m.mountpoint), default=None)


def usable(directory: Path, uid: int) -> Finding:
    """Whether the cache may be kept there; the rules are those of the mount."""
    here = existing(directory)
    remedy = "choose another cache_dir"
    if not here.is_dir():
        return fail("cache_dir", f"{here} is no directory", remedy)
    found = here.stat()
    if here == directory and found.st_uid != uid:
        return fail("cache_dir", f"{directory} belongs to uid {found.st_uid}", remedy)
    if here == directory and stat.S_IMODE(found.st_mode) & 0o022:
        return fail("cache_dir", f"{directory} is writable by others", f"chmod go-w {directory}")
    if not os.access(here, os.W_OK | os.X_OK):
        return fail("cache_dir", f"{here} is not writable", remedy)
    return ok("cache_dir", str(directory) + ("" if here == directory else f" (to be made in {here})"))


def kind(mount: Mount | None) -> Finding:
    """The type of file system."""
    if mount is None:
        return warn("cache disk", "not in the mount table", "choose a cache_dir on ext4 or XFS")
    text = f"{mount.fstype} of {mount.source} on {mount.mountpoint}"
    if mount.fstype in LOCAL:
        return ok("cache disk", text)
    remedy = "choose a cache_dir on a local ext4 or XFS, best on NVMe"
    if mount.fstype.startswith(REMOTE):
        return warn(
            "cache disk", f"{text}: a network or FUSE file system, hardly faster than the source", remedy
        )
    if mount.fstype in ("tmpfs", "ramfs"):
        return warn("cache disk", f"{text}: memory, and gone after a reboot", remedy)
    return warn("cache disk", f"{text}: not made for a cache", remedy)


def room(options: Options, total: int, free: int, cached: int = 0) -> Finding:
    """What the limits leave of a disk of `total` bytes with `free` ones, `cached` of them used by us."""
    limit, keep = options.cache_size.in_bytes(total), options.min_free.in_bytes(total)
    possible = min(limit, free + cached - keep)
    text = f"{_gib(free)} of {_gib(total)} free; cache_size and min_free leave {_gib(max(possible, 0))}"
    if possible < BLOCK:
        return fail(
            "cache room",
            f"{text}: nothing will be kept",
            "free some space, choose another cache_dir, or a smaller min_free",
        )
    if possible < limit // 2:
        return warn(
            "cache room",
            f"{text}, less than half of cache_size ({_gib(limit)})",
            f"free some space, or be content with cache_size={max(possible >> 30, 1)}GiB",
        )
    return ok("cache room", text)


def speed(directory: Path) -> Finding:
    """Bytes a second of large blocks, written and read past the page cache, for less than a second."""
    try:
        written, read, direct = _measure(existing(directory))
    except OSError as error:
        what = error.strerror or str(error)
        remedy = "free some space" if error.errno == errno.ENOSPC else "choose another cache_dir"
        return fail("cache speed", f"cannot write to the disk: {what}", remedy)
    how = "" if direct else " (through the page cache: this file system knows no O_DIRECT)"
    text = f"{written / 1e6:,.0f} MB/s written, {read / 1e6:,.0f} MB/s read{how}"
    if read < SLOW:
        return warn("cache speed", text, "put the cache on an NVMe disk: all GPUs of a host read from it")
    return ok("cache speed", text)


def _measure(directory: Path) -> tuple[float, float, bool]:
    """Bytes a second written and read, and whether the page cache was passed by."""
    with _scratch(directory) as (fd, direct), mmap.mmap(-1, BLOCK) as block:
        block.write(os.urandom(BLOCK))
        began, size = time.monotonic(), 0
        while size < MOST and time.monotonic() - began < SECONDS:
            size += os.pwrite(fd, block, size)
        os.fdatasync(fd)
        written = size / (time.monotonic() - began)
        began, done = time.monotonic(), 0
        while done < size and time.monotonic() - began < SECONDS:
            done += os.preadv(fd, [block], done)
        return written, done / (time.monotonic() - began), direct


@contextmanager
def _scratch(directory: Path) -> Iterator[tuple[int, bool]]:
    """A new file that has no name, and whether it is used past the page cache."""
    fd, path = tempfile.mkstemp(prefix=".gpufs-doctor-", dir=directory)
    try:
        direct = False
        with suppress(OSError):
            again = os.open(path, os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC)
            os.dup2(again, fd, inheritable=False)
            os.close(again)
            direct = True
        os.unlink(path)
        yield fd, direct
    finally:
        os.close(fd)
        with suppress(FileNotFoundError):
            os.unlink(path)


def cached_bytes(directory: Path) -> int:
    """What the cache has taken of the disk already: its whole objects, in blocks; 0 when we may not look."""
    total = 0
    with suppress(OSError):
        for _, path in walk_objects(directory / "objects"):
            with suppress(OSError):
                total += os.stat(path).st_blocks * 512
    return total


def _gib(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB"
