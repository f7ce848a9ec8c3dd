"""Case 20, at the kernel's end: a dead gpufs mount is told from a living or hung one, and detached."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufs.cli import main, mounts
from gpufs.control.paths import Mount, all_mounts, locate

pytestmark = [
    pytest.mark.fuse,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts with mount(2)"),
]


class RawMount:
    """A mount of type fuse.gpufs whose daemon is this descriptor: it never answers, closing it is death."""

    def __init__(self, directory: Path) -> None:
        self.point = str(directory)
        self.device: int | None = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        data = f"fd={self.device},rootmode=40000,user_id=0,group_id=0,allow_other"
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"s3://raw", os.fsencode(directory), b"fuse.gpufs", 7, data.encode()) != 0:
            raise OSError(ctypes.get_errno(), "mount(2)")

    def die(self) -> None:
        if self.device is not None:
            os.close(self.device)
            self.device = None

    def found(self) -> Mount | None:
        return locate(self.point, all_mounts())[1]


@pytest.fixture
def raw(tmp_path: Path) -> Iterator[RawMount]:
    point = tmp_path.resolve() / "da ta"
    point.mkdir()
    mount = RawMount(point)
    yield mount
    mount.die()
    if mount.found():
        subprocess.run(["umount", "-l", point], check=True)


def test_a_mount_whose_daemon_is_gone_is_dead(raw: RawMount) -> None:
    raw.die()
    mount = raw.found()
    assert mount is not None and (mount.source, mount.owner) == ("s3://raw", 0)
    assert mounts.is_dead(mount)


def test_a_mount_that_hangs_is_not_dead(raw: RawMount, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hung daemon may recover, and its readers with it: it is never cleaned away."""
    monkeypatch.setattr(mounts, "_PROBE_PATIENCE_S", 0.3)
    mount = raw.found()
    assert mount is not None and not mounts.is_dead(mount)


def test_umount_removes_a_dead_mount(raw: RawMount, capsys: pytest.CaptureFixture[str]) -> None:
    raw.die()
    assert main(["umount", raw.point]) == 0
    assert raw.found() is None
    assert capsys.readouterr().err == ""


def test_mount_removes_a_dead_mount_before_it_looks_at_the_directory(
    raw: RawMount, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gpufs.cli.mount._start_daemon", lambda config: 0)
    raw.die()
    assert main(["mount", "s3://new", raw.point]) == 0
    assert raw.found() is None
    assert capsys.readouterr().err == f"gpufs: removed the dead mount of s3://raw on {raw.point}\n"


def test_status_of_a_dead_mount_answers_at_once(raw: RawMount, capsys: pytest.CaptureFixture[str]) -> None:
    raw.die()
    assert main(["status", raw.point]) == 1
    assert "no gpufs daemon answers" in capsys.readouterr().err
