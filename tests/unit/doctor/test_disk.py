"""`gpufs doctor`: the disk of the cache, and the settings that come of it."""

from __future__ import annotations

import errno
import os
import shlex
import tomllib
from pathlib import Path

import pytest

from gpufs.control.paths import Mount
from gpufs.doctor import disk
from gpufs.doctor.choice import Disk, choose, fstab_line, toml_text
from gpufs.options import Size, parse_options, split_options
from tests.unit.doctor.test_host import assert_is

GIB = 1 << 30


def mounted(fstype: str, where: str = "/nvme") -> Mount:
    return Mount(where, fstype, "/dev/x", 0, "8:1")


@pytest.mark.parametrize(
    "fstype, state, word",
    [("ext4", "ok", ""), ("xfs", "ok", ""), ("overlay", "warn", "NVMe"), ("tmpfs", "warn", "memory"),
     ("nfs4", "warn", "network"), ("fuse.sshfs", "warn", "network"), ("squashfs", "warn", "not made")],
)  # fmt: skip
def test_file_systems(fstype: str, state: str, word: str) -> None:
    assert_is(disk.kind(mounted(fstype)), state, fstype, word)


def test_the_innermost_mount_holds_a_path(tmp_path: Path) -> None:
    mounts = [mounted("ext4", "/"), mounted("xfs", str(tmp_path)), mounted("tmpfs", str(tmp_path) + "-not")]
    assert disk.mount_at(tmp_path / "not there", mounts) == mounts[1]
    assert disk.mount_at(Path("/"), mounts) == mounts[0]
    assert_is(disk.kind(None), "warn")


def test_a_directory_that_cannot_be_used(tmp_path: Path) -> None:
    uid = os.geteuid()
    assert_is(disk.usable(tmp_path / "new" / "cache", uid), "ok", "to be made")
    assert_is(disk.usable(tmp_path, uid + 1), "FAIL", "belongs to uid")
    (tmp_path / "file").write_text("")
    assert_is(disk.usable(tmp_path / "file" / "x", uid), "FAIL", "no directory")
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    assert_is(disk.usable(shared, uid), "FAIL", f"chmod go-w {shared}")


def test_a_directory_that_is_not_writable() -> None:
    assert_is(disk.usable(Path("/proc/self/x"), os.geteuid()), "FAIL", "not writable")


def test_room() -> None:
    options, _ = parse_options({"cache_size": "80%", "min_free": "5%"})
    assert_is(disk.room(options, 1000 * GIB, 900 * GIB), "ok", "leave 800.0 GiB")
    assert_is(disk.room(options, 1000 * GIB, 300 * GIB), "warn", "cache_size=250GiB")
    assert_is(disk.room(options, 1000 * GIB, 300 * GIB, 600 * GIB), "ok", "800.0 GiB")
    assert_is(disk.room(options, 1000 * GIB, 49 * GIB), "FAIL", "nothing will be kept")


def test_the_speed_of_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "SECONDS", 0.05)
    monkeypatch.setattr(disk, "SLOW", 1.0)
    assert_is(disk.speed(tmp_path / "cache"), "ok", "MB/s written")
    monkeypatch.setattr(disk, "SLOW", 1e15)
    assert_is(disk.speed(tmp_path), "warn", "NVMe")
    assert list(tmp_path.iterdir()) == [], "the file is gone"


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    assert_is(disk.speed(tmp_path), "FAIL", "No space left", "free some space")


def test_the_choice_keeps_what_was_given() -> None:
    options, _ = parse_options(given := split_options("cache_size=10GiB,region=eu-west-1,cache_dir=/"))
    assert choose(given, options, True, []) == given


def test_a_cache_that_is_not_on_a_disk_goes_to_one() -> None:
    options, _ = parse_options({})
    disks = [Disk("/nvme", 1000 * GIB, 990 * GIB), Disk("/", 100 * GIB, 90 * GIB)]
    assert choose({}, options, False, disks) == {"cache_dir": "/nvme/gpufs-cache"}
    used = [Disk("/nvme", 1000 * GIB, 150 * GIB)]
    assert choose({}, options, False, used)["cache_size"] == "100GiB"


def test_the_lines_are_read_back_as_they_were_meant() -> None:
    source = "s3://bucket/a b,c"
    chosen = split_options(r"cache_dir=/a\,b c,anonymous,cache_size=5GiB")
    fields = [
        field.replace("\\040", " ").replace("\\134", "\\") for field in fstab_line(source, chosen).split()
    ]
    assert fields[0] == source and fields[2] == "gpufs"
    back = split_options(fields[3])
    assert {key: back[key] for key in chosen} == chosen
    options, _ = parse_options(back)
    assert options.cache_dir == Path("/a,b c") and options.anonymous and options.cache_size == Size(5 * GIB)
    document = tomllib.loads(toml_text(source, chosen))
    assert document == {
        "source": source,
        "mountpoint": "/data",
        "cache_dir": "/a,b c",
        "anonymous": True,
        "cache_size": "5GiB",
    }
    assert shlex.split(fields[3])
