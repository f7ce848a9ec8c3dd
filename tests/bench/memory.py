"""Memory of a mount's processes, mapped index pages apart, with 1,000,000 files known (target: 150 MB)."""

from __future__ import annotations

import os
import random
import subprocess

from tests.bench.lab import FILE_SIZE, MIB, Dataset, fill_index, prepared, resident, served, table
from tests.mounts import Mounted, daemons_of

FILES, DIRECTORIES = 1_000_000, 1000
READS = 2000


def run() -> None:
    dataset = Dataset(FILES, DIRECTORIES)
    with served(dataset) as endpoint:
        for fast_path in ("off", "auto"):
            with prepared(endpoint, fast_path=fast_path) as mounted:
                print(f"  fast_path={fast_path}")
                table(_measure(mounted, dataset))


def _measure(mounted: Mounted, dataset: Dataset) -> list[tuple[str, str]]:
    fill_index(mounted, dataset)
    rows = []

    def note(when: str) -> None:
        rows.append((when, f"{resident(mounted) / MIB:.0f} MiB in {len(daemons_of(mounted.path))} processes"))

    mounted.mount()
    note("after the mount")
    for number in random.Random(1).sample(range(dataset.files), READS):
        with open(mounted.path / dataset.path(number), "rb") as file:
            assert len(file.read()) == FILE_SIZE
    note(f"after {READS:,} reads from the source")
    found = subprocess.run(["find", mounted.path, "-type", "f"], stdout=subprocess.PIPE, check=True)
    assert found.stdout.count(b"\n") == dataset.files
    note("after find -type f of everything")
    for number in range(0, dataset.files, 5):
        os.stat(mounted.path / dataset.path(number))
    note(f"after {dataset.files // 5:,} stats")
    return rows
