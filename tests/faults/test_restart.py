"""A crash behind a mount, or an upgrade of gpufs, is a pause for those who read, and nothing else."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.faults.conftest import Dataset
from tests.faults.crashes import Held, children, evict, kill, moment, reading
from tests.faults.data import read_all
from tests.mounts import Mounted, MountFactory, wait_until

pytestmark = pytest.mark.parametrize("fast_path", ["auto"])

LONGEST_PAUSE = 3.0  # seconds
VICTIMS = [("filesystem",), ("fastpath",), ("filesystem", "fastpath")]
COLD = ["train/04", "train/05", "train/06", "train/07", "large/2.bin"]  # half of the bytes


def crash(mounted: Mounted, dataset: Dataset, work: Path, seed: int, kills: int) -> None:
    """kill -9 at random moments under load, with half of the data set always cold."""
    read_all(mounted.path, dataset.objects)
    held, chance = Held(mounted), random.Random(seed)
    mounted.may_log_errors = True
    with reading(mounted, dataset.objects, work) as load:
        for number in range(kills):
            for path in COLD:
                evict(mounted, path)
            moment(chance, 0.0, 1.5)
            kill(held.supervisor, *VICTIMS[number % 3])
            moment(chance, 1.0, 1.5)
            wait_until(lambda: len(children(held.supervisor)) == 2, "both processes to run again")
    assert not load.errors
    print(f"{load.calls} calls, longest {load.longest:.2f} s ({load.what})")
    assert load.longest < LONGEST_PAUSE, f"{load.what} took {load.longest:.1f} s"
    held.assert_same()


def test_kill_at_random_moments(dataset: Dataset, mount: MountFactory, tmp_path: Path) -> None:
    """kill -9 of the fast path, the filesystem process or both: no error, no wrong byte, no leak."""
    crash(mount(dataset.url, dataset.server).crawled(), dataset, tmp_path, 1, 12)
