"""Processor time and requests of the background listing: 100,000 directories of one file, and of 1,000."""

from __future__ import annotations

import time

from tests.bench.lab import Dataset, daemon_cpu, idle, prepared, served, table

SHAPES = (Dataset(100_000, 100_000), Dataset(100_000, 100))


def run() -> None:
    rows = []
    for dataset in SHAPES:
        with served(dataset) as endpoint, prepared(endpoint) as mounted:
            begin = time.monotonic()
            mounted.mount()
            before = daemon_cpu(mounted)
            mounted.crawled()
            seconds = time.monotonic() - begin
            spent = idle(mounted) - before
            status = mounted.status()
            assert (status["files"], status["directories"]) == (dataset.files, dataset.directories)
        what = f"{dataset.files:,} files in {dataset.directories:,} directories"
        requests = status["remote_requests"]
        each = f"{spent / dataset.files * 1e6:.0f} us per file"
        rows.append((what, f"{each}, {requests} requests, whole after {seconds:.1f} s"))
    table(rows)
