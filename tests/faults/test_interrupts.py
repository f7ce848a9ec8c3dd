"""Readers that are told to end while the source is silent: they end, and nobody else is disturbed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.conftest import Dataset
from tests.faults.data import check, read_all
from tests.mounts import Mounted, MountFactory, wait_until
from tests.servers import Fault, FaultProxy, S3Endpoint

# With fast_path=off nobody but libfuse reads the kernel's requests, and it does not tell of these.
pytestmark = pytest.mark.parametrize("fast_path", ["auto"])

SOON = 2.0  # seconds in which a program has ended
READ = "import sys; sys.stdout.buffer.write(open(sys.argv[1], 'rb').read())"
WITH_A_TIMER = f"""
import signal
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
signal.signal(signal.SIGTERM, lambda *_: None)
{READ}
signal.setitimer(signal.ITIMER_REAL, 0)
"""


def open_objects(mounted: Mounted) -> list[str]:
    """Files of the cache's objects that the processes of the mount have open."""
    found = []
    for pid in mounted.pids():
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                found.append(os.readlink(fd))
    return [path for path in found if "/objects/" in path or "/partial/" in path]


@pytest.mark.alone
def test_readers_that_are_told_to_end(
    dataset: Dataset, mount: MountFactory, proxy: Callable[[S3Endpoint], FaultProxy]
) -> None:
    """SIGKILL, Ctrl-C and SIGTERM end who waits at once, also after another signal did nothing.

    A program that catches a signal and goes on is not disturbed, and reads right when the source talks
    again.
    """
    between = proxy(dataset.server)
    mounted = mount(dataset.url, replace(dataset.server, url=between.url)).crawled()
    before = mounted.pids()
    between.add(Fault("stall", "GET", after=1000))
    names = ["large/0.bin", "large/1.bin", *(name for name in dataset.objects if name.startswith("train/"))]
    readers: list[subprocess.Popen[bytes]] = []

    def reader(*command: str) -> subprocess.Popen[bytes]:
        name = names[len(readers)]
        process = subprocess.Popen(
            [*command, str(mounted.path / name)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        readers.append(process)
        return process

    python, with_a_timer = (sys.executable, "-c", READ), (sys.executable, "-c", WITH_A_TIMER)
    ends = {
        reader("cat"): signal.SIGKILL,  # these two have a large file: they wait in read, not in open
        reader("cat"): signal.SIGINT,
        reader("cat"): signal.SIGKILL,
        reader(*python): signal.SIGKILL,
        reader(*with_a_timer): signal.SIGKILL,
        reader("cat"): signal.SIGINT,
        reader(*python): signal.SIGINT,
        reader("cat"): signal.SIGTERM,
    }
    undisturbed = reader(*with_a_timer)
    try:
        wait_until(
            lambda: all(any(name in s.target for s in between.seen("GET")) for name in names[: len(readers)]),
            "all to wait for the source",
        )
        undisturbed.send_signal(signal.SIGTERM)
        time.sleep(1)  # for timers to go off, which they do anyway
        assert all(process.poll() is None for process in readers)
        for process, number in ends.items():
            process.send_signal(number)
        began = time.monotonic()
        for process, number in ends.items():
            process.wait(SOON + began - time.monotonic())
            assert process.returncode == -number, f"{process.args}: {process.returncode}"
        assert undisturbed.poll() is None
        between.clear()
        assert undisturbed.communicate(timeout=20)[0] == dataset.objects[names[len(readers) - 1]]
        assert undisturbed.returncode == 0
    finally:
        between.clear()
        for process in readers:
            process.kill()
            process.communicate()
    check(mounted.path / names[0], dataset.objects[names[0]])
    read_all(mounted.path, dataset.objects)
    wait_until(lambda: not open_objects(mounted), "nothing to be open any more", 10)
    assert mounted.pids() == before, "nothing had to be started anew"
