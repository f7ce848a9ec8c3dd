"""Case 20: mounting again after the daemon was killed, and over what is not ours."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mounts import Mounted, MountFactory, alive, detach, is_mounted, wait_until
from tests.servers import S3Endpoint

pytestmark = [
    pytest.mark.fuse,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts a tmpfs"),
]

Bucket = Callable[[S3Endpoint], str]


def kill_and_leave(mounted: Mounted) -> None:
    """kill -9 of everything behind the mount; the dead mount point stays."""
    for pid in reversed(mounted.pids()):
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda pid=pid: not alive(pid), "the killed daemon to go")
    wait_until(lambda: is_dead(mounted.path), "the mount to be dead")


def is_dead(path: Path) -> bool:
    """Transport endpoint is not connected; a request on its way while the daemon dies is told otherwise."""
    try:
        os.listdir(path)
    except OSError as error:
        assert error.errno in (errno.ENOTCONN, errno.ECONNABORTED)
        return error.errno == errno.ENOTCONN
    return False


def test_mounting_over_a_dead_mount_of_ours(weed: S3Endpoint, bucket: Bucket, mount: MountFactory) -> None:
    """Case 20: the dead mount is removed, the new one works at once and has the old one's cache and index.

    Also while somebody still stands in the dead one.
    """
    name = bucket(weed)
    weed.put(name, {"a/b": b"bytes", "c": b"not read before"})
    mounted = mount(f"s3://{name}", weed).crawled()
    assert (mounted.path / "a/b").read_bytes() == b"bytes"
    inside = os.open(mounted.path / "a", os.O_RDONLY | os.O_DIRECTORY)
    try:
        kill_and_leave(mounted)
        assert "no gpufs daemon answers" in mounted.command("status", str(mounted.path)).stderr
        done = mounted.command("metrics", str(mounted.path))
        assert done.returncode == 1 and done.stdout.endswith(" 0\n")
        assert done.stderr.startswith("gpufs: no gpufs daemon answers") and done.stderr.count("\n") == 1
        done = mounted.command("mount", mounted.source, str(mounted.path), "-o", mounted.option_text())
        assert done.returncode == 0
        assert "removed the dead mount" in done.stderr and len(done.stderr.splitlines()) == 1
        before = mounted.count("remote_requests")
        assert (mounted.path / "a/b").read_bytes() == b"bytes"
        assert mounted.count("remote_requests") == before, "it was in the cache"
        assert (mounted.path / "c").read_bytes() == b"not read before"
        with pytest.raises(OSError):
            os.listdir(inside)
    finally:
        os.close(inside)
    mounted.umount()
    assert not is_mounted(mounted.path), "nothing of the dead mount is left below"


def test_umount_of_a_dead_mount(weed: S3Endpoint, bucket: Bucket, mount: MountFactory) -> None:
    """Case 20: `gpufs umount` clears a dead mount too; then the mount point is an empty directory again."""
    name = bucket(weed)
    weed.put(name, {"a": b"1"})
    mounted = mount(f"s3://{name}", weed)
    kill_and_leave(mounted)
    mounted.umount()
    assert os.listdir(mounted.path) == []


def test_other_mounts_are_left_alone(weed: S3Endpoint, bucket: Bucket, mount: MountFactory) -> None:
    """Case 20: over any other mount, or a living one of ours, the command refuses and changes nothing."""
    name = bucket(weed)
    weed.put(name, {"a": b"1"})
    mounted = mount(f"s3://{name}", weed)

    def refused() -> str:
        done = mounted.command("mount", mounted.source, str(mounted.path), "-o", mounted.option_text())
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1)
        return done.stderr

    assert f"unmount it first: gpufs umount {mounted.path}" in refused()
    assert (mounted.path / "a").read_bytes() == b"1"
    mounted.umount()
    subprocess.run(["mount", "-t", "tmpfs", "mine", mounted.path], check=True)
    (mounted.path / "precious").write_text("mine")
    assert "is a mount point already (tmpfs of mine)" in refused()
    assert (mounted.path / "precious").read_text() == "mine"


def test_a_dead_mount_of_another_filesystem_is_left_alone(mount: MountFactory, tmp_path: Path) -> None:
    """Case 20: also one whose daemon is gone; it may be wanted back."""
    mounted = mount(str(tmp_path), start=False)
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0"
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mount(b"theirs", os.fsencode(mounted.path), b"fuse.other", 0, options.encode()) == 0
    os.close(device)
    assert is_dead(mounted.path)
    done = mounted.command("mount", mounted.source, str(mounted.path), "-o", mounted.option_text())
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1)
    assert "is a mount point already (fuse.other of theirs)" in done.stderr
    assert is_dead(mounted.path), "it is still there"


def test_a_mount_point_that_is_none(weed: S3Endpoint, mount: MountFactory, tmp_path: Path) -> None:
    """A missing directory, or a file, is refused before any daemon is started, with what to do."""
    mounted = mount("s3://whatever", weed, start=False)
    (tmp_path / "file").write_text("x")
    for where, says in ((tmp_path / "missing", "mkdir -p"), (tmp_path / "file", "is not a directory")):
        done = mounted.command("mount", "s3://whatever", str(where), "-o", mounted.option_text())
        assert done.returncode == 1
        assert says in done.stderr


def test_a_bind_mount_is_not_called_dead(tmp_path: Path, mount: MountFactory) -> None:
    """The commands name the mount point that the daemon knows; without that, what else it may be."""
    mounted = mount(str(tmp_path))
    other = mounted.path.parent / "other"
    other.mkdir()
    subprocess.run(["mount", "--bind", mounted.path, other], check=True)
    try:
        for command in ("status", "refresh"):
            said = mounted.command(command, str(other)).stderr
            assert f"shows the tree that is mounted on {mounted.path} too" in said
        subprocess.run(["umount", "-l", mounted.path], check=True)
        mounted.path.rmdir()
        assert "bind mount of a tree that was unmounted" in mounted.command("status", str(other)).stderr
    finally:
        detach(other)
