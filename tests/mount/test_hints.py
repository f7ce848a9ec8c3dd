"""Announced orders over a real mount: what is announced is here when it is opened."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpufs import hints
from tests.mounts import Mounted, MountFactory, wait_until
from tests.servers import BUCKET, listing_server

pytestmark = pytest.mark.fuse

FILES = 300
NAMES = [f"class{number % 3}/{number:04}" for number in range(FILES)]
OBJECTS = {name.encode(): name.encode() * 100 for name in NAMES}


def prefetched(mounted: Mounted, count: int) -> None:
    wait_until(lambda: mounted.count("prefetched") >= count, f"{count} files to be fetched")


def command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def announced_by(user: int, mounted: Mounted, names: list[str]) -> bool:
    """Another process, of that user, with nothing but the one module."""
    code = (
        "import os, runpy, sys; announce = runpy.run_path(sys.argv[1])['announce']; uid = int(sys.argv[2]); "
        "os.setgroups([]); os.setgid(uid); os.setuid(uid); print(announce(sys.argv[3], sys.argv[4:]))"
    )
    module = Path(hints.__file__)
    copy = mounted.path.parent / "hints.py"
    copy.write_text(module.read_text())
    os.chmod(copy.parent, 0o755)
    done = subprocess.run(
        [sys.executable, "-c", code, str(copy), str(user), str(mounted.path), *names],
        capture_output=True,
        text=True,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
    return done.stdout == "True\n"


def test_an_announced_order_is_read_without_a_miss(mount: MountFactory) -> None:
    order = random.Random(1).sample(NAMES, FILES)
    with listing_server(OBJECTS) as (server, endpoint):
        mounted = mount(f"s3://{BUCKET}", endpoint)
        assert hints.announce(mounted.path, [mounted.path / name for name in order])
        prefetched(mounted, 256)
        assert [(mounted.path / name).read_bytes() for name in order[:200]] == [
            OBJECTS[name.encode()] for name in order[:200]
        ]
        prefetched(mounted, FILES)
        for name in order[200:]:
            assert (mounted.path / name).read_bytes() == OBJECTS[name.encode()]
        # The last opens may still be on their way to the one who counts.
        wait_until(lambda: mounted.status()["orders"][0]["position"] == FILES, "the order to be read")
        status = mounted.status()
        assert (status["misses"], status["hits"], server.counts["GET"]) == (0, FILES, FILES)
        assert f"announced by process {os.getpid()} of uid {os.geteuid()}: 300 of 300 files read" in (
            mounted.command("status", str(mounted.path)).stdout
        )

        # A fetch process that was started anew is told of what is announced then, in another directory.
        mounted.command("evict", str(mounted.path))
        (fetching,) = [pid for pid in mounted.pids() if b"gpufs.fetch.process" in command_line(pid)]
        os.kill(fetching, signal.SIGKILL)
        before = mounted.count("prefetched")
        assert hints.announce(str(mounted.path / "class1"), [name[7:] for name in NAMES if name[5] == "1"])
        prefetched(mounted, before + FILES // 3)


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_other_users_announce_what_they_may_read(mount: MountFactory) -> None:
    with listing_server(OBJECTS) as (_, endpoint):
        mounted = mount(f"s3://{BUCKET}", endpoint)
        assert announced_by(65534, mounted, NAMES[:20])
        prefetched(mounted, 20)
        private = mount(f"s3://{BUCKET}", endpoint, dir_mode="0700", cache_dir=f"{mounted.cache}2")
        assert not announced_by(65534, private, NAMES[:20]) and announced_by(0, private, NAMES[:20])
        assert not announced_by(65534, mount("/usr/share/doc", allow_other="false"), ["x"])
