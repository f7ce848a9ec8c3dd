"""Fixtures of the mount tests: real FUSE mounts made by the real command, and their sure end."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gpufs.control import client
from gpufs.control.paths import all_mounts, locate, log_path
from tests.servers import S3Endpoint

GPUFS = [sys.executable, "-m", "gpufs"]
MNT_DETACH = 2
DAEMON = re.compile(rb"gpufs\.(service|supervisor|fastpath|fetch)")
UNEXPECTED = re.compile(r"level=(ERROR|CRITICAL)|Traceback", re.MULTILINE)


class Mounted:
    """A source mounted in a directory of its own; `env` is what the daemon was started with."""

    def __init__(self, source: str, work: Path, options: dict[str, str], env: dict[str, str]) -> None:
        self.source = source
        self.path = work / "mnt"
        self.options = {"cache_dir": str(work / "cache"), "metadata_ttl": "forever"} | options
        self.cache = Path(self.options["cache_dir"])
        self.env = env
        self.may_log_errors = False
        self.path.mkdir(exist_ok=True)

    def mount(self) -> Mounted:
        done = self.command("mount", self.source, str(self.path), "-o", self.option_text())
        assert done.returncode == 0, done.stderr
        return self

    def option_text(self) -> str:
        return ",".join(f"{key}={value}" for key, value in self.options.items())

    def command(self, *arguments: str, timeout: float = 90) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*GPUFS, *arguments], capture_output=True, text=True, timeout=timeout, env=self.env
        )

    def status(self) -> dict[str, Any]:
        return ask(self, "status")

    def count(self, name: str) -> int:
        return int(self.status()[name])

    def refresh(self, path: str = "") -> None:
        done = self.command("refresh", str(self.path / path))
        assert done.returncode == 0, done.stderr

    def umount(self) -> None:
        done = self.command("umount", str(self.path))
        assert done.returncode == 0, done.stderr

    def remount(self) -> Mounted:
        self.umount()
        return self.mount()

    def kill(self) -> None:
        """kill -9 of everything behind the mount, and the dead mount point taken away."""
        for pid in reversed(self.pids()):  # the supervisor first, or it would start the others anew
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            wait_until(lambda pid=pid: not alive(pid), "the killed daemon to go")
        detach(self.path)

    def pids(self) -> list[int]:
        """Behind the mount: filesystem, fast path, fetch and supervisor; with "off" the first and third."""
        count = 2 if self.options["fast_path"] == "off" else 4
        wait_until(lambda: len(self.status()["pids"]) == count, "all processes to be known")
        return list(self.status()["pids"])

    def log(self) -> str:
        with suppress(FileNotFoundError):
            return Path(log_path(str(self.path))).read_text()
        return ""

    def crawled(self) -> Mounted:
        """Wait until the background listing has seen everything."""
        wait_until(lambda: self.status()["crawled"], "the background listing to end")
        return self


def ask(mounted: Mounted, op: str, **arguments: Any) -> dict[str, Any]:
    """What a command asks of the daemon, without the time that a command takes. Raises GpufsError."""
    mount = locate(str(mounted.path), all_mounts())[1]
    assert mount is not None, "the tree is not mounted any more"
    return client.call(mount, op, timeout=10, **arguments)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition: Callable[[], object], what: str, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds:g} s in vain for {what}"
        time.sleep(0.02)


def is_mounted(path: Path) -> bool:
    return any(mount.mountpoint == str(path) for mount in all_mounts())


def detach(path: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    while is_mounted(path):
        assert libc.umount2(os.fsencode(path), MNT_DETACH) == 0, os.strerror(ctypes.get_errno())


def daemons_of(path: Path) -> list[int]:
    """Processes whose environment or command names the mount point: what a mount may have left."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with suppress(OSError):
                if DAEMON.search((entry / "cmdline").read_bytes()) and (
                    os.fsencode(path) in (entry / "environ").read_bytes()
                ):
                    found.append(int(entry.name))
    return [pid for pid in found if alive(pid)]


MountFactory = Callable[..., Mounted]


@pytest.fixture(params=["auto", "off"])
def fast_path(request: pytest.FixtureRequest) -> str:
    """Every promise holds with the fast path and without it."""
    return str(request.param)


@pytest.fixture
def mount(fast_path: str, workplace: Path) -> Iterator[MountFactory]:
    """`mount("s3://bucket", server, key=value, ...)`: mounted at once; all of it is gone after the test.

    `work=` names a directory to mount in (for two mounts that share one), `start=False` only prepares.
    """
    if not os.path.exists("/dev/fuse"):
        pytest.fail("mount tests need /dev/fuse, and this machine has none")
    made: list[tuple[Mounted, Path]] = []
    logs: list[tuple[Mounted, str]] = []

    def make(source: str, server: S3Endpoint | None = None, *, start: bool = True, **options: str) -> Mounted:
        work = Path(tempfile.mkdtemp(prefix="mount-", dir=workplace))
        env = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
        env["GPUFS_TEST_MOUNT"] = str(work / "mnt")
        if server is not None:
            env |= server.env()
            options = {"endpoint_url": server.url, "region": server.region} | options
        options = {"fast_path": fast_path} | options
        mounted = Mounted(source, work, options, env)
        made.append((mounted, work))
        return mounted.mount() if start else mounted

    try:
        yield make
        logs = [(m, m.log()) for m, _ in made]
    finally:
        left = []
        for mounted, work in made:
            detach(mounted.path)
            with suppress(AssertionError):
                wait_until(lambda m=mounted: not daemons_of(m.path), "the daemon to end", 30)
            for pid in daemons_of(mounted.path):
                left.append(pid)
                os.kill(pid, signal.SIGKILL)
            shutil.rmtree(work, ignore_errors=True)
    assert not left, f"processes left after unmounting: {left}"
    for mounted, text in logs:
        assert mounted.may_log_errors or not UNEXPECTED.search(text), f"unexpected errors in the log:\n{text}"


@pytest.fixture
def tree_of() -> Callable[[Path], dict[str, bytes]]:
    """`tree_of(directory)`: every file below it with its bytes, by relative path."""

    def read(root: Path) -> dict[str, bytes]:
        return {
            str(path.relative_to(root)): path.read_bytes()
            for path in sorted(root.rglob("*"))
            if path.is_file()
        }

    return read
