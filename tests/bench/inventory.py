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
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pyarrow
from pyarrow import parquet

from gpufs.options import MountConfig, parse_options
from tests.bench.lab import MIB, Dataset, table

DATASET = Dataset(1_000_000, 1000)
FILES = 10  # data files of the inventory
MODIFIED = "2024-03-01T12:00:00.000Z"
SCHEMA = "Bucket, Key, Size, LastModifiedDate, ETag, StorageClass"


def run() -> None:
    keys = [key.decode() for key in list(DATASET.keys())]
    shuffled = random.Random(1).sample(keys, len(keys))
    kinds: tuple[tuple[str, Callable[[Path, list[str]], Path], list[str]], ...] = (
        ("S3 Inventory in CSV, in order", _in_csv, keys),
        ("S3 Inventory in CSV, in no order", _in_csv, shuffled),
        ("S3 Inventory in Parquet, in order", _in_parquet, keys),
        ("key,size,etag, in order", _plain, keys),
    )
    rows = []
    with tempfile.TemporaryDirectory(prefix="gpufs-bench-", dir="/var/tmp") as name:
        for number, (what, write, order) in enumerate(kinds):
            work = Path(name) / str(number)
            work.mkdir()
            seconds, cpu, peak = _fill(work, write(work, order))
            told = f"{seconds:.1f} s, {cpu:.1f} s of processor time, {peak / MIB:.0f} MiB at most"
            rows.append((f"{len(keys):,} objects, {what}", told))
            shutil.rmtree(work)
    table(rows)


def _in_csv(work: Path, keys: list[str]) -> Path:
    parts = []
    for number, part in enumerate(_parts(keys)):
        path = work / f"{number}.csv.gz"
        with gzip.open(path, "wt", 1) as file:
            for key in part:
                file.write(f'"data","{key}","4096","{MODIFIED}","{_etag(key)}","STANDARD"\n')
        parts.append(path)
    return _manifest(work, "CSV", SCHEMA, parts)


def _in_parquet(work: Path, keys: list[str]) -> Path:
    parts = []
    when = datetime.fromisoformat(MODIFIED)
    for number, part in enumerate(_parts(keys)):
        columns = {
            "bucket": pyarrow.array(["data"] * len(part)),
            "key": pyarrow.array(part),
            "size": pyarrow.array([4096] * len(part), pyarrow.int64()),
            "last_modified_date": pyarrow.array([when] * len(part), pyarrow.timestamp("ms", "UTC")),
            "e_tag": pyarrow.array([_etag(key) for key in part]),
        }
        path = work / f"{number}.parquet"
        parquet.write_table(pyarrow.table(columns), path)
        parts.append(path)
    return _manifest(work, "Parquet", "message s3.inventory {}", parts)


def _plain(work: Path, keys: list[str]) -> Path:
    path = work / "list.csv"
    with path.open("w") as file:
        file.writelines(f"{key},4096,{_etag(key)}\n" for key in keys)
    return path


def _parts(keys: list[str]) -> Iterator[list[str]]:
    for number in range(FILES):
        yield keys[number * len(keys) // FILES : (number + 1) * len(keys) // FILES]


def _etag(key: str) -> str:
    return f"{hash(key) & 0xFFFF:032x}"


def _manifest(work: Path, form: str, schema: str, parts: list[Path]) -> Path:
    manifest = work / "manifest.json"
    document = {
        "sourceBucket": "data",
        "creationTimestamp": "1709300000000",
        "fileFormat": form,
        "fileSchema": schema,
        "files": [{"key": f"inventory/data/{path.name}", "size": path.stat().st_size} for path in parts],
    }
    manifest.write_text(json.dumps(document))
    return manifest


def _fill(work: Path, manifest: Path) -> tuple[float, float, int]:
    """Seconds, those of a processor, and the most memory of the process that `gpufs mount` starts for it."""
    options, _ = parse_options({"index_from": str(manifest), "cache_dir": str(work / "cache")})
    config = MountConfig("s3://data", str(work), options)
    begin = time.monotonic()
    command = [sys.executable, "-c", _MEASURED]
    done = subprocess.run(command, input=config.to_json(), capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr
    cpu, peak = done.stdout.splitlines()[-1].split()
    return time.monotonic() - begin, float(cpu), int(peak) << 10


_MEASURED = """
import resource, sys
from gpufs.fill import main
code = main()
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime, used.ru_maxrss)
sys.exit(code)
"""
