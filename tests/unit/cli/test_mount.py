"""`gpufs mount`: what it refuses, and how it waits for its daemon."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpufs.cache.checksum import CHUNK
from gpufs.cli import main, mount, mounts
from gpufs.control import paths
from gpufs.control.paths import Mount
from gpufs.errors import MountFailed
from gpufs.options import MountConfig, Options, Size

# A daemon outlives the command that started it, which subprocess takes for a mistake.
pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    directory = tmp_path.resolve() / "data"
    directory.mkdir()
    return directory


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The log of daemons started by this test."""
    path = tmp_path / "state" / "daemon.log"
    monkeypatch.setattr(paths, "log_path", lambda mountpoint: str(path))
    return path


def pretend_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """Let `-m gpufs.supervisor` run `body`, which finds READY (a descriptor) and CONFIG (text)."""
    package = tmp_path / "pretend" / "gpufs"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    head = "import os, sys\nREADY = int(sys.argv[1])\nCONFIG = sys.stdin.read()\n"
    (package / "supervisor.py").write_text(head + body)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))


def start(data: Path) -> int:
    return mount.mount("s3://b/p", str(data), {"cache_size": "1GiB"})


# -- the daemon


def test_mount_returns_when_the_tree_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: Path, log: Path
) -> None:
    pretend_daemon(
        tmp_path,
        monkeypatch,
        "print(os.getcwd(), os.getsid(0) == os.getpid(), CONFIG, flush=True); os.write(READY, b'ready\\n')",
    )
    assert start(data) == 0
    cwd, own_session, config = log.read_text().split(" ", 2)
    assert (cwd, own_session) == ("/", "True")
    assert MountConfig.from_json(config) == MountConfig(
        "s3://b/p", str(data), Options(cache_size=Size(bytes=1 << 30))
    )


def test_mount_says_why_the_daemon_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: Path, log: Path
) -> None:
    pretend_daemon(tmp_path, monkeypatch, "os.write(READY, b'failed: no such bucket: b\\n'); sys.exit(1)")
    with pytest.raises(MountFailed) as caught:
        start(data)
    assert str(caught.value) == "no such bucket: b"


def test_mount_shows_the_log_of_a_daemon_that_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: Path, log: Path
) -> None:
    log.parent.mkdir()
    log.write_text("an older line\n")
    pretend_daemon(tmp_path, monkeypatch, "print('out of luck', file=sys.stderr); sys.exit(7)")
    with pytest.raises(MountFailed) as caught:
        start(data)
    assert "exit 7" in str(caught.value) and str(log) in str(caught.value)
    assert str(caught.value).endswith(":\nout of luck")


def test_a_log_that_cannot_be_written_does_not_stop_the_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(paths, "log_path", lambda mountpoint: str(tmp_path / "file" / "x.log"))
    pretend_daemon(tmp_path, monkeypatch, "os.write(READY, b'ready\\n')")
    assert start(data) == 0
    assert "no log is kept" in capsys.readouterr().err


def test_a_long_log_is_put_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: Path, log: Path
) -> None:
    log.parent.mkdir()
    log.write_bytes(b"x" * (10 << 20) + b"\n")
    pretend_daemon(tmp_path, monkeypatch, "os.write(READY, b'ready\\n')")
    assert start(data) == 0
    assert log.stat().st_size == 0
    assert (log.parent / "daemon.log.1").stat().st_size > 10 << 20


def test_ctrl_c_ends_the_daemon_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    pretend_daemon(
        tmp_path,
        monkeypatch,
        f"import signal\nwith open({str(fifo)!r}, 'w') as f: f.write(str(os.getpid()))\nsignal.pause()",
    )
    # Only the daemon gets the pretended package: the command takes its own from the current directory.
    command_line = [sys.executable, "-m", "gpufs", "mount", "s3://b", str(data)]
    try:
        with subprocess.Popen(command_line, cwd=Path(__file__).parents[3]) as command:
            daemon = int(fifo.read_text())
            command.send_signal(signal.SIGINT)
            assert command.wait(20) == 130
        with pytest.raises(ProcessLookupError):
            os.kill(daemon, 0)
    finally:
        Path(paths.log_path(str(data))).unlink(missing_ok=True)


# -- before it is started


@pytest.fixture
def no_daemon(monkeypatch: pytest.MonkeyPatch) -> list[MountConfig]:
    """The configurations for which a daemon would have been started."""
    started: list[MountConfig] = []
    monkeypatch.setattr(mount, "_start_daemon", lambda config: started.append(config) or 0)
    return started


def test_arguments_win_over_the_file(tmp_path: Path, data: Path, no_daemon: list[MountConfig]) -> None:
    file = tmp_path / "c.toml"
    file.write_text(
        f'source = "s3://file"\nmountpoint = {json.dumps(str(data))}\nregion = "a"\nprofile = "p"\n'
    )
    assert main(["mount", "--config", str(file)]) == 0
    assert main(["mount", "s3://arg", "--config", str(file), "-o", "region=b", "-o", "region=c,uid=5"]) == 0
    assert no_daemon == [
        MountConfig("s3://file", str(data), Options(region="a", profile="p")),
        MountConfig("s3://arg", str(data), Options(region="c", profile="p", uid=5)),
    ]


def test_a_relative_source_and_a_linked_mount_point_become_absolute(
    tmp_path: Path, data: Path, no_daemon: list[MountConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to("data")
    monkeypatch.chdir(tmp_path)
    assert main(["mount", "set/a", "link"]) == 0
    assert [(c.source, c.mountpoint) for c in no_daemon] == [(f"{tmp_path}/set/a", str(data))]


def test_words_without_effect_are_told(
    data: Path, no_daemon: list[MountConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["mount", "s3://b", str(data), "-o", "suid,_netdev"]) == 0
    assert capsys.readouterr().err == "gpufs: option 'suid' has no effect\n"


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ("cache_size=0", "cache_size is 0: nothing will be kept"),
        ("cache_size=1k", "cache_size is 1.00 KiB, which has no room for one piece of 4.00 MiB"),
        ("cache_size=4MiB", "no room for one piece"),
        ("min_free=100%", "min_free leaves the cache nothing"),
        ("min_free=1000PB", "min_free leaves the cache nothing"),
    ],
)
def test_limits_that_leave_the_cache_nothing_are_told(
    limits: str, says: str, data: Path, no_daemon: list[MountConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    """They are obeyed all the same. What a small cache may be meant to be is not remarked on."""
    assert main(["mount", "s3://b", str(data), "-o", f"cache_dir={data}/../new/cache,{limits}"]) == 0
    assert says in capsys.readouterr().err
    assert main(["mount", "s3://b", str(data), "-o", f"cache_dir={data}/../new/cache,cache_size=5M"]) == 0
    assert capsys.readouterr().err == ""
    assert len(no_daemon) == 2


def test_the_warnings_know_how_large_a_piece_is() -> None:
    assert mount._CHUNK == CHUNK


@pytest.mark.parametrize("source", ["s3:/bucket/x", "s3:bucket/x", "S3:///bucket/x"])
def test_an_address_with_a_wrong_number_of_slashes_is_not_taken_for_a_path(
    source: str, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The daemon, which knows addresses, says how it is written."""
    assert main(["mount", source, str(data)]) != 0
    said = capsys.readouterr().err
    assert "s3://bucket" in said and len(said.splitlines()) == 1


class MountTable:
    """A mount table in place of the kernel's; detach() takes the mount out of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *mounts_: Mount, dead: bool = False) -> None:
        self.mounts = list(mounts_)
        self.detached: list[tuple[Mount, bool]] = []
        monkeypatch.setattr(paths, "all_mounts", lambda: list(self.mounts))
        monkeypatch.setattr(mounts, "is_dead", lambda mount: dead)
        monkeypatch.setattr(mounts, "detach", self.detach)

    def detach(self, mount: Mount, *, lazy: bool) -> None:
        self.mounts.remove(mount)
        self.detached.append((mount, lazy))


def test_a_dead_gpufs_mount_is_cleaned_and_mounted_again(
    data: Path,
    no_daemon: list[MountConfig],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Case 20."""
    dead = Mount(str(data), "fuse.gpufs", "s3://old", 0)
    table = MountTable(monkeypatch, dead, dead=True)
    assert main(["mount", "s3://new", str(data)]) == 0
    assert table.detached == [(dead, True)]
    assert len(no_daemon) == 1
    assert capsys.readouterr().err == f"gpufs: removed the dead mount of s3://old on {data}\n"


@pytest.mark.parametrize(
    ("fstype", "says"),
    [
        ("fuse.gpufs", "is a mount point already (fuse.gpufs of x); unmount it first: gpufs umount "),
        ("nfs4", "is a mount point already (nfs4 of x)"),
        ("fuse.rclone", "is a mount point already (fuse.rclone of x)"),
    ],
)
def test_any_living_or_foreign_mount_is_left_alone(
    fstype: str,
    says: str,
    data: Path,
    no_daemon: list[MountConfig],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Case 20: refuses politely over any other mount."""
    table = MountTable(monkeypatch, Mount(str(data), fstype, "x", 0), dead=fstype != "fuse.gpufs")
    assert main(["mount", "s3://new", str(data)]) == 1
    assert says in capsys.readouterr().err
    assert table.detached == [] and no_daemon == []


def test_an_automount_point_may_be_mounted_on(
    data: Path, no_daemon: list[MountConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    MountTable(monkeypatch, Mount(str(data), "autofs", "systemd-1", 0))
    assert main(["mount", "s3://new", str(data)]) == 0
    assert len(no_daemon) == 1


def test_a_directory_inside_a_gpufs_mount_is_refused(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    MountTable(monkeypatch, Mount(str(data), "fuse.gpufs", "x", 0))
    assert main(["mount", "s3://new", f"{data}/sub"]) == 1
    assert "is inside the gpufs mount on" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("source", "on", "says"),
    [
        ("set", "set", "is the source itself, "),
        ("set", "set/sub", "is inside the source "),
        ("set", "set/sub/deeper", "is inside the source "),
        ("set/sub", "set", "contains the source "),
        ("set/sub/deeper", "set", "contains the source "),
        ("link", "set/sub", "is inside the source "),
        ("set/sub", "link", "contains the source "),
        ("set", "link/sub", "is inside the source "),
        ("link/sub/..", "link/../set", "is the source itself, "),
    ],
)
@pytest.mark.parametrize("form", ["{}", "file://{}", "file://localhost{}"])
def test_a_mount_point_and_a_source_that_hold_one_another_are_refused(
    source: str,
    on: str,
    says: str,
    form: str,
    tmp_path: Path,
    no_daemon: list[MountConfig],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The daemon would read its own mount, so the command says no, whatever links the paths go through."""
    base = tmp_path.resolve()
    (base / "set/sub/deeper").mkdir(parents=True)
    (base / "link").symlink_to("set")
    assert main(["mount", form.format(base / source), str(base / on)]) == 1
    said = capsys.readouterr().err
    assert says + os.path.realpath(base / source) in said and "apart" in said
    assert no_daemon == []


def test_a_mount_point_beside_its_source_is_fine(tmp_path: Path, no_daemon: list[MountConfig]) -> None:
    for name in ("set", "set2", "set2/on"):
        (tmp_path / name).mkdir()
    assert main(["mount", f"{tmp_path}/set", f"{tmp_path}/set2"]) == 0
    assert main(["mount", f"file://{tmp_path}/set", f"{tmp_path}/set2/on"]) == 0
    assert main(["mount", f"{tmp_path}/missing", f"{tmp_path}/set2/on"]) == 0, "the daemon says what is wrong"
    assert len(no_daemon) == 3


def test_a_cache_that_would_be_hidden_or_cached_is_refused(
    tmp_path: Path, no_daemon: list[MountConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    """Below the mount point it would be out of the daemon's own reach; in the source it would feed itself."""
    base = tmp_path.resolve()
    for name in ("set", "on/sub", "cache"):
        (base / name).mkdir(parents=True)
    (base / "link").symlink_to("on/sub")
    for cache in ("on", "on/sub", "on/new/deeper", "link", "link/new"):
        assert main(["mount", "s3://b", f"{base}/on", "-o", f"cache_dir={base}/{cache}"]) == 1
        assert f"would hide cache_dir={base}/{cache}" in capsys.readouterr().err
    assert main(["mount", f"{base}/set", f"{base}/on", "-o", f"cache_dir={base}/set/new"]) == 1
    assert "is inside the source" in capsys.readouterr().err
    assert no_daemon == []
    assert main(["mount", f"{base}/set", f"{base}/on", "-o", f"cache_dir={base}/cache"]) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a bind mount")
def test_a_source_under_another_name_by_a_bind_mount_is_recognised(
    tmp_path: Path, no_daemon: list[MountConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("set/sub", "alias"):
        (tmp_path / name).mkdir(parents=True)
    subprocess.run(["mount", "--bind", tmp_path / "set", tmp_path / "alias"], check=True)
    try:
        assert main(["mount", f"{tmp_path}/set", f"{tmp_path}/alias/sub"]) == 1
        assert "is inside the source" in capsys.readouterr().err
        assert main(["mount", f"{tmp_path}/set/sub", f"{tmp_path}/alias"]) == 1
        assert "is a mount point already" in capsys.readouterr().err
    finally:
        subprocess.run(["umount", tmp_path / "alias"], check=True)
    assert no_daemon == []


def test_a_missing_fuse_device_says_what_to_do(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    exists = os.path.exists
    monkeypatch.setattr(os.path, "exists", lambda path: path != "/dev/fuse" and exists(path))
    assert main(["mount", "s3://b", str(data)]) == 1
    assert "modprobe fuse" in (said := capsys.readouterr().err) and "--device /dev/fuse" in said


def test_a_fuse_device_for_root_only_says_what_to_do(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr(os.path, "exists", lambda path: True)
    assert main(["mount", "s3://b", str(data)]) == 1
    assert "you may not open /dev/fuse" in capsys.readouterr().err


def test_a_user_who_may_not_share_is_told_how(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(mount, "users_may_share", lambda: False)
    monkeypatch.setattr(os.path, "exists", lambda path: True)
    assert main(["mount", "s3://b", str(data), "-o", "allow_other"]) == 1
    assert "user_allow_other" in capsys.readouterr().err
