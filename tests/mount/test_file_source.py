"""A directory of this host as the source, end to end."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.mounts import MountFactory, alive, is_mounted, wait_until

pytestmark = pytest.mark.fuse

CHUNK = 4 << 20


def look(root: Path) -> dict[str, tuple[object, ...]]:
    """All that `ls -l` and a read tell of every name below `root`."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(root.rglob("*")):
        seen = path.lstat()
        what: object = None
        if path.is_symlink():
            what = os.readlink(path)
        elif path.is_file():
            what = path.read_bytes()
        size = seen.st_size if not stat.S_ISDIR(seen.st_mode) else None
        found[str(path.relative_to(root))] = (
            oct(seen.st_mode),
            seen.st_uid,
            seen.st_gid,
            size,
            seen.st_mtime_ns,
            what,
        )
    return found


@pytest.mark.parametrize("form", ["{}", "file://{}", "file://localhost{}"])
def test_the_tree_is_the_directory(form: str, tmp_path: Path, mount: MountFactory) -> None:
    """Names, modes, owners, times, links and bytes are those of the directory; specials are left out."""
    data = tmp_path / "data set, 100%"
    (data / "sub/deeper").mkdir(parents=True)
    (data / "sub").chmod(0o751)
    (data / "plain").write_bytes(b"plain")
    (data / "tool").write_bytes(b"#!/bin/sh\necho it runs\n")
    (data / "tool").chmod(0o755)
    (data / "secret").write_bytes(b"x")
    (data / "secret").chmod(0o4600)
    (data / "sub/large").write_bytes(os.urandom(2 * CHUNK + 5))
    (data / "sub/empty").touch()
    os.utime(data / "sub/empty", ns=(0, 1_234_567_890_123_456_789))
    if os.geteuid() == 0:
        os.chown(data / "plain", 12345, 54321)
    for name, target in (
        ("to-plain", "plain"),
        ("up", "../elsewhere"),
        ("abs", "/etc"),
        ("sub/loop", "loop"),
    ):
        (data / name).symlink_to(target)
    mounted = mount(form.format(data))
    assert look(mounted.path) == look(data)
    assert (mounted.path / "to-plain").read_bytes() == b"plain"
    assert subprocess.run([mounted.path / "tool"], capture_output=True, check=True).stdout == b"it runs\n"
    with pytest.raises(OSError, match="Too many levels"):
        (mounted.path / "sub/loop").open("rb")
    assert os.getxattr(mounted.path / "sub/large", "user.gpufs.key") == bytes(data / "sub/large")
    assert os.getxattr(mounted.path, "user.gpufs.key") == bytes(data)
    assert mounted.status()["hidden_keys"] == 0

    os.mkfifo(data / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(data / "sub/sock"))
        mounted.refresh()
    assert look(mounted.path) == {k: v for k, v in look(data).items() if k not in ("pipe", "sub/sock")}
    assert {hidden["key"] for hidden in mounted.status()["hidden"]} == {"pipe", "sub/sock"}


def shown(path: Path) -> tuple[object, ...]:
    found = path.stat()
    return oct(found.st_mode), found.st_uid, found.st_gid, found.st_mtime_ns


def test_the_attributes_of_directories_are_the_sources_the_roots_too(
    tmp_path: Path, mount: MountFactory
) -> None:
    """A directory that becomes private is so after a refresh, also for the one who is in it."""
    data = tmp_path / "data"
    (data / "d/e").mkdir(parents=True)
    (data / "d/e/f").write_bytes(b"x")
    data.chmod(0o700)
    if os.geteuid() == 0:
        os.chown(data, 12345, 54321)
    mounted = mount(f"file://{data}")
    assert shown(mounted.path) == shown(data)
    assert shown(mounted.path / "d") == shown(data / "d")
    inside = os.open(mounted.path / "d/e", os.O_RDONLY)
    try:
        for directory, mode in ((data, 0o711), (data / "d", 0o700), (data / "d/e", 0o710)):
            directory.chmod(mode)
        mounted.refresh("d/e")
        assert stat.S_IMODE(os.fstat(inside).st_mode) == 0o710
        assert (os.readlink(f"/proc/self/fd/{inside}")) == str(mounted.path / "d/e")
        mounted.refresh()
        for place in ("", "d", "d/e"):
            assert shown(mounted.path / place) == shown(data / place)
    finally:
        os.close(inside)


def test_a_changed_mode_is_seen_after_the_ttl(tmp_path: Path, mount: MountFactory) -> None:
    data = tmp_path / "data"
    (data / "d").mkdir(parents=True)
    mounted = mount(f"file://{data}", metadata_ttl="1s")
    assert (mounted.path / "d").is_dir()
    (data / "d").chmod(0o700)
    data.chmod(0o711)
    wait_until(lambda: shown(mounted.path / "d") == shown(data / "d"), "the new mode")
    wait_until(lambda: shown(mounted.path) == shown(data), "the new mode of the root")


def test_changes_are_seen_after_the_ttl(tmp_path: Path, mount: MountFactory) -> None:
    """Cases 1 and 2: also of one byte with size and times restored; a reader of before keeps his version."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "k").write_bytes(b"first")
    (data / "big").write_bytes(old := os.urandom(3 * CHUNK))
    mounted = mount(f"file://{data}", metadata_ttl="1s")
    with (mounted.path / "k").open("rb") as before, (mounted.path / "big").open("rb") as half_read:
        assert os.pread(half_read.fileno(), 100, 0) == old[:100]
        times = (data / "k").stat()
        (data / "k").write_bytes(b"fIrst")
        os.utime(data / "k", ns=(times.st_atime_ns, times.st_mtime_ns))
        (data / "big").write_bytes(new := os.urandom(3 * CHUNK))
        wait_until(lambda: (mounted.path / "k").read_bytes() == b"fIrst", "the new byte")
        wait_until(lambda: (mounted.path / "big").read_bytes() == new, "the new version")
        assert before.read() == b"first"
        assert os.pread(half_read.fileno(), 100, 0) == old[:100]
        with pytest.raises(OSError, match="Stale file handle"):
            os.pread(half_read.fileno(), 100, 2 * CHUNK)
    (data / "dir").mkdir()
    (data / "k").rename(data / "dir/k")
    wait_until(lambda: (mounted.path / "dir/k").exists(), "the moved file")
    wait_until(lambda: not (mounted.path / "k").exists(), "the old name to go")
    assert (mounted.path / "dir/k").read_bytes() == b"fIrst"


def test_reading_without_the_source(tmp_path: Path, mount: MountFactory) -> None:
    """What was read once is read again though the source is gone: the cache does not need it."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "k").write_bytes(b"cached")
    mounted = mount(f"file://{data}")
    assert (mounted.path / "k").read_bytes() == b"cached"
    data.rename(tmp_path / "moved")
    mounted.remount()
    assert (mounted.path / "k").read_bytes() == b"cached"
    assert mounted.count("remote_requests") == 0


def overlapping(base: Path) -> dict[str, tuple[Path, Path]]:
    (base / "set/sub").mkdir(parents=True)
    (base / "link").symlink_to("set")
    return {
        "the source itself": (base / "set", base / "set"),
        "inside": (base / "set", base / "set/sub"),
        "containing": (base / "set/sub", base / "set"),
        "through a link": (base / "link", base / "set/sub"),
    }


def test_a_mount_over_its_own_source_is_refused(tmp_path: Path, mount: MountFactory) -> None:
    """A mount point equal to, inside or above the source would make the daemon read its own mount."""
    for source, where in overlapping(tmp_path).values():
        mounted = mount(f"file://{source}", start=False)
        done = mounted.command("mount", mounted.source, str(where), "-o", mounted.option_text())
        assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
        assert "the source" in done.stderr and str(where) in done.stderr
        assert not is_mounted(where)


@pytest.mark.parametrize(
    ("make", "says"),
    [(lambda path: None, "no such directory"), (lambda path: path.write_text("x"), "is not a directory")],
    ids=["missing", "a file"],
)
def test_a_source_that_is_no_directory(
    make: Callable[[Path], object], says: str, tmp_path: Path, mount: MountFactory
) -> None:
    """`gpufs mount` fails at once and says what is wrong."""
    make(tmp_path / "data")
    mounted = mount(f"file://{tmp_path}/data", start=False)
    mounted.may_log_errors = True
    done = mounted.command("mount", mounted.source, str(mounted.path), "-o", mounted.option_text())
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert says in done.stderr
    assert not is_mounted(mounted.path)


def test_a_refresh_shows_what_another_mount_on_the_index_found_out(
    tmp_path: Path, mount: MountFactory
) -> None:
    """Names are held for ever, and the second refresh finds nothing that the index does not know."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "k").write_bytes(b"old")
    (data / "gone").write_bytes(b"x")
    first = mount(f"file://{data}")
    second = mount(f"file://{data}", cache_dir=str(first.cache))
    for mounted in (first, second):
        assert (mounted.path / "k").read_bytes() == b"old"
        assert (mounted.path / "gone").exists() and not (mounted.path / "new").exists()
    (data / "k").write_bytes(b"new content")
    (data / "new").write_bytes(b"x")
    (data / "gone").unlink()
    for mounted in (first, second):
        mounted.refresh()
        wait_until(lambda m=mounted: (m.path / "k").read_bytes() == b"new content", "the new content")
        wait_until(lambda m=mounted: (m.path / "new").exists(), "the new name")
        wait_until(lambda m=mounted: not (m.path / "gone").exists(), "the old name to go")


def test_inodes_without_a_name_stay_for_those_who_use_them_and_go_at_the_next_mount(
    tmp_path: Path, mount: MountFactory, fast_path: str
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "k").write_bytes(b"old")
    mounted = mount(f"file://{data}")
    with (mounted.path / "k").open("rb") as before:
        number = os.fstat(before.fileno()).st_ino
        (data / "k").write_bytes(b"new content")
        mounted.refresh()
        wait_until(lambda: (mounted.path / "k").read_bytes() == b"new content", "the new content")
        if fast_path == "auto":
            filesystem = mounted.pids()[0]
            mounted.may_log_errors = True  # the supervisor tells of it
            os.kill(filesystem, signal.SIGKILL)
            wait_until(lambda: not alive(filesystem), "the filesystem process to go")
            os.getxattr(mounted.path / "k", "user.gpufs.key")  # answered by the one that comes next
            assert (mounted.path / "k").read_bytes() == b"new content"
        assert before.read() == b"old" and os.fstat(before.fileno()).st_ino == number
    assert "replaced or deleted inodes" not in mounted.log()
    mounted.remount()
    wait_until(lambda: "removed 1 replaced or deleted inodes" in mounted.log(), "the old inode to go")
    assert (mounted.path / "k").read_bytes() == b"new content"


def test_names_that_stay_are_always_there(tmp_path: Path, mount: MountFactory) -> None:
    """While the directory changes, is listed anew after its ttl and refreshed at once, no name comes or goes
    that the source has all the time, and none comes twice."""
    data = tmp_path / "data"
    (data / "d").mkdir(parents=True)
    stay = {f"{number:04d}-stay" for number in range(1500)}
    for name in stay:
        (data / "d" / name).write_bytes(b"1")
    mounted = mount(f"file://{data}", metadata_ttl="1s")
    churning = threading.Event()

    def churn() -> None:
        number = 0
        while not churning.is_set():
            number += 1
            (data / "d" / f"{number % 1500:04d}-new").write_bytes(b"x")
            (data / "d" / f"{(number - 300) % 1500:04d}-new").unlink(missing_ok=True)
            (tmp_path / "other").write_bytes(b"another version")
            (tmp_path / "other").rename(data / "d" / f"{number % 1500:04d}-stay")

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        with ThreadPoolExecutor(2) as pool:
            refreshes = [pool.submit(mounted.refresh, "d") for _ in range(12)]
            while not all(refresh.done() for refresh in refreshes):
                names = os.listdir(mounted.path / "d")
                assert len(names) == len(set(names))
                assert stay <= set(names)
            for refresh in refreshes:
                refresh.result()
    finally:
        churning.set()
        thread.join()
