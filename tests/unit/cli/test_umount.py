"""`gpufs umount`: who keeps a mount busy, and waiting for the daemon."""

from __future__ import annotations

import errno
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpufs.cli import main, mounts, umount
from gpufs.control import client, paths
from gpufs.control.paths import Mount
from gpufs.errors import MountFailed


@pytest.mark.parametrize(
    "uses",
    [
        "f = open(sys.argv[1] + '/file')",
        "os.chdir(sys.argv[1])",
        "import mmap; f = open(sys.argv[1] + '/file'); m = mmap.mmap(f.fileno(), 0, prot=1); f.close()",
    ],
)
def test_the_processes_that_use_a_tree_are_found(tmp_path: Path, uses: str) -> None:
    tree = tmp_path / "da ta"
    tree.mkdir()
    (tree / "file").write_bytes(bytes(mmap.PAGESIZE))
    code = f"import os, sys\n{uses}\nprint('using', flush=True)\nsys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tree)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as user:
        assert user.stdout is not None and user.stdout.readline() == "using\n"
        (found,) = mounts.holders(str(tree))
        assert found.startswith("python") and found.endswith(f"(pid {user.pid})")
        assert mounts.holders(str(tmp_path / "da")) == []
        user.communicate("")


def test_a_busy_tree_names_its_users_and_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts, "unmount", lambda where, lazy: os.strerror(errno.EBUSY))
    monkeypatch.setattr(mounts, "holders", lambda where: [f"python (pid {n})" for n in range(10)])
    with pytest.raises(MountFailed) as caught:
        mounts.detach(Mount("/data", "fuse.gpufs", "s3://b", 0), lazy=False)
    text = str(caught.value)
    assert "/data is busy: in use by python (pid 0), python (pid 1)" in text
    assert "and 2 more" in text and text.endswith("gpufs umount --lazy /data")


class Daemon:
    """A process in place of a daemon of /data: detaching ends it, as unmounting ends the real one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, obedient: bool = True) -> None:
        self.mount = Mount("/data", "fuse.gpufs", "s3://b", 0)
        self.process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        self.obedient = obedient
        self.detached: list[bool] = []
        monkeypatch.setattr(paths, "all_mounts", lambda: [self.mount])
        monkeypatch.setattr(client, "daemon_pid", lambda mount: self.process.pid)
        monkeypatch.setattr(mounts, "detach", self.detach)

    def detach(self, mount: Mount, *, lazy: bool) -> None:
        self.detached.append(lazy)
        if self.obedient:
            self.end()

    def end(self) -> None:
        self.process.communicate(b"\n")


def test_umount_waits_for_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = Daemon(monkeypatch)
    assert main(["umount", "/data/"]) == 0
    assert daemon.detached == [False]


def test_a_daemon_that_does_not_end_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(umount, "_MOMENT_S", 0.01)
    monkeypatch.setattr(umount, "_PATIENCE_S", 0.01)
    daemon = Daemon(monkeypatch, obedient=False)
    monkeypatch.setattr(umount, "_listens", lambda mount: False)
    try:
        assert main(["umount", "/data"]) == 1
        assert "its daemon is still busy" in capsys.readouterr().err
        assert main(["umount", "--lazy", "/data"]) == 0
        assert daemon.detached == [False, True]
    finally:
        daemon.end()


def test_a_daemon_that_serves_another_mount_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bind mount or a container holds the tree: this mount point is free all the same."""
    monkeypatch.setattr(umount, "_MOMENT_S", 0.01)
    daemon = Daemon(monkeypatch, obedient=False)
    try:
        assert main(["umount", "/data"]) == 0
        assert "its daemon goes on, because the tree is mounted elsewhere" in capsys.readouterr().err
    finally:
        daemon.end()


def test_a_dead_mount_is_detached_lazily(monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = Daemon(monkeypatch)

    def nobody(mount: Mount) -> int:
        raise client.NobodyListens("x")

    monkeypatch.setattr(client, "daemon_pid", nobody)
    monkeypatch.setattr(mounts, "is_dead", lambda mount: True)
    assert main(["umount", "/data"]) == 0
    assert daemon.detached == [True]


def test_a_path_inside_a_mount_is_not_the_mount(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(paths, "all_mounts", lambda: [Mount("/data", "fuse.gpufs", "s3://b", 0)])
    assert main(["umount", "/data/x"]) == 1
    assert "/data/x is inside the gpufs mount on /data" in capsys.readouterr().err
