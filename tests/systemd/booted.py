"""A real systemd as the init of namespaces of its own, with no units but those of the test.

It has its own processes, mounts, control groups, /run and /etc/systemd, and what it writes into /etc and
/usr/sbin is its own; other files and the network are this machine's. Whatever it has started ends with it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.machine import held
from tests.mounts import wait_until
from tests.servers.process import die_with_parent

SYSTEMD = next((p for p in ("/lib/systemd/systemd", "/usr/lib/systemd/systemd") if os.path.exists(p)), "")
# What units depend on by default; there is nothing behind them here.
TARGETS = "sysinit basic network-online remote-fs-pre remote-fs multi-user shutdown umount local-fs".split()

# A control group of its own, which the namespace of control groups then has as its root. Mounts of other
# tests are let go: here they would live on after their end.
_APART = """
set -e
mount --make-rprivate /
umount --all --lazy --types fuse.gpufs || true
mount -t tmpfs tmpfs /run
mkdir /run/groups
mount -t cgroup2 cgroup2 /run/groups
mkdir /run/groups/{name}
echo $$ > /run/groups/{name}/cgroup.procs
exec unshare --cgroup bash {work}/init
"""
_CLEAR = """
mount -t cgroup2 cgroup2 /mnt
find /mnt/{name} -depth -type d -exec rmdir {{}} +
"""
_INIT = """
set -e
mount -t tmpfs tmpfs {work}/over
for place in etc usr/sbin; do
    mkdir -p {work}/over/$place/upper {work}/over/$place/work
    mount -t overlay overlay /$place \
        -o lowerdir=/$place,upperdir={work}/over/$place/upper,workdir={work}/over/$place/work
done
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /etc/systemd
mkdir /etc/systemd/system
mount -t proc proc /proc
umount -l /sys/fs/cgroup 2>/dev/null || true
mount -t cgroup2 cgroup2 /sys/fs/cgroup
cp -r {work}/units/. /etc/systemd/system
exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin SYSTEMD_LOG_TARGET=console \\
    SYSTEMD_UNIT_PATH=/etc/systemd/system SYSTEMD_GENERATOR_PATH=/nowhere \\
    SYSTEMD_ENVIRONMENT_GENERATOR_PATH=/nowhere \\
    {systemd} --system --unit=multi-user.target
"""


class Booted:
    def __init__(self, pid: int) -> None:
        self.pid = pid  # of systemd, as seen from here

    def run(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """A command inside."""
        done = subprocess.run(
            ["nsenter", "-t", str(self.pid), "-m", "-p", "--", *command],
            capture_output=True,
            text=True,
            timeout=90,
            env={"PATH": os.environ["PATH"], "SYSTEMD_PAGER": ""},
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    def show(self, unit: str, property: str) -> str:
        return self.run("systemctl", "show", "-p", property, "--value", unit).stdout.strip()

    def path(self, path: Path | str) -> Path:
        """A path inside as it can be reached from here."""
        return Path(f"/proc/{self.pid}/root{path}")


@contextmanager
def booted(work: Path) -> Iterator[Booted]:
    """systemd with nothing but targets, and what is in `work`/units; `work` is for its files and log."""
    with held("/sbin", unchanged=True), _booted(work) as systemd:  # it is the lower layer of an overlay
        yield systemd


@contextmanager
def _booted(work: Path) -> Iterator[Booted]:
    assert SYSTEMD and shutil.which("systemctl"), "these tests need systemd (apt-get install systemd)"
    (work / "over").mkdir()
    units = work / "units"
    units.mkdir(exist_ok=True)
    for target in TARGETS:
        (units / f"{target}.target").write_text("[Unit]\nDefaultDependencies=no\n")
    (work / "init").write_text(_INIT.format(work=work, systemd=SYSTEMD))
    with open(work / "log", "wb") as log:
        outer = subprocess.Popen(
            [
                "unshare",
                "-m",
                "-p",
                "-f",
                "--kill-child",
                "bash",
                "-c",
                _APART.format(name=work.name, work=work),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
    try:
        wait_until(lambda: _child_of(outer), "the namespaces")
        systemd = Booted(_child_of(outer))

        def is_up() -> bool:
            assert outer.poll() is None, (work / "log").read_text()
            if not systemd.path("/run/systemd/private").exists():
                return False
            return systemd.run("systemctl", "is-system-running", check=False).stdout.strip() == "running"

        wait_until(is_up, "systemd to be up", 30)
        yield systemd
    finally:
        outer.send_signal(signal.SIGKILL)  # and with it all that is inside
        outer.wait()
        clear = _CLEAR.format(name=work.name)
        wait_until(
            lambda: subprocess.run(["unshare", "-m", "sh", "-c", clear], capture_output=True).returncode == 0,
            "the control groups to be empty",
        )


def _child_of(process: subprocess.Popen[bytes]) -> int:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(children[0]) if children else 0
