"""The fetch process may die or be busy at any moment: who reads or unmounts does not notice."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.conftest import Dataset
from tests.faults.crashes import Held, evict, moment, reading
from tests.faults.data import content, drop_pages, read_all
from tests.faults.test_crash import assert_nothing_torn, assert_sane
from tests.mounts import Mounted, MountFactory, alive, ask, daemons_of, is_mounted, wait_until
from tests.servers import Fault, FaultProxy, S3Endpoint
from tests.unit.cache.helpers import bytes_on_disk

COLD = ["train/04", "train/05", "train/06", "train/07", "large/2.bin"]  # half of the bytes
KILLS = 4
LONGEST_PAUSE = 3.0  # seconds
UMOUNT_PATIENCE = 10.0


def fetch_process(mounted: Mounted, before: int = 0) -> int:
    """The pid of the fetch process; 0 while there is none but `before`."""
    position = -1 if mounted.options["fast_path"] == "off" else -2
    status = ask(mounted, "status")
    if len(status["pids"]) != (2 if mounted.options["fast_path"] == "off" else 4):
        return 0
    pid = int(status["pids"][position])
    command = Path(f"/proc/{pid}/cmdline").read_bytes() if alive(pid) else b""
    return pid if pid != before and b"gpufs.fetch.process" in command else 0


def account(mounted: Mounted) -> tuple[int, int]:
    """Whole objects and bytes, as the catalogue has them."""
    status = ask(mounted, "status")
    return status["cache_objects"], status["cache_bytes"]


@pytest.mark.alone
def test_kill_at_random_moments(
    dataset: Dataset, mount: MountFactory, tmp_path: Path, fast_path: str
) -> None:
    """kill -9 of the fetch process alone: no error, no wrong byte, no leak, and the account is right."""
    mounted = mount(dataset.url, dataset.server).crawled()
    read_all(mounted.path, dataset.objects)
    held = Held(mounted) if fast_path != "off" else None
    others = [pid for pid in mounted.pids() if pid != fetch_process(mounted)]
    chance = random.Random(2)
    with reading(mounted, dataset.objects, tmp_path) as load:
        for _ in range(KILLS):
            pid = fetch_process(mounted)
            evict(mounted, COLD)
            moment(chance, 0.0, 0.6)
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda pid=pid: fetch_process(mounted, before=pid), "another fetch process", 20)
            moment(chance, 0.2, 0.5)
    assert not load.errors
    print(f"{KILLS} kills, {load.calls} files, the longest call {load.longest:.2f} s: {load.what}")
    assert load.longest < LONGEST_PAUSE, f"{load.what} took {load.longest:.1f} s"
    assert mounted.log().count("the fetch process ended (status -9)") == KILLS
    assert set(others) < set(mounted.pids()), "nobody else was started again"
    files = assert_nothing_torn(mounted.cache, dataset)
    on_disk = bytes_on_disk(mounted.cache)
    wait_until(lambda: account(mounted) == (files, on_disk), "the catalogue to be right", 20)
    if held is not None:
        held.assert_same()
    drop_pages(mounted.path, dataset.objects)  # or what the kernel has would not be fetched again
    read_all(mounted.path, dataset.objects)
    assert_sane(mounted, dataset)


def test_umount_while_it_waits_for_a_silent_server(
    weed: S3Endpoint,
    bucket: Callable[[S3Endpoint], str],
    proxy: Callable[[S3Endpoint], FaultProxy],
    mount: MountFactory,
) -> None:
    """What is fetched in advance is given up: the end is soon and clean, nothing is left.

    Every other key has a tab, and is fetched by a thread that cannot be interrupted.
    """
    between = proxy(weed)
    name = bucket(weed)
    objects = {f"d/a{n}": content(f"a{n}", 50_000) for n in range(8)}
    tabs = ["", "\t"]
    silent = {f"d/z{tabs[n % 2]}{n:02}": content(f"z{n}", 50_000) for n in range(50)}
    weed.put(name, objects | silent)
    mounted = mount(f"s3://{name}", replace(weed, url=between.url)).crawled()
    between.add(Fault("stall", "GET", "/d/z", after=1000))
    read_all(mounted.path, objects)
    wait_until(lambda: sum("/d/z" in seen.target for seen in between.seen("GET")) >= 24, "it to be busy")
    began = time.monotonic()
    mounted.umount()
    wait_until(lambda: not daemons_of(mounted.path), "all processes to end", UMOUNT_PATIENCE)
    assert time.monotonic() - began < UMOUNT_PATIENCE
    assert not is_mounted(mounted.path) and not list(mounted.path.iterdir())
    state = json.loads((mounted.cache / "state").read_bytes())
    assert state["clean"] and state["catalogued"]
    assert not list((mounted.cache / "tmp").iterdir())
