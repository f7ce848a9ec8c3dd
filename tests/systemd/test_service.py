"""gpufs@.service under a real systemd: boot, restart, crash, stop, and failures that can be seen."""

from __future__ import annotations

import os
import random
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.mounts import wait_until
from tests.systemd.booted import Booted, booted

pytestmark = pytest.mark.fuse

SERVICE = "gpufs@demo.service"
GPUFS = str(Path(sys.executable).with_name("gpufs"))
EXPOSURE = 53  # tenths, as `systemd-analyze security` counts; without any hardening 96


class Host:
    """A machine with gpufs installed, and a data set to be mounted by gpufs@demo."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.mountpoint = work / "mnt"
        self.files = {f"{n:03}": os.urandom(random.Random(n).randrange(200_000)) for n in range(60)}
        self.files["large"] = os.urandom(9 << 20)
        for directory in ("data", "mnt", "cache"):
            (work / directory).mkdir()
        for name, content in self.files.items():
            (work / "data" / name).write_bytes(content)

    def configure(self, systemd: Booted, name: str = "demo", **changed: str) -> None:
        settings = {
            "source": f"{self.work}/data",
            "mountpoint": str(self.mountpoint),
            "cache_dir": f"{self.work}/cache",
        }
        text = "".join(f'{key} = "{value}"\n' for key, value in (settings | changed).items())
        systemd.path(f"/etc/gpufs/{name}.toml").write_text(text)

    def is_mounted(self, systemd: Booted) -> bool:
        return f" {self.mountpoint} fuse.gpufs " in systemd.path("/proc/1/mounts").read_text()

    def check(self, systemd: Booted) -> None:
        tree = systemd.path(self.mountpoint)
        assert {path.name: path.read_bytes() for path in tree.iterdir()} == self.files


@pytest.fixture
def host(workplace: Path) -> Iterator[Host]:
    work = Path(tempfile.mkdtemp(prefix="systemd-", dir=workplace))
    yield Host(work)
    shutil.rmtree(work)


@pytest.fixture
def systemd(host: Host) -> Iterator[Booted]:
    """Booted, with gpufs installed and configured."""
    with booted(host.work) as systemd:
        systemd.run(GPUFS, "install")
        host.configure(systemd)
        yield systemd


@contextmanager
def reading(host: Host, systemd: Booted) -> Iterator[list[float]]:
    """Readers of everything, in any order, meanwhile; the seconds each file took. None may see an error."""
    took: list[float] = []
    errors: list[str] = []
    over = threading.Event()

    def read(seed: int) -> None:
        choose = random.Random(seed)
        tree = systemd.path(host.mountpoint)
        while not over.is_set():
            name = choose.choice(list(host.files))
            began = time.monotonic()
            try:
                if (tree / name).read_bytes() != host.files[name]:
                    errors.append(f"{name}: wrong bytes")
            except OSError as error:
                errors.append(str(error))
            took.append(time.monotonic() - began)

    readers = [threading.Thread(target=read, args=[seed]) for seed in range(3)]
    for reader in readers:
        reader.start()
    try:
        yield took
    finally:
        over.set()
        for reader in readers:
            reader.join()
    assert took and not errors, errors[:3]


def test_a_service_is_enabled_restarted_and_stopped(host: Host, systemd: Booted) -> None:
    """enable --now mounts; restart, crash and reload are not noticed by readers; stop unmounts."""
    systemd.run("systemctl", "enable", "--now", SERVICE)
    assert host.is_mounted(systemd)
    host.check(systemd)
    assert f"{host.work}/data on {host.mountpoint}" in systemd.run("systemctl", "status", SERVICE).stdout
    with reading(host, systemd) as took:
        for disturb in ("restart", "crash", "reload", "restart"):
            before, main = len(took), systemd.show(SERVICE, "MainPID")
            if disturb == "crash":
                systemd.run("kill", "-KILL", main)
                wait_until(lambda main=main: systemd.show(SERVICE, "MainPID") not in (main, "0"), "the next")
            else:
                systemd.run("systemctl", disturb, SERVICE)
            wait_until(lambda: systemd.show(SERVICE, "ActiveState") == "active", "the service to be back")
            wait_until(lambda before=before: len(took) > before + 20, "readers to go on")
    print(f"{len(took)} files, the longest {max(took):.1f} s")
    assert systemd.show(SERVICE, "NFileDescriptorStore") == "2"
    systemd.run("systemctl", "stop", SERVICE)
    assert not host.is_mounted(systemd)
    assert systemd.show(SERVICE, "Result") == "success"
    assert systemd.show(SERVICE, "NFileDescriptorStore") == "0"
    commands = "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"
    wait_until(lambda: "-m gpufs" not in systemd.run("sh", "-c", commands).stdout, "all processes to end")


def test_it_is_mounted_at_boot(host: Host) -> None:
    with booted(host.work) as systemd:
        systemd.run(GPUFS, "install")
        unit = systemd.path(f"/etc/systemd/system/{SERVICE.replace('demo', '')}").read_text()
    shutil.rmtree(host.work / "over")
    wants = host.work / "units" / "multi-user.target.wants"
    wants.mkdir()
    (host.work / "units" / "gpufs@.service").write_text(unit.replace("/etc/gpufs/", f"{host.work}/"))
    (wants / SERVICE).symlink_to("/etc/systemd/system/gpufs@.service")
    settings = (
        f'source = "{host.work}/data"\nmountpoint = "{host.mountpoint}"\ncache_dir = "{host.work}/cache"\n'
    )
    (host.work / "demo.toml").write_text(settings)
    with booted(host.work) as systemd:
        host.check(systemd)


def test_a_supervisor_that_hangs_is_replaced(host: Host, systemd: Booted) -> None:
    drop_in = systemd.path(f"/etc/systemd/system/{SERVICE}.d")
    drop_in.mkdir()
    (drop_in / "soon.conf").write_text("[Service]\nWatchdogSec=12\n")
    systemd.run("systemctl", "daemon-reload")
    systemd.run("systemctl", "start", SERVICE)
    first = systemd.show(SERVICE, "MainPID")
    with reading(host, systemd):
        systemd.run("kill", "-STOP", first)
        wait_until(lambda: systemd.show(SERVICE, "MainPID") not in (first, "0"), "another supervisor")
        wait_until(lambda: systemd.show(SERVICE, "ActiveState") == "active", "the service to be back")
    host.check(systemd)


def test_a_failure_is_told_by_status(host: Host, systemd: Booted) -> None:
    """What is wrong, in `systemctl status`; what a user has to mend is not tried again and again."""
    host.configure(systemd, source=f"{host.work}/nowhere")
    assert systemd.run("systemctl", "start", SERVICE, check=False).returncode != 0
    assert f"{host.work}/nowhere" in systemd.show(SERVICE, "StatusText")
    host.configure(systemd)  # it is tried again by itself
    wait_until(lambda: host.is_mounted(systemd), "the next try")
    host.configure(systemd, "typo", cache_sise="1GiB")
    assert systemd.run("systemctl", "start", "gpufs@typo", check=False).returncode != 0
    assert (
        "did you mean 'cache_size'?" in systemd.run("systemctl", "status", "gpufs@typo", check=False).stdout
    )
    assert systemd.show("gpufs@typo", "ActiveState") == "failed"


def test_the_unit_is_sound(host: Host, systemd: Booted) -> None:
    done = systemd.run("systemd-analyze", "verify", f"/etc/systemd/system/{SERVICE}")
    assert not done.stderr, done.stderr
    systemd.run("systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE}", SERVICE)


def test_the_exporter_gives_the_figures_of_the_mounts(host: Host, systemd: Booted) -> None:
    done = systemd.run("systemd-analyze", "verify", "/etc/systemd/system/gpufs-exporter.service")
    assert not done.stderr, done.stderr
    systemd.run("systemctl", "enable", "--now", SERVICE)
    systemd.run("systemctl", "enable", "--now", "gpufs-exporter")
    host.check(systemd)
    scrape = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:9400/metrics').read().decode())"

    def is_up() -> bool:
        found = systemd.run(sys.executable, "-c", scrape, check=False).stdout
        return re.search(rf'^gpufs_up{{mountpoint="{host.mountpoint}",.*}} 1$', found, re.M) is not None

    wait_until(is_up, "the exporter to see the mount")
    systemd.run("systemctl", "stop", "gpufs-exporter")
    assert systemd.show("gpufs-exporter", "Result") == "success"


def test_installing_can_be_undone(host: Host, systemd: Booted) -> None:
    unit = systemd.path("/etc/systemd/system/gpufs@.service")
    assert f"ExecStart={GPUFS} mount" in unit.read_text()
    assert systemd.run("mount", "-t", "gpufs", f"{host.work}/data", str(host.mountpoint), "-o",
                       f"cache_dir={host.work}/cache").returncode == 0  # fmt: skip
    host.check(systemd)
    systemd.run("umount", str(host.mountpoint))
    systemd.run(GPUFS, "uninstall")
    assert not unit.exists() and not systemd.path("/usr/sbin/mount.gpufs").exists()
    assert systemd.path("/etc/gpufs/demo.toml").exists()
