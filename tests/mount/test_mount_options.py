"""What the options make of a mount, as other users and the kernel's own table see it."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpufs.control.paths import socket_path
from tests.machine import held
from tests.mounts import GPUFS, Mounted, MountFactory, alive, is_mounted, wait_until
from tests.servers import S3Endpoint

pytestmark = [
    pytest.mark.fuse,
    pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user, installs in /sbin"),
]

NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")


@pytest.fixture
def source(weed: S3Endpoint, bucket: Callable[[S3Endpoint], str]) -> str:
    name = bucket(weed)
    weed.put(name, {"file": b"contents", "dir/below": b"below"})
    return f"s3://{name}"


def others_can_reach(mounted: Mounted) -> Mounted:
    mounted.path.parent.chmod(0o755)  # the directory the fixture made to mount in is 0700
    return mounted


def as_nobody(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*NOBODY, *map(str, command)], capture_output=True, text=True)


def mount_line(path: Path) -> tuple[str, str, list[str]]:
    """Source, type and options of a mount in /proc/mounts."""
    for line in Path("/proc/mounts").read_text(errors="surrogateescape").splitlines():
        words = line.split(" ")
        if words[1] == str(path):
            return words[0], words[2], words[3].split(",")
    raise AssertionError(f"{path} is not mounted")


def test_the_defaults(source: str, weed: S3Endpoint, mount: MountFactory) -> None:
    """Root's mount is read-only, nosuid, nodev, readable by all, owned by root; the cache is root's alone."""
    mounted = others_can_reach(mount(source, weed))
    shown, kind, options = mount_line(mounted.path)
    assert (shown, kind) == (source, "fuse.gpufs")
    assert {"ro", "nosuid", "nodev", "allow_other", "default_permissions", "user_id=0"} <= set(options)
    for path, mode in ((mounted.path / "file", 0o100444), (mounted.path / "dir", 0o40555)):
        found = path.stat()
        assert (found.st_mode, found.st_uid, found.st_gid, found.st_nlink) == (mode, 0, 0, 1)
    assert as_nobody("cat", mounted.path / "file").stdout == "contents"
    assert as_nobody("ls", mounted.path).stdout == "dir\nfile\n"

    assert stat.S_IMODE(mounted.cache.stat().st_mode) == 0o700
    assert as_nobody("ls", mounted.cache).returncode != 0
    control = Path(socket_path(str(mounted.path), 0))
    assert stat.S_IMODE(control.stat().st_mode) == 0o600
    assert stat.S_IMODE(control.parent.stat().st_mode) == 0o700


def test_owner_and_modes(source: str, weed: S3Endpoint, mount: MountFactory) -> None:
    """uid, gid, file_mode and dir_mode are shown, and are what the kernel grants access by."""
    mounted = others_can_reach(
        mount(source, weed, uid="1234", gid="65534", file_mode="0640", dir_mode="0750")
    )
    for path, mode in (
        (mounted.path, 0o40750),
        (mounted.path / "file", 0o100640),
        (mounted.path / "dir", 0o40750),
        (mounted.path / "dir/below", 0o100640),
    ):
        found = path.stat()
        assert (found.st_mode, found.st_uid, found.st_gid) == (mode, 1234, 65534)
    assert as_nobody("cat", mounted.path / "dir/below").stdout == "below", "by its group"
    mounted.umount()
    mounted.options |= {"gid": "77"}
    mounted.mount()
    denied = as_nobody("cat", mounted.path / "dir/below")
    assert (denied.returncode, "Permission denied" in denied.stderr) == (1, True)
    assert (mounted.path / "dir/below").read_bytes() == b"below", "root may"


def test_allow_other_can_be_taken_away(source: str, weed: S3Endpoint, mount: MountFactory) -> None:
    """allow_other=false: nobody but the user who mounted sees anything, whatever the modes say."""
    mounted = others_can_reach(mount(source, weed, allow_other="false"))
    assert "allow_other" not in mount_line(mounted.path)[2]
    for command in (("ls", mounted.path), ("cat", mounted.path / "file"), ("stat", mounted.path / "file")):
        denied = as_nobody(*command)
        assert denied.returncode != 0 and "Permission denied" in denied.stderr
    assert (mounted.path / "file").read_bytes() == b"contents"


def test_the_control_socket_is_not_for_others(source: str, weed: S3Endpoint, mount: MountFactory) -> None:
    """Another user can read the data, but not reach the socket by which the daemon is told what to do."""
    mounted = others_can_reach(mount(source, weed))
    control = Path(socket_path(str(mounted.path), 0))
    assert control.is_socket()
    denied = as_nobody("stat", control)
    assert denied.returncode != 0 and "Permission denied" in denied.stderr
    assert as_nobody("cat", mounted.path / "file").stdout == "contents"


@pytest.mark.parametrize("name", ["a, b=c #100%", "back\\slash\nnew line\t", "\udcff\N{SNOWMAN}", "-dash"])
def test_odd_mount_points(name: str, source: str, weed: S3Endpoint, mount: MountFactory) -> None:
    """Whatever the directory is called: it is mounted, named in the status, and unmounted."""
    mounted = mount(source, weed, start=False)
    mounted.path = mounted.path.parent / name
    mounted.path.mkdir()
    mounted.mount()
    assert (mounted.path / "dir/below").read_bytes() == b"below"
    assert mounted.status()["mountpoint"] == str(mounted.path)
    mounted.refresh("dir")
    mounted.umount()
    assert os.listdir(mounted.path) == []


def test_odd_sources_in_the_mount_table(tmp_path: Path, mount: MountFactory) -> None:
    """A source with spaces, commas and other letters is one ASCII word in the kernel's table, and mounts."""
    data = tmp_path / "da ta, x=\N{SNOWMAN}\n"
    data.mkdir()
    (data / "k").write_bytes(b"v")
    mounted = mount(str(data))
    shown = mount_line(mounted.path)[0]
    assert shown.isascii() and "," not in shown and " " not in shown
    assert (mounted.path / "k").read_bytes() == b"v"
    assert mounted.status()["source"] == str(data)


# -- mount(8)


@pytest.fixture
def installed() -> Iterator[None]:
    """The links in /sbin are this checkout's, and what was there before is there again afterwards."""
    helpers = [Path("/sbin/mount.gpufs"), Path("/sbin/mount.fuse.gpufs")]
    with held("/sbin"):
        before = [os.readlink(helper) if helper.is_symlink() else None for helper in helpers]
        subprocess.run([*GPUFS, "install"], check=True, capture_output=True)
        try:
            yield
        finally:
            subprocess.run([*GPUFS, "uninstall"], check=True, capture_output=True)
            for helper, link in zip(helpers, before, strict=True):
                assert not helper.exists()
                if link is not None:
                    helper.symlink_to(link)


def system(mounted: Mounted, *command: object) -> None:
    """A command of the system, in the mount's environment; it must succeed in silence."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, env=mounted.env)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_mount_type_gpufs(source: str, weed: S3Endpoint, mount: MountFactory, installed: None) -> None:
    """`mount -t gpufs SOURCE DIR -o ...` mounts, `umount DIR` unmounts and ends the daemon."""
    mounted = mount(source, weed, start=False)
    system(mounted, "mount", "-t", "gpufs", source, mounted.path, "-o", mounted.option_text() + ",ro,noatime")
    assert (mounted.path / "dir/below").read_bytes() == b"below"
    pid = mounted.pids()[-1]
    system(mounted, "umount", mounted.path)
    assert os.listdir(mounted.path) == []
    wait_until(lambda: not alive(pid), "the daemon to end")


def test_a_line_of_fstab(
    source: str, weed: S3Endpoint, mount: MountFactory, installed: None, tmp_path: Path
) -> None:
    """A line of fstab with all the words that such lines have is mounted by `mount DIR` and by `mount -a`."""
    mounted = mount(source, weed, start=False)
    words = (
        "_netdev,nofail,defaults,ro,user,noauto,x-systemd.automount,x-systemd.requires=network-online.target"
        ",x-systemd.mount-timeout=2min,comment=datasets,nosuid,nodev,exec,noatime,lazytime,file_mode=0400"
    )
    fstab = tmp_path / "fstab"
    line = f"{source} {mounted.path} gpufs {words},{mounted.option_text()} 0 0\n"
    fstab.write_text(line)
    system(mounted, "mount", "--fstab", fstab, mounted.path)
    assert (mounted.path / "file").read_bytes() == b"contents"
    assert stat.S_IMODE((mounted.path / "file").stat().st_mode) == 0o400
    mounted.umount()
    fstab.write_text(line.replace("noauto,", "auto,"))
    system(mounted, "mount", "-a", "-T", fstab, "-t", "gpufs")
    assert (mounted.path / "dir/below").read_bytes() == b"below"
    system(mounted, "mount", "-a", "-T", fstab, "-t", "gpufs")  # it is mounted: nothing to do


def test_a_remount_says_that_it_cannot_be(
    source: str, weed: S3Endpoint, mount: MountFactory, installed: None
) -> None:
    """mount(8) knows the mount as of type fuse.gpufs, and asks the helper of that name. Nothing changes."""
    mounted = mount(source, weed)
    before = mount_line(mounted.path)
    for options in ("remount", "remount,rw", "remount,cache_size=1G"):
        done = subprocess.run(["mount", "-o", options, mounted.path], capture_output=True, text=True)
        assert done.returncode == 32
        assert "cannot be changed; unmount" in done.stderr and len(done.stderr.splitlines()) == 1
    assert mount_line(mounted.path) == before
    assert (mounted.path / "file").read_bytes() == b"contents"


def test_mount_8_says_what_is_wrong(
    source: str, weed: S3Endpoint, mount: MountFactory, installed: None
) -> None:
    """A wrong option or source: mount(8) shows our one line and ends with the status of its manual."""
    mounted = mount(source, weed, start=False)
    mounted.may_log_errors = True
    for what, options, status, says in (
        (source, "metadata_tll=5m", 1, "did you mean 'metadata_ttl'"),
        ("s3://no-such-bucket-here", "uid=0", 32, "no such bucket"),
        ("gopher://x", "uid=0", 32, "no kind of source"),
    ):
        done = subprocess.run(
            ["mount", "-t", "gpufs", what, mounted.path, "-o", f"{mounted.option_text()},{options}"],
            capture_output=True,
            text=True,
            env=mounted.env,
        )
        assert done.returncode == status, done.stderr
        assert says in done.stderr
        assert len(done.stderr.splitlines()) == 1
    system(mounted, "mount", "-s", "-t", "gpufs", source, mounted.path, "-f", "-o", "unknown_word,uid=1")
    assert os.listdir(mounted.path) == []


def test_two_mounts_at_once_on_one_directory(source: str, weed: S3Endpoint, mount: MountFactory) -> None:
    """One of them mounts, the other finds the directory taken: they never stack."""
    mounted = mount(source, weed, start=False)
    command = [*GPUFS, "mount", source, str(mounted.path), "-o", mounted.option_text()]
    both = [subprocess.Popen(command, env=mounted.env, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    errors = [one.communicate(timeout=90)[1] for one in both]
    assert sorted(one.returncode for one in both) == [0, 1]
    assert sum("is a mount point already" in error for error in errors) == 1
    mounted.umount()
    assert not is_mounted(mounted.path)
