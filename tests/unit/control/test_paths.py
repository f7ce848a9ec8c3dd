"""Finding mounts without touching them: mountinfo, links, sockets and logs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufs.control import paths
from gpufs.control.paths import Mount, locate, parse_mountinfo
from gpufs.errors import MountFailed, UsageError

MOUNTINFO = b"""\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw,discard
30 22 0:40 / /proc rw - proc proc rw
41 22 0:51 / /mnt/a\\040b\\011c\\134d ro,nosuid,nodev shared:7 master:2 - fuse.gpufs s3://b/p\\040q \
ro,user_id=1000,group_id=1000,allow_other
42 22 0:52 / /data ro - fuse.gpufs s3://data ro,user_id=0,group_id=0
43 22 0:53 / /mnt/\xff\xc3\xa9 ro - fuse.gpufs file:///x ro,user_id=0,group_id=0
"""


def test_mountinfo_is_read_with_its_escapes() -> None:
    mounts = parse_mountinfo(MOUNTINFO)
    assert [m.mountpoint for m in mounts][:2] == ["/", "/proc"]
    assert paths.gpufs_mounts(mounts) == [
        Mount("/mnt/a b\tc\\d", "fuse.gpufs", "s3://b/p q", 1000, "0:51"),
        Mount("/data", "fuse.gpufs", "s3://data", 0, "0:52"),
        Mount(os.fsdecode(b"/mnt/\xff\xc3\xa9"), "fuse.gpufs", "file:///x", 0, "0:53"),
    ]


def test_the_topmost_of_stacked_mounts_counts() -> None:
    over = MOUNTINFO + b"50 42 0:60 / /data rw - tmpfs tmpfs rw\n"
    assert [m.fstype for m in parse_mountinfo(over) if m.mountpoint == "/data"] == ["tmpfs"]


@given(st.binary(min_size=1, max_size=20).filter(lambda name: b"\0" not in name and b"/" not in name))
def test_any_name_of_a_mount_point_is_read_back(name: bytes) -> None:
    # What the kernel escapes: fs/proc_namespace.c, mangle().
    escaped = b"".join(b"\\%03o" % c if bytes([c]) in b" \t\n\\#" else bytes([c]) for c in name)
    line = b"42 22 0:52 / /" + escaped + b" ro - fuse.gpufs s3://data ro,user_id=7\n"
    assert parse_mountinfo(line) == [Mount("/" + os.fsdecode(name), "fuse.gpufs", "s3://data", 7, "0:52")]


def test_the_device_of_a_mount_is_the_one_the_kernel_gives() -> None:
    device = os.stat("/proc").st_dev
    assert paths.device_of("/proc") == f"{os.major(device)}:{os.minor(device)}"
    assert paths.device_of("/proc/none") is None


def test_this_host_is_read() -> None:
    assert any(m.mountpoint == "/proc" and m.fstype == "proc" for m in paths.all_mounts())


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A directory taken for a mount in these tests, links to it, and a link inside it."""
    root = tmp_path.resolve()
    (root / "real" / "data" / "sub").mkdir(parents=True)
    (root / "real" / "data" / "inner").symlink_to("/etc")
    (root / "link").symlink_to("real/data")
    (root / "parent").symlink_to(root / "real")
    (root / "loop").symlink_to("loop")
    return root


def mounted(tree: Path) -> list[Mount]:
    return [Mount(str(tree / "real" / "data"), "fuse.gpufs", "s3://b", 0)]


@pytest.mark.parametrize(
    ("path", "inside"),
    [
        ("real/data", ""),
        ("real/data/", ""),
        ("link", ""),
        ("link/sub/x", "/sub/x"),
        ("parent/data/sub/../y", "/y"),
        ("link/./a//b", "/a/b"),
        ("real/../link/a", "/a"),
        ("real/data/inner/passwd", "/inner/passwd"),
        ("real/data/../data/x", "/x"),
    ],
)
def test_links_are_followed_up_to_the_mount_and_not_beyond(tree: Path, path: str, inside: str) -> None:
    mounts = mounted(tree)
    assert locate(f"{tree}/{path}", mounts) == (mounts[0].mountpoint + inside, mounts[0])


def test_a_path_outside_of_every_mount_is_made_absolute(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree)
    assert locate("parent/other", mounted(tree)) == (str(tree / "real" / "other"), None)
    assert locate("link/..", mounted(tree)) == (str(tree / "real"), None)


def test_a_relative_path_finds_its_mount(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree / "real" / "data" / "sub")
    mounts = mounted(tree)
    assert locate("x", mounts) == (f"{mounts[0].mountpoint}/sub/x", mounts[0])


def test_nothing_inside_a_mount_is_touched(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touched: list[str] = []
    readlink = os.readlink
    monkeypatch.setattr(os, "readlink", lambda path: (touched.append(path), readlink(path))[1])
    locate(f"{tree}/link/sub/deep/er", mounted(tree))
    assert touched and not [path for path in touched if path.startswith(f"{tree}/real/data")]


def test_a_loop_of_links_is_an_error(tree: Path) -> None:
    with pytest.raises(UsageError, match="too many levels of symbolic links"):
        locate(f"{tree}/loop", [])


def test_sockets_of_different_mounts_and_users_differ() -> None:
    sockets = {paths.socket_path(point, owner) for point in ("/a-b", "/a/b") for owner in (0, 123456)}
    assert len(sockets) == 4
    assert all(len(path) < 108 for path in sockets)  # sun_path, unix(7)
    assert {os.path.dirname(path) for path in sockets} == {"/run/gpufs", "/tmp/gpufs-123456"}


def test_a_user_has_his_sockets_in_his_runtime_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert paths.runtime_dir(4711) == f"{tmp_path}/gpufs"
    assert paths.runtime_dir(4712) == "/tmp/gpufs-4712"


def test_a_log_is_named_after_its_mount_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    log = paths.log_path("/mnt/my data")
    assert log.startswith("/state/gpufs/my_data-") and log.endswith(".log")
    assert paths.log_path("/other/my data") != log


def test_an_unsafe_runtime_directory_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o755)
    with pytest.raises(MountFailed, match="mode 0700"):
        paths.make_private(str(shared))
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(MountFailed, match="mode 0700"):
        paths.make_private(str(tmp_path / "link"))
    paths.make_private(str(tmp_path / "new"))
    assert (tmp_path / "new").stat().st_mode & 0o7777 == 0o700
