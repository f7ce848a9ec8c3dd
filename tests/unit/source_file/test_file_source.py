"""What FileSource alone promises: special files, unreadable places, counting, errors."""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpufs.errors import AccessDenied, NotADirectory, NotFound, RemoteFailed, VersionGone
from gpufs.metrics import Metrics
from gpufs.source.base import Entry, Hidden, Kind, ObjectRef
from gpufs.source.file import FileSource


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def source(tmp_path: Path, metrics: Metrics) -> Iterator[FileSource]:
    source = FileSource(tmp_path, metrics)
    yield source
    source.close()


def listed(source: FileSource, directory: bytes = b"") -> dict[bytes, Entry]:
    return {entry.name: entry for page in source.list(directory) for entry in page.entries}


def failing(number: int) -> Callable[..., Any]:
    """A system call that always fails with this errno."""

    def fail(*_args: object, **_how: object) -> Any:
        raise OSError(number, os.strerror(number))

    return fail


def ref(source: FileSource, path: bytes) -> ObjectRef:
    entry = source.stat(path)
    return ObjectRef(path, entry.version, entry.size)


def test_symbolic_links_are_shown_as_links_and_never_followed(tmp_path: Path, source: FileSource) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real/f").write_bytes(b"x")
    os.symlink(b"../any\xfftarget", os.fsencode(tmp_path) + b"/dangling")
    os.symlink("real", tmp_path / "link")
    entries = listed(source)
    assert entries[b"dangling"].kind is Kind.SYMLINK
    assert entries[b"dangling"].target == b"../any\xfftarget"
    assert entries[b"dangling"].size == len(b"../any\xfftarget")
    assert source.stat(b"link") == entries[b"link"]
    with pytest.raises(NotADirectory):
        list(source.list(b"link"))
    with pytest.raises(NotFound):
        source.stat(b"link/f")


def test_modes_owners_and_times_are_kept(tmp_path: Path, source: FileSource) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"abc")
    path.chmod(0o640)
    os.utime(path, ns=(5, 1_234_567_890_123_456_789))
    entry = source.stat(b"f")
    assert (entry.mode, entry.uid, entry.gid) == (0o640, os.geteuid(), path.stat().st_gid)
    assert (entry.size, entry.mtime_ns) == (3, 1_234_567_890_123_456_789)
    found = path.stat()
    assert entry.version == f"{found.st_ino}-{found.st_mtime_ns}-{found.st_ctime_ns}"
    directory = source.stat(b"")
    assert (directory.kind, directory.version, directory.size) == (Kind.DIRECTORY, "", 0)


def test_reading_does_not_touch_the_access_time(tmp_path: Path, source: FileSource) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"abc")
    os.utime(path, ns=(5, 5))  # older than mtime + a day: relatime would update it
    source.read(ref(source, b"f"), 0, 3)
    assert path.stat().st_atime_ns == 5


def test_pipes_and_sockets_are_hidden_with_a_reason(tmp_path: Path, source: FileSource) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "sock"))
    (tmp_path / "file").touch()
    (page,) = source.list(b"")
    assert [entry.name for entry in page.entries] == [b"file"]
    assert sorted(page.hidden, key=lambda h: h.name) == [
        Hidden(b"pipe", "named pipe"),
        Hidden(b"sock", "socket"),
    ]
    with pytest.raises(NotFound, match="named pipe"):
        source.stat(b"pipe")


@pytest.mark.parametrize(
    "put", [os.mkfifo, os.mkdir, lambda p: os.symlink("g", p)], ids=["pipe", "dir", "link"]
)
def test_something_else_in_the_files_place_is_version_gone(
    tmp_path: Path, source: FileSource, put: Callable[[Path], None]
) -> None:
    (tmp_path / "g").write_bytes(b"abc")
    (tmp_path / "f").write_bytes(b"abc")
    old = ref(source, b"f")
    (tmp_path / "f").unlink()
    put(tmp_path / "f")
    with pytest.raises(VersionGone):
        source.read(old, 0, 3)


def test_a_file_that_changes_under_the_read_is_version_gone(
    tmp_path: Path, source: FileSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"old bytes")
    old = ref(source, b"f")
    pread = os.pread

    def meanwhile(descriptor: int, length: int, offset: int) -> bytes:
        path.write_bytes(b"new bytes")
        return pread(descriptor, length, offset)

    monkeypatch.setattr(os, "pread", meanwhile)
    with pytest.raises(VersionGone):
        source.read(old, 0, 9)


def test_a_file_changed_in_this_clock_step_is_read_after_it(
    tmp_path: Path, source: FileSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels with a coarse clock give two writes of one step the same version: the second must be in."""
    path = tmp_path / "f"
    path.write_bytes(b"first")
    wanted = ref(source, b"f")
    changed = path.stat().st_ctime_ns
    waits: list[float] = []
    pread = os.pread

    def read_after_the_wait(descriptor: int, length: int, offset: int) -> bytes:
        assert len(waits) == 1
        return pread(descriptor, length, offset)

    monkeypatch.setattr(time, "sleep", waits.append)
    monkeypatch.setattr(os, "pread", read_after_the_wait)
    for now, wait in [
        (changed + 5_000_000, 0.015),
        (changed - 10**12, 0.020),
    ]:  # a server's clock may be ahead
        waits.clear()
        monkeypatch.setattr(time, "time_ns", lambda now=now: now)
        source.read(wanted, 0, 5)
        assert waits == [pytest.approx(wait)]
    waits.clear()
    monkeypatch.setattr(os, "pread", pread)
    monkeypatch.setattr(time, "time_ns", lambda: changed + 20_000_000)
    source.read(wanted, 0, 5)
    assert waits == []


def test_a_rewrite_that_restores_the_mtime_is_seen(tmp_path: Path, source: FileSource) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"old")
    old = ref(source, b"f")
    source.read(old, 0, 3)
    mtime = path.stat().st_mtime_ns
    path.write_bytes(b"new")
    os.utime(path, ns=(mtime, mtime))
    with pytest.raises(VersionGone):
        source.read(old, 0, 3)


def test_short_reads_are_put_together(
    tmp_path: Path, source: FileSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = os.urandom(100_000)
    (tmp_path / "f").write_bytes(body)
    pread, preadv = os.pread, os.preadv
    monkeypatch.setattr(os, "pread", lambda fd, length, offset: pread(fd, min(length, 7000), offset))
    monkeypatch.setattr(os, "preadv", lambda fd, views, offset: preadv(fd, [views[0][:9000]], offset))
    assert source.read(ref(source, b"f"), 100, 90_000) == body[100:90_100]


def test_a_read_that_ends_early_is_an_error(
    tmp_path: Path, source: FileSource, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").write_bytes(b"abc")
    wanted = ref(source, b"f")
    monkeypatch.setattr(os, "pread", lambda fd, length, offset: b"")
    with pytest.raises(RemoteFailed, match="ended after 0 of 3"):
        source.read(wanted, 0, 3)
    assert metrics.remote_errors.value == 1


@pytest.mark.parametrize(
    ("number", "error"),
    [(errno.ESTALE, VersionGone), (errno.EACCES, AccessDenied), (errno.EIO, RemoteFailed)],
)
def test_what_the_system_says_becomes_an_error_of_gpufs(
    tmp_path: Path,
    source: FileSource,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    error: type[Exception],
) -> None:
    (tmp_path / "f").write_bytes(b"abc")
    wanted = ref(source, b"f")

    monkeypatch.setattr(os, "pread", failing(number))
    with pytest.raises(error):
        source.read(wanted, 0, 3)


def test_a_stale_handle_is_never_taken_for_a_missing_name(
    tmp_path: Path, source: FileSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an NFS server was re-exported, everything is ESTALE: the files are not gone for that."""

    source.check()
    monkeypatch.setattr(os, "stat", failing(errno.ESTALE))
    with pytest.raises(RemoteFailed):
        source.stat(b"f")


def test_names_that_vanish_during_the_listing_are_left_out(
    tmp_path: Path, source: FileSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).touch()
    stat = os.stat

    def meanwhile(path: Any, **how: Any) -> os.stat_result:
        (tmp_path / "b").unlink(missing_ok=True)
        return stat(path, **how)

    monkeypatch.setattr(os, "stat", meanwhile)
    assert set(listed(source)) == {b"a", b"c"}


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOTCONN])
def test_a_mount_point_nobody_can_look_at_is_hidden_and_the_rest_is_listed(
    tmp_path: Path, source: FileSource, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Other people's FUSE mounts give EACCES, even to root; dead ones ENOTCONN."""
    for name in ("a", "mount", "z"):
        (tmp_path / name).mkdir()
    stat = os.stat

    def stat_unless_mount(path: Any, **how: Any) -> os.stat_result:
        if path == b"mount":
            raise OSError(number, os.strerror(number))
        return stat(path, **how)

    monkeypatch.setattr(os, "stat", stat_unless_mount)
    (page,) = source.list(b"")
    assert {entry.name for entry in page.entries} == {b"a", b"z"}
    assert page.hidden == [Hidden(b"mount", f"cannot be looked at: {os.strerror(number)}")]


def test_mount_points_below_the_root_are_crossed(metrics: Metrics) -> None:
    source = FileSource(Path("/"), metrics)
    assert b"ostype" in listed(source, b"proc/sys/kernel")
    hidden = {h.name: h.reason for page in source.list(b"dev") for h in page.hidden}
    assert hidden[b"null"] == "character device"
    source.close()


def test_a_directory_that_vanishes_does_not_end_the_walk(tmp_path: Path, source: FileSource) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").touch()
    seen = []
    for batch in source.walk():
        for page in batch:
            seen.append(page.directory)
            if page.directory == b"":
                (tmp_path / "b/f").unlink()
                (tmp_path / "b").rmdir()
    assert sorted(seen) == [b"", b"a", b"c"]


def test_one_request_is_counted_per_listing_stat_and_read(
    tmp_path: Path, source: FileSource, metrics: Metrics
) -> None:
    (tmp_path / "f").write_bytes(b"abcdef")
    list(source.list(b""))
    wanted = ref(source, b"f")
    source.read(wanted, 1, 4)
    with pytest.raises(NotFound):
        source.stat(b"nothing")
    assert (metrics.remote_requests.value, metrics.remote_bytes.value) == (4, 4)
    assert metrics.remote_errors.value == 0  # "there is no such name" is an answer, not a failure


def test_no_descriptor_is_left_open(tmp_path: Path, metrics: Metrics) -> None:
    (tmp_path / "d/e").mkdir(parents=True)
    (tmp_path / "d/e/f").write_bytes(b"abc")
    os.symlink("x", tmp_path / "d/e/link")
    before = len(os.listdir("/proc/self/fd"))
    source = FileSource(tmp_path, metrics)
    list(source.walk())
    next(iter(source.list(b"")))
    wanted = ref(source, b"d/e/f")
    source.read(wanted, 0, 3)
    for path in (b"d/e/none", b"none/f", b"d/e/f/g", b"d/../f"):
        with pytest.raises(NotFound):
            source.stat(path)
    source.close()
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(RemoteFailed, match="closed"):
        source.read(wanted, 0, 3)


def test_the_root_may_be_a_symbolic_link_and_is_resolved_once(tmp_path: Path, metrics: Metrics) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one/f").write_bytes(b"1")
    (tmp_path / "two").mkdir()
    os.symlink("one", tmp_path / "root")
    source = FileSource(tmp_path / "root", metrics)
    (tmp_path / "root").unlink()
    os.symlink("two", tmp_path / "root")
    assert set(listed(source)) == {b"f"}
    assert source.id == f"file://{tmp_path}/one"
    source.close()


def test_the_root_stays_the_directory_that_was_opened(tmp_path: Path, metrics: Metrics) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root/f").write_bytes(b"1")
    source = FileSource(tmp_path / "root", metrics)
    source.check()
    (tmp_path / "root").rename(tmp_path / "old")
    (tmp_path / "root").mkdir()
    assert set(listed(source)) == {b"f"}
    source.close()


def test_the_id_of_a_root_that_is_not_utf8_can_be_stored(tmp_path: Path, metrics: Metrics) -> None:
    source = FileSource(Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff")), metrics)
    assert source.id.encode() == f"file://{tmp_path}/\\xff".encode()


def test_check_says_what_to_do(tmp_path: Path, metrics: Metrics) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotFound, match="is mounted"):
        FileSource(tmp_path / "none", metrics).check()
    with pytest.raises(NotADirectory, match="name the directory that holds the files"):
        FileSource(tmp_path / "file", metrics).check()
    source = FileSource(tmp_path, metrics)
    source.check()
    source.close()


_AS_SOMEBODY = """
import json, logging, os, sys
from pathlib import Path
from gpufs.errors import AccessDenied
from gpufs.metrics import Metrics
from gpufs.source.base import ObjectRef
from gpufs.source.file import FileSource
logging.basicConfig(level=logging.WARNING)

def outcome(action):
    try:
        return action()
    except AccessDenied as error:
        return "AccessDenied"

if os.geteuid() == 0:  # only now: the interpreter itself may be root's alone
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
root = Path(sys.argv[1])
source = FileSource(root, Metrics())
secret = os.stat(root / "secret")
version = f"{secret.st_ino}-{secret.st_mtime_ns}-{secret.st_ctime_ns}"
print(json.dumps({
    "walk": [[p.directory.decode(), p.last] for batch in source.walk() for p in batch],
    "closed": outcome(lambda: list(source.list(b"closed"))),
    "unsearchable": outcome(lambda: list(source.list(b"unsearchable"))),
    "below": [e.name.decode() for p in source.list(b"unreadable/below") for e in p.entries],
    "read": outcome(lambda: source.read(ObjectRef(b"secret", version, secret.st_size), 0, 1)),
    "theirs": bytes(source.read(
        ObjectRef(b"open/f", source.stat(b"open/f").version, source.stat(b"open/f").size), 0, 3)).decode(),
    "check": outcome(FileSource(root / "closed", Metrics()).check),
}))
source.close()
"""


def test_places_this_user_may_not_read(tmp_path: Path) -> None:
    """As a plain user: AccessDenied where it is due, and the walk goes on past closed directories."""
    with tempfile.TemporaryDirectory(prefix="gpufs-test-") as name:
        root = Path(name)
        root.chmod(0o755)
        for directory in ("closed", "open", "unsearchable", "unreadable/below"):
            (root / directory).mkdir(parents=True)
            (root / directory / "f").write_bytes(b"abc")
        (root / "secret").write_bytes(b"abc")
        modes = {"closed": 0, "unsearchable": 0o444, "unreadable": 0o111, "secret": 0}
        for place, mode in modes.items():
            (root / place).chmod(mode)
        try:
            result = subprocess.run(
                [sys.executable, "-c", _AS_SOMEBODY, str(root)],
                cwd=Path(__file__).parents[3],
                env={"PYTHONDONTWRITEBYTECODE": "1"},
                capture_output=True,
                text=True,
                check=True,
            )
        finally:
            for place in modes:
                (root / place).chmod(0o755)
    got = json.loads(result.stdout)
    assert sorted(got["walk"]) == [["", True], ["open", True]]
    assert result.stderr.count("left out of the walk") == 3
    assert got["closed"] == got["unsearchable"] == got["read"] == got["check"] == "AccessDenied"
    assert got["below"] == ["f"]  # search permission is enough on the way
    assert got["theirs"] == "abc"  # O_NOATIME is refused to those who do not own the file


def test_one_failing_directory_does_not_end_the_walk(
    tmp_path: Path, source: FileSource, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    walk = source.walk()
    next(walk)
    monkeypatch.setattr(os, "scandir", failing(errno.EIO))
    with caplog.at_level(logging.WARNING):
        assert list(walk) == []
    assert len(caplog.records) == 3


def test_the_walk_ends_when_the_whole_source_is_out_of_reach(
    tmp_path: Path, source: FileSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    walk = source.walk()
    next(walk)
    monkeypatch.setattr(os, "open", failing(errno.ESTALE))
    with pytest.raises(RemoteFailed):
        next(walk)


def test_a_listing_tells_the_attributes_of_its_directory(tmp_path: Path, source: FileSource) -> None:
    (tmp_path / "d").mkdir()
    for directory, path in ((b"", tmp_path), (b"d", tmp_path / "d")):
        path.chmod(0o710)
        (own,) = [page.own for page in source.list(directory) if page.own is not None]
        found = path.stat()
        assert (own.mode, own.uid, own.gid, own.mtime_ns) == (
            0o710, found.st_uid, found.st_gid, found.st_mtime_ns,
        )  # fmt: skip
