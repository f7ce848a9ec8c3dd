"""A user who may not mount by himself: fusermount3 does it, and crashes are repaired all the same."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.faults.crashes import children, kill
from tests.faults.data import content
from tests.machine import device_for_all
from tests.mounts import GPUFS, alive, daemons_of, detach, is_mounted, wait_until

pytestmark = [
    pytest.mark.fuse,
    pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user"),
]

NOBODY = 65534
FILES = {f"f{n}": content(f"f{n}", 200_000 + n) for n in range(20)} | {"large": content("large", 9 << 20)}
READ = """
import hashlib, sys
for name in sys.argv[2:]:
    print(hashlib.md5(open(f"{sys.argv[1]}/{name}", "rb").read()).hexdigest())
"""


# This Python may lie where only root can look: the one capability he keeps lets him read.
BECOME = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
BECOME += ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]


def run(command: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, cwd="/")


class User:
    """Commands of an ordinary user with a home of his own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.data, self.path = home / "data", home / "mnt"
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "XDG_"))}
        self.env |= {"HOME": str(home), "XDG_RUNTIME_DIR": str(home), "GPUFS_TEST_MOUNT": str(self.path)}
        for directory in (self.data, self.path):
            directory.mkdir()
        for name, data in FILES.items():
            (self.data / name).write_bytes(data)
        for path in (home, *home.rglob("*")):
            os.chown(path, NOBODY, NOBODY)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return run([*BECOME, *command], self.env)

    def gpufs(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run(*GPUFS, *arguments)


@pytest.fixture
def user(workplace: Path) -> Iterator[User]:
    for tool in ("setpriv", "fusermount3"):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool}")
    home = Path(tempfile.mkdtemp(prefix="user-", dir=workplace))
    user = User(home)
    try:
        with device_for_all():
            yield user
    finally:
        detach(user.path)
        with suppress(AssertionError):
            wait_until(lambda: not daemons_of(user.path), "the daemon to end", 10)
        shutil.rmtree(home)
    assert not daemons_of(user.path)


def read(user: User) -> None:
    """Everything, by the user: without allow_other root may not."""
    done = user.run(sys.executable, "-c", READ, str(user.path), *FILES)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [hashlib.md5(data).hexdigest() for data in FILES.values()]


def test_a_user_mounts_crashes_restarts_and_unmounts(user: User) -> None:
    done = user.gpufs("mount", str(user.data), str(user.path))
    assert done.returncode == 0, done.stderr
    status = json.loads(user.gpufs("status", str(user.path), "--json").stdout)
    assert status["fast_path"] and not status["passthrough"]
    supervisor = status["supervisor"]
    read(user)
    for victims in (("fastpath",), ("filesystem",), ("filesystem", "fastpath")):
        old = children(supervisor)
        kill(supervisor, *victims)
        read(user)
        assert not {*old.values()} & {*children(supervisor).values()}
    done = user.gpufs("restart", str(user.path))
    assert done.returncode == 0, done.stderr
    read(user)
    done = user.gpufs("umount", str(user.path))
    assert done.returncode == 0, done.stderr
    assert not is_mounted(user.path)
    wait_until(lambda: not alive(supervisor) and not daemons_of(user.path), "everything to end", 10)


def test_a_signal_unmounts_for_a_user_too(user: User) -> None:
    assert user.gpufs("mount", str(user.data), str(user.path)).returncode == 0
    supervisor = json.loads(user.gpufs("status", str(user.path), "--json").stdout)["supervisor"]
    with open(f"/proc/{supervisor}/status") as file:
        assert f"\nUid:\t{NOBODY}\t" in file.read()
    os.kill(supervisor, signal.SIGTERM)
    wait_until(lambda: not is_mounted(user.path) and not daemons_of(user.path), "everything to end", 10)


@pytest.mark.parametrize("who", ["root", "user"])
def test_without_the_right_to_mount_it_says_so(user: User, who: str) -> None:
    """As in a container without CAP_SYS_ADMIN: one line that says what to do, and nothing is left."""
    # fusermount3 is of no use when set-user-id programs get no rights.
    bounded = ["setpriv", "--bounding-set=-sys_admin"] if who == "root" else [*BECOME, "--no-new-privs"]
    options = f"cache_dir={user.home}/cache-{who}"
    done = run([*bounded, *GPUFS, "mount", str(user.data), str(user.path), "-o", options], user.env)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1 and f"cannot mount on {user.path}" in done.stderr, done.stderr
    assert "--cap-add SYS_ADMIN" in done.stderr
    assert not is_mounted(user.path)
    wait_until(lambda: not daemons_of(user.path), "everything to end", 10)
