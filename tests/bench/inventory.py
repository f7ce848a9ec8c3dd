"""Filling the index from an inventory of a million objects (`--index-from`): time and memory."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from gpufs.options import MountConfig, parse_options
from tests.bench.lab import MIB, Dataset, table

DATASET = Dataset(1_000_000, 1000)
FILES = 10  # data files of the inventory
MODIFIED = "2024-03-01T12:00:00.000Z"
SCHEMA = "Bucket, Key, Size, LastModifiedDate, ETag, StorageClass"


def run() -> None:
    keys = [key.decode() for key in list(DATASET.keys())]
    shuffled = random.Random(1).sample(keys, len(keys))
    rows = []
    with tempfile.TemporaryDirectory(prefix="gpufs-bench-", dir="/var/tmp") as name:
        for what, order in (("in order", keys), ("in no order", shuffled)):
            work = Path(name) / what
            seconds, peak = _fill(work, _manifest(work, order))
            rows.append((f"{len(keys):,} objects, {what}", f"{seconds:.1f} s, {peak / MIB:.0f} MiB at most"))
            shutil.rmtree(work)
    table(rows)


def _manifest(work: Path, keys: list[str]) -> Path:
    """An S3 Inventory in CSV."""
    work.mkdir()
    parts = []
    for number in range(FILES):
        path = work / f"{number}.csv.gz"
        with gzip.open(path, "wt", 1) as file:
            file.writelines(_rows(keys[number * len(keys) // FILES : (number + 1) * len(keys) // FILES]))
        parts.append({"key": f"inventory/data/{path.name}", "size": path.stat().st_size})
    manifest = work / "manifest.json"
    document = {
        "sourceBucket": "data",
        "creationTimestamp": "1709300000000",
        "fileFormat": "CSV",
        "fileSchema": SCHEMA,
        "files": parts,
    }
    manifest.write_text(json.dumps(document))
    return manifest


def _rows(keys: Iterable[str]) -> Iterable[str]:
    for key in keys:
        yield f'"data","{key}","4096","{MODIFIED}","{hash(key) & 0xFFFF:032x}","STANDARD"\n'


def _fill(work: Path, manifest: Path) -> tuple[float, int]:
    """Seconds and the most memory of the process that `gpufs mount` starts for it."""
    options, _ = parse_options({"index_from": str(manifest), "cache_dir": str(work / "cache")})
    config = MountConfig("s3://data", str(work), options)
    begin = time.monotonic()
    command = [sys.executable, "-c", _MEASURED]
    done = subprocess.run(command, input=config.to_json(), capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr
    return time.monotonic() - begin, int(done.stdout.splitlines()[-1]) << 10


_MEASURED = """
import resource, sys
from gpufs.fill import main
code = main()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
sys.exit(code)
"""
