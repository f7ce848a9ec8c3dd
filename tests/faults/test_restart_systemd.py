"""Under systemd the mount outlives its supervisor: the test plays systemd's part of the protocol."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.faults.conftest import Dataset
from tests.faults.crashes import assert_nothing_is_left_open, reading
from tests.faults.data import check, read_all
from tests.mounts import Mounted, MountFactory, alive, ask, daemons_of, detach, is_mounted, wait_until

pytestmark = pytest.mark.parametrize("fast_path", ["auto"])

# Execs the command after it with the descriptors, from 3 on, and variables as systemd gives them. Arguments:
# descriptors, their names, the command.
EXEC = """
import os, sys
fds, names, command = [int(f) for f in sys.argv[1].split(",") if f], sys.argv[2], sys.argv[3:]
high = [os.dup2(fd, 100 + n) for n, fd in enumerate(fds)]
for n, fd in enumerate(high):
    os.dup2(fd, 3 + n, inheritable=True)
    os.close(fd)
if fds:
    os.environ |= {"LISTEN_FDS": str(len(fds)), "LISTEN_FDNAMES": names, "LISTEN_PID": str(os.getpid())}
os.execv(command[0], command)
"""


class Systemd:
    """A service manager of one service, with a descriptor store of which the service is told, or not."""

    def __init__(self, mounted: Mounted, work: Path, *, keeps: bool = True) -> None:
        self._mounted = mounted
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(work / "notify"))
        self._socket.settimeout(30)
        self._env = mounted.env | {"NOTIFY_SOCKET": str(work / "notify")}
        if keeps:
            self._env["FDSTORE"] = "16"
        self.store: dict[str, int] = {}
        self.service: subprocess.Popen[bytes] | None = None

    def start(self) -> int:
        """Start the service and wait until it is ready; its pid."""
        mounted = self._mounted
        names, fds = list(self.store), list(self.store.values())
        command = [sys.executable, "-m", "gpufs", "mount", "--foreground", mounted.source, str(mounted.path)]
        command += ["-o", mounted.option_text()]
        with open(self._mounted.path.parent / "log", "ab") as log:
            self.service = subprocess.Popen(
                [sys.executable, "-c", EXEC, ",".join(map(str, fds)), ":".join(names), *command],
                env=self._env,
                pass_fds=fds,
                stderr=log,
            )
        self.wait_for("READY=1")
        return self.service.pid

    def wait_for(self, line: str) -> None:
        while line not in self._receive():
            pass

    def _receive(self) -> list[str]:
        message, fds, _, _ = socket.recv_fds(self._socket, 4096, 8)
        lines = message.decode().split("\n")
        name = next((text.removeprefix("FDNAME=") for text in lines if text.startswith("FDNAME=")), "")
        if "FDSTORE=1" in lines:
            assert len(fds) == 1 and name and ":" not in name
            self.store[name] = fds[0]
        if "FDSTOREREMOVE=1" in lines and name in self.store:
            os.close(self.store.pop(name))
        return lines

    def log(self) -> str:
        return (self._mounted.path.parent / "log").read_text()

    def close(self) -> None:
        if self.service is not None and self.service.poll() is None:
            self.service.kill()
            self.service.wait()
        for fd in self.store.values():
            os.close(fd)
        self.store.clear()
        self._socket.close()


@pytest.fixture
def service(dataset: Dataset, mount: MountFactory, tmp_path: Path) -> Iterator[Callable[..., Systemd]]:
    made: list[Systemd] = []

    def make(mounted: Mounted, *, keeps: bool = True) -> Systemd:
        made.append(Systemd(mounted, tmp_path, keeps=keeps))
        return made[-1]

    yield make
    for each in made:
        with closing(each):
            pass


ServiceFactory = Callable[..., Systemd]


@pytest.mark.alone
def test_restarts_and_crashes_of_the_service_keep_the_mount(
    dataset: Dataset, mount: MountFactory, service: ServiceFactory, tmp_path: Path
) -> None:
    """SIGTERM (systemctl restart) and kill -9 of the supervisor: its successor goes on, no reader notices."""
    mounted = mount(dataset.url, dataset.server, start=False)
    systemd = service(mounted)
    first = systemd.start()
    assert len(systemd.store) == 2
    mounted.crawled()
    read_all(mounted.path, {name: data for name, data in dataset.objects.items() if name < "train/04"})
    with reading(mounted, dataset.objects, tmp_path) as load:
        for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGTERM):
            assert systemd.service is not None
            old = ask(mounted, "status")["pids"]
            systemd.service.send_signal(number)
            assert systemd.service.wait(20) == (0 if number == signal.SIGTERM else -number)
            assert is_mounted(mounted.path)
            pid = systemd.start()
            assert len(systemd.store) == 2
            wait_until(lambda old=old: not any(map(alive, old[:2])), "the old processes to end")
            assert ask(mounted, "status")["supervisor"] == pid != first
        # And an upgrade in place stays known to systemd.
        done = mounted.command("restart", str(mounted.path))
        assert done.returncode == 0, done.stderr
    assert not load.errors
    print(f"{load.calls} calls, the longest {load.longest:.2f} s: {load.what}")
    assert load.longest < 3
    assert_nothing_is_left_open(pid)
    systemd.service.send_signal(signal.SIGTERM)
    assert systemd.service.wait(20) == 0 and is_mounted(mounted.path)
    systemd.start()
    check(mounted.path / "large/0.bin", dataset.objects["large/0.bin"])
    mounted.umount()  # what the unit's ExecStop does when it is not a restart
    assert systemd.service.wait(20) == 0
    wait_until(lambda: not daemons_of(mounted.path), "everything to end")
    assert "Traceback" not in systemd.log()


def test_other_options_need_a_mount_of_their_own(
    dataset: Dataset, mount: MountFactory, service: ServiceFactory
) -> None:
    """What the kernel was told cannot be changed behind it: the old tree is detached, a new one mounted."""
    mounted = mount(dataset.url, dataset.server, start=False)
    systemd = service(mounted)
    systemd.start()
    check(mounted.path / "large/0.bin", dataset.objects["large/0.bin"])
    assert systemd.service is not None
    for file_mode in ("0400", "0440"):
        systemd.service.send_signal(signal.SIGTERM)
        systemd.service.wait(20)
        mounted.options["file_mode"] = file_mode
        systemd.start()
        assert (mounted.path / "large/0.bin").stat().st_mode & 0o777 == int(file_mode, 8)
        assert len(systemd.store) == 2, "what is of no use was given back"
    assert Path("/proc/self/mountinfo").read_bytes().count(bytes(mounted.path)) == 1
    mounted.umount()
    wait_until(lambda: not daemons_of(mounted.path), "everything to end")


def test_a_mount_that_died_meanwhile_is_mounted_anew(
    dataset: Dataset, mount: MountFactory, service: ServiceFactory
) -> None:
    mounted = mount(dataset.url, dataset.server, start=False)
    systemd = service(mounted)
    systemd.start()
    assert systemd.service is not None
    systemd.service.send_signal(signal.SIGTERM)
    systemd.service.wait(20)
    detach(mounted.path)  # not umount(8), which would ask the tree, and nobody answers
    systemd.start()
    check(mounted.path / "large/0.bin", dataset.objects["large/0.bin"])
    mounted.umount()
    wait_until(lambda: not daemons_of(mounted.path), "everything to end")


def test_without_a_store_a_stop_unmounts(
    dataset: Dataset, mount: MountFactory, service: ServiceFactory
) -> None:
    """An older systemd, or a unit that does not ask for it: READY and STOPPING are told, SIGTERM unmounts."""
    mounted = mount(dataset.url, dataset.server, start=False)
    systemd = service(mounted, keeps=False)
    systemd.start()
    assert not systemd.store and systemd.service is not None
    systemd.service.send_signal(signal.SIGTERM)
    systemd.wait_for("STOPPING=1")
    assert systemd.service.wait(20) == 0
    assert not is_mounted(mounted.path)
    wait_until(lambda: not daemons_of(mounted.path), "everything to end")
