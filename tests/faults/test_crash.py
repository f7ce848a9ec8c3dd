"""kill -9 of the daemon at any moment: the next mount works, and no byte is ever wrong."""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from tests.faults.conftest import Dataset
from tests.faults.data import MIB, check, in_parallel, read_all
from tests.mounts import Mounted, MountFactory, alive, detach, wait_until

ROUNDS = 6


def read_until_killed(mounted: Mounted, dataset: Dataset, seed: int) -> None:
    """8 readers; what they get before the end is right, and all they meet at the end is that it is gone."""
    names = list(dataset.objects)
    random.Random(seed).shuffle(names)

    def read(name: str) -> None:
        with suppress(OSError):
            check(mounted.path / name, dataset.objects[name])

    in_parallel(read, names, 8)


def list_until_killed(mounted: Mounted, stop: threading.Event) -> None:
    while not stop.is_set():
        with suppress(OSError):
            for _ in mounted.path.rglob("*"):
                pass


def kill_in_the_middle(mounted: Mounted, dataset: Dataset, seed: int) -> None:
    """kill -9 of everything while the tree is listed and read, when `seed` says so; the mount is removed."""
    pids = mounted.pids()
    stop = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        work = [
            pool.submit(read_until_killed, mounted, dataset, seed),
            pool.submit(list_until_killed, mounted, stop),
        ]
        threading.Event().wait(random.Random(seed).uniform(0, 0.6))  # the moment is what is tested
        for pid in reversed(pids):  # the supervisor first, or it would start the others anew
            os.kill(pid, signal.SIGKILL)
        stop.set()
        for done in work:
            done.result()
    wait_until(lambda: not any(map(alive, pids)), "the killed daemons to go")
    detach(mounted.path)


def assert_nothing_torn(cache: Path, dataset: Dataset) -> int:
    """Every file in objects/ is one whole object of the data set; their number."""
    whole = set(dataset.objects.values())
    found = [path for path in (cache / "objects").rglob("*") if path.is_file()]
    for path in found:
        assert path.read_bytes() in whole, f"{path.name} is no object: {path.stat().st_size} bytes"
    return len(found)


def test_killed_while_the_cache_is_written(dataset: Dataset, mount: MountFactory) -> None:
    """Every other time the cache is emptied first, so that there is always something to write."""
    mounted = mount(dataset.url, dataset.server)
    for seed in range(ROUNDS):
        kill_in_the_middle(mounted, dataset, seed)
        assert_nothing_torn(mounted.cache, dataset)
        if seed % 2:
            for top in ("objects", "partial"):
                shutil.rmtree(mounted.cache / top)
        mounted.mount()
    read_all(mounted.path, dataset.objects)
    assert_sane(mounted, dataset)


@pytest.mark.parametrize("fast_path", ["auto"])  # the index is written by the same process in either case
@pytest.mark.parametrize("keep_index", [True, False], ids=["again", "anew"])
def test_killed_while_the_index_is_written(dataset: Dataset, mount: MountFactory, keep_index: bool) -> None:
    """Names that expire at once are listed, and so committed, all the time; or the index is new each time."""
    mounted = mount(dataset.url, dataset.server, metadata_ttl="0s" if keep_index else "forever")
    for seed in range(ROUNDS // 2):
        kill_in_the_middle(mounted, dataset, seed)
        if not keep_index:
            shutil.rmtree(mounted.cache / "index")
        mounted.mount()
        assert {str(p.relative_to(mounted.path)) for p in mounted.path.rglob("*.bin")} == set(dataset.objects)
    read_all(mounted.path, dataset.objects)
    assert "is damaged" not in mounted.log()
    assert_sane(mounted, dataset)


def assert_sane(mounted: Mounted, dataset: Dataset) -> None:
    """After all that the account of the cache is right, and nothing lies about that nobody counts."""
    mounted.remount()
    files = assert_nothing_torn(mounted.cache, dataset)
    wait_until(lambda: mounted.count("cache_objects") == files, "the account to be right", 20)
    status = mounted.status()
    on_disk = sum(p.stat().st_blocks * 512 for p in mounted.cache.glob("objects/**/*") if p.is_file())
    assert abs(status["cache_bytes"] - on_disk) < MIB, (status["cache_bytes"], on_disk)
    assert not list((mounted.cache / "tmp").iterdir())
    assert (status["files"], status["bytes"]) == (len(dataset.objects), dataset.size)
    read_all(mounted.path, dataset.objects)
    assert mounted.count("remote_bytes") == 0, "all of it had been read before"
