"""The index with 1,000,000 files: bytes per file (target: 150), load, lookup, listing and opening times."""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path

from gpufs.index import ROOT, Index
from gpufs.source import Entry, Kind
from tests.bench.lab import PAGE, Dataset, load, microseconds, table

DATASET = Dataset(1_000_000, 1000)


def _entries(dataset: Dataset, numbers: range) -> list[Entry]:
    """11-byte names, MD5-like versions, whole seconds: what an S3 bucket gives."""
    version = "0123456789abcdef0123456789abcdef"
    return [
        Entry(dataset.file(i), Kind.FILE, 100_000 + i, 1_700_000_000_000_000_000, version) for i in numbers
    ]


def run() -> None:
    files = DATASET.files
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        index = Index(Path(folder) / "index", "s3://bench")
        try:
            first = load(index, DATASET, _entries)
            size = index.size_on_disk()
            assert index.totals().files == files
            again = load(index, DATASET, _entries)
            parents = [inode.number for inode in index.children(ROOT, None, DATASET.directories)]
            keys = [
                (random.choice(parents), DATASET.file(random.randrange(DATASET.per_directory)))
                for _ in range(20_000)
            ]
            each = iter(keys * 5)
            lookup = microseconds(lambda: index.lookup(*next(each)), len(keys))
            get = microseconds(lambda: index.get(parents[0]), 20_000)
            listed = microseconds(lambda: index.listed(parents[0]), 20_000)
            children = microseconds(lambda: index.children(parents[0], None, PAGE), 20)
        finally:
            index.close()
        begin = time.perf_counter()
        Index(Path(folder) / "index", "s3://bench").close()
        opening = time.perf_counter() - begin
    table(
        [
            ("size", f"{size / files:.1f} bytes per file"),
            ("first load", f"{files / first:,.0f} files/s"),
            ("unchanged reload", f"{files / again:,.0f} files/s"),
            ("lookup", f"{lookup:.1f} us"),
            ("get", f"{get:.1f} us"),
            ("listed", f"{listed:.1f} us"),
            ("children", f"{children / PAGE:.2f} us per name"),
            ("open", f"{opening * 1000:.0f} ms"),
        ]
    )
