"""Seconds from the start of `gpufs mount` to the first answered stat of a known dataset (target: 1 s)."""

from __future__ import annotations

import os
import subprocess
import time
from statistics import median

from tests.bench.lab import Dataset, daemon_cpu, fill_index, idle, prepared, served, table
from tests.mounts import GPUFS, Mounted

TIMES = 5


def run() -> None:
    rows = []
    for dataset in (Dataset(20_000, 20), Dataset(1_000_000, 1000)):
        with served(dataset) as endpoint:
            for ttl, state in (("forever", "listed"), ("1s", "listing expired")):
                with prepared(endpoint, metadata_ttl=ttl, fast_path="auto") as mounted:
                    fill_index(mounted, dataset)
                    for fast_path in ("off", "auto"):
                        mounted.options["fast_path"] = fast_path
                        times = [_start(mounted, dataset) for _ in range(TIMES)]
                        rows.append(
                            (f"{dataset.files:,} files, {state}, fast_path={fast_path}", _shown(times))
                        )
    table(rows)


def _start(mounted: Mounted, dataset: Dataset) -> tuple[float, float, float]:
    """Seconds until the command ended, until the stat was answered, and of processor time in all that."""
    path = mounted.path / dataset.path(dataset.files // 2)
    time.sleep(1.1)  # a listing expires after a second
    before, begin = os.times(), time.monotonic()
    command = [*GPUFS, "mount", mounted.source, str(mounted.path), "-o", mounted.option_text()]
    subprocess.run(command, env=mounted.env, check=True)
    ready = time.monotonic() - begin
    os.stat(path)
    answered = time.monotonic() - begin
    after = os.times()
    own = after.children_user + after.children_system - before.children_user - before.children_system
    spent = own + daemon_cpu(mounted)
    idle(mounted)  # what goes on in the background is not part of the next start
    mounted.umount()
    return ready, answered, spent


def _shown(times: list[tuple[float, float, float]]) -> str:
    ready, answered, spent = (median(each) for each in zip(*times, strict=True))
    best = min(each for _, each, _ in times)
    return f"{answered:.2f} s (best {best:.2f}; ready {ready:.2f}; processor {spent:.2f})"
