"""Every system call that would change something fails as on any read-only filesystem, and changes nothing."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.mounts import Mounted, MountFactory

pytestmark = [
    pytest.mark.fuse,
    pytest.mark.skipif(os.geteuid() != 0, reason="remounts, and compares with a mount of ext4"),
]

libc = ctypes.CDLL(None, use_errno=True)
AT_FDCWD, RENAME_NOREPLACE, RENAME_EXCHANGE = -100, 1, 2
FS_IOC_SETFLAGS = 0x40086602
Call = Callable[[Path], object]


def opening(flags: int, name: str) -> Call:
    def call(root: Path) -> None:
        os.close(os.open(root / name, flags, 0o644))

    return call


def renaming(old: str, new: str, flags: int) -> Call:
    def call(root: Path) -> None:
        names = [os.fsencode(root / each) for each in (old, new)]
        if libc.renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], flags) != 0:
            raise OSError(ctypes.get_errno(), "renameat2")

    return call


def on_descriptor(action: Callable[[int], object], name: str = "file") -> Call:
    def call(root: Path) -> None:
        fd = os.open(root / name, os.O_RDONLY)
        try:
            action(fd)
        finally:
            os.close(fd)

    return call


def set_flags(fd: int) -> None:
    import fcntl

    fcntl.ioctl(fd, FS_IOC_SETFLAGS, (0x10).to_bytes(8, "little"))


W, RW = os.O_WRONLY, os.O_RDWR
CALLS: dict[str, Call] = {
    "open file, write": opening(W, "file"),
    "open file, read and write": opening(RW, "file"),
    "open file, append": opening(W | os.O_APPEND, "file"),
    "open file, truncate": opening(W | os.O_TRUNC, "file"),
    "open file, read and truncate": opening(os.O_RDONLY | os.O_TRUNC, "file"),
    "open empty file, write": opening(W, "empty"),
    "open file in directory, write": opening(RW, "dir/below"),
    "open file, create or write": opening(W | os.O_CREAT, "file"),
    "open file, create exclusively": opening(W | os.O_CREAT | os.O_EXCL, "file"),
    "open new, create": opening(W | os.O_CREAT, "new"),
    "open new, create to read": opening(os.O_RDONLY | os.O_CREAT, "new"),
    "open new, create exclusively": opening(W | os.O_CREAT | os.O_EXCL, "dir/new"),
    "open new without create": opening(W, "new"),
    "open directory, write": opening(W, "dir"),
    "open directory, create": opening(W | os.O_CREAT, "dir"),
    "O_TMPFILE in root": opening(RW | os.O_TMPFILE, "."),
    "O_TMPFILE in directory": opening(RW | os.O_TMPFILE, "dir"),
    "mkdir new": lambda root: os.mkdir(root / "new"),
    "mkdir over directory": lambda root: os.mkdir(root / "dir"),
    "mkdir over file": lambda root: os.mkdir(root / "file"),
    "mknod file": lambda root: os.mknod(root / "new", stat.S_IFREG | 0o644),
    "mknod pipe": lambda root: os.mkfifo(root / "dir/new"),
    "mknod device": lambda root: os.mknod(root / "new", stat.S_IFCHR | 0o644, os.makedev(1, 3)),
    "unlink file": lambda root: os.unlink(root / "file"),
    "unlink below": lambda root: os.unlink(root / "dir/below"),
    "unlink missing": lambda root: os.unlink(root / "new"),
    "unlink directory": lambda root: os.unlink(root / "dir"),
    "rmdir directory": lambda root: os.rmdir(root / "dir"),
    "rmdir empty directory": lambda root: os.rmdir(root / "dir/empty"),
    "rmdir file": lambda root: os.rmdir(root / "file"),
    "rename file": lambda root: os.rename(root / "file", root / "new"),
    "rename file over file": lambda root: os.rename(root / "file", root / "empty"),
    "rename directory": lambda root: os.rename(root / "dir", root / "new"),
    "rename missing": lambda root: os.rename(root / "new", root / "newer"),
    "rename, no replace": renaming("file", "new", RENAME_NOREPLACE),
    "rename, exchange": renaming("file", "empty", RENAME_EXCHANGE),
    "link file": lambda root: os.link(root / "file", root / "new"),
    "link over file": lambda root: os.link(root / "file", root / "empty"),
    "symlink new": lambda root: os.symlink("file", root / "new"),
    "symlink over file": lambda root: os.symlink("dir", root / "file"),
    "chmod file": lambda root: os.chmod(root / "file", 0o600),
    "chmod directory": lambda root: os.chmod(root / "dir", 0o700),
    "chmod missing": lambda root: os.chmod(root / "new", 0o600),
    "fchmod file": on_descriptor(lambda fd: os.fchmod(fd, 0o600)),
    "chown file": lambda root: os.chown(root / "file", 1, 1),
    "chown directory": lambda root: os.chown(root / "dir", 1, -1),
    "fchown directory": on_descriptor(lambda fd: os.fchown(fd, 1, 1), "dir"),
    "utimes file": lambda root: os.utime(root / "file", (1, 1)),
    "utimes directory, now": lambda root: os.utime(root / "dir"),
    "futimens file": on_descriptor(lambda fd: os.utime(fd, ns=(1, 1))),
    "truncate file": lambda root: os.truncate(root / "file", 1),
    "truncate empty file, longer": lambda root: os.truncate(root / "empty", 100),
    "truncate directory": lambda root: os.truncate(root / "dir", 0),
    "ftruncate": on_descriptor(lambda fd: os.ftruncate(fd, 1)),
    "setxattr file": lambda root: os.setxattr(root / "file", "user.mine", b"1"),
    "setxattr file, ours": lambda root: os.setxattr(root / "file", "user.gpufs.version", b"1"),
    "setxattr directory": lambda root: os.setxattr(root / "dir", "user.mine", b"1"),
    "removexattr file": lambda root: os.removexattr(root / "file", "user.mine"),
    "fallocate": on_descriptor(lambda fd: os.posix_fallocate(fd, 0, 100)),
    "write to a descriptor": on_descriptor(lambda fd: os.write(fd, b"x")),
    "pwrite to a descriptor": on_descriptor(lambda fd: os.pwrite(fd, b"x", 0)),
    "mmap, shared and writable": on_descriptor(
        lambda fd: mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    ),
    "copy_file_range onto itself": on_descriptor(lambda fd: os.copy_file_range(fd, fd, 1, 0, 10)),
    "access for writing": lambda root: None if os.access(root / "file", os.W_OK) else _raise(errno.EROFS),
    "ioctl set flags": on_descriptor(set_flags),
}


def _raise(number: int) -> None:
    raise OSError(number, "")


def outcomes(root: Path) -> dict[str, str]:
    """What each call does: the name of its errno, or "done"."""
    found = {}
    for name, call in CALLS.items():
        try:
            call(root)
            found[name] = "done"
        except OSError as error:
            found[name] = errno.errorcode[error.errno or 0]
    return found


def contents(root: Path) -> list[tuple[str, os.stat_result, bytes]]:
    return [
        (str(path.relative_to(root)), path.stat(), path.read_bytes() if path.is_file() else b"")
        for path in sorted(root.rglob("*"))
    ]


def fill(root: Path) -> None:
    (root / "dir/empty").mkdir(parents=True)
    (root / "file").write_bytes(b"contents of the file" * 100)
    (root / "empty").touch()
    (root / "dir/below").write_bytes(b"below")


@pytest.fixture
def ext4(tmp_path: Path) -> Iterator[Path]:
    """The same tree on ext4, mounted read-only."""
    image, root = tmp_path / "image", tmp_path / "ext4"
    root.mkdir()
    image.write_bytes(b"")
    os.truncate(image, 8 << 20)
    (tmp_path / "tree").mkdir()
    fill(tmp_path / "tree")
    subprocess.run(["mkfs.ext4", "-q", "-d", tmp_path / "tree", image], check=True)
    subprocess.run(["mount", "-o", "loop,ro", image, root], check=True)
    yield root
    subprocess.run(["umount", root], check=True)


@pytest.fixture
def mounted(tmp_path: Path, mount: MountFactory) -> Mounted:
    (tmp_path / "data").mkdir()
    fill(tmp_path / "data")
    return mount(f"file://{tmp_path}/data")


def test_as_on_a_read_only_ext4(mounted: Mounted, ext4: Path) -> None:
    """Every changing call fails with the errno of a read-only ext4, and what is there stays as it is."""
    before = contents(mounted.path)
    found = outcomes(mounted.path)
    assert found == outcomes(ext4)
    assert "done" not in found.values()
    assert contents(mounted.path) == before


# After a remount,rw the kernel asks the daemon, but finds some faults itself first.
AFTER_REMOUNT = {
    "unlink missing": "ENOENT",
    "unlink directory": "EISDIR",
    "rmdir file": "ENOTDIR",
    "rename missing": "ENOENT",
    "O_TMPFILE in root": "ENOTSUP",
    "O_TMPFILE in directory": "ENOTSUP",
    "access for writing": "done",  # only the mode is looked at, and the caller is root
    "ioctl set flags": "ENOTTY",
}


def test_after_remounting_for_writing(mounted: Mounted) -> None:
    """`mount -o remount,rw` makes nothing writable: where the kernel asks the daemon, it says EROFS."""
    before = contents(mounted.path)
    read_only = outcomes(mounted.path)
    subprocess.run(["mount", "-i", "-o", "remount,rw", mounted.path], check=True)
    assert os.statvfs(mounted.path).f_flag & os.ST_RDONLY == 0, "the remount took place"
    assert outcomes(mounted.path) == read_only | AFTER_REMOUNT
    assert contents(mounted.path) == before
