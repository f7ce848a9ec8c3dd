"""Loads an index like a flat crawl does and prints its speed, size and memory.

python tests/bench/index_size.py [files] [directories]
"""

from __future__ import annotations

import hashlib
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from gpufs.index.index import Index
from gpufs.index.records import ROOT
from gpufs.source.base import Entry, Kind, Page

_PAGE = 1000


def directory_name(number: int) -> bytes:
    return b"n%07d" % number


def entries_of(directory: int, numbers: range) -> list[Entry]:
    """11-byte names, MD5-like versions, whole seconds: what an S3 bucket gives."""
    seed = hashlib.md5(b"%d" % directory).hexdigest()
    return [
        Entry(b"%06d.jpeg" % i, Kind.FILE, 100_000 + i, 1_700_000_000_000_000_000, f"{seed[:24]}{i:08x}")
        for i in numbers
    ]


def load(index: Index, directories: int, per_directory: int) -> float:
    """Seconds spent in the index, the making of the entries left out."""
    spent = 0.0
    started_ns = time.time_ns()
    with index.write() as writer:
        root = writer.begin(ROOT, started_ns)
    for number in range(directories):
        name = directory_name(number)
        begin = time.perf_counter()
        with index.write() as writer:
            writer.add(root, Page(b"", [Entry(name, Kind.DIRECTORY)], [], number + 1 == directories))
        inode = index.lookup(ROOT, name)
        assert inode is not None
        with index.write() as writer:
            listing = writer.begin(inode.number, started_ns)
        spent += time.perf_counter() - begin
        for at in range(0, per_directory, _PAGE):
            last = at + _PAGE >= per_directory
            entries = entries_of(number, range(at, min(at + _PAGE, per_directory)))
            begin = time.perf_counter()
            with index.write() as writer:
                writer.add(listing, Page(name, entries, [], last))
                if last:
                    writer.finish(listing)
            spent += time.perf_counter() - begin
    begin = time.perf_counter()
    with index.write() as writer:
        writer.finish(root)
    return spent + time.perf_counter() - begin


def microseconds(call: Callable[[], object], times: int) -> float:
    begin = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - begin) / times * 1e6


def main() -> None:
    files = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    directories = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    per_directory = files // directories
    files = per_directory * directories
    with tempfile.TemporaryDirectory() as folder:
        index = Index(Path(folder) / "index", "s3://bench")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        seconds = load(index, directories, per_directory)
        size = index.size_on_disk()
        assert index.totals().files == files
        parents = [inode.number for inode in index.children(ROOT, None, directories)]
        keys = [
            (random.choice(parents), b"%06d.jpeg" % random.randrange(per_directory)) for _ in range(20_000)
        ]
        each = iter(keys)
        lookup = microseconds(lambda: index.lookup(*next(each)), len(keys))
        get = microseconds(lambda: index.get(parents[0]), 20_000)
        whole = microseconds(lambda: index.children(parents[0], None, _PAGE), 20)
        again = load(index, directories, per_directory)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        index.close()
        begin = time.perf_counter()
        Index(Path(folder) / "index", "s3://bench").close()
        opening = time.perf_counter() - begin
    rows = [
        ("files", f"{files:,} in {directories:,} directories"),
        ("first load", f"{files / seconds:,.0f} files/s"),
        ("unchanged reload", f"{files / again:,.0f} files/s"),
        ("size", f"{size / files:.1f} bytes/file"),
        ("lookup", f"{lookup:.1f} us"),
        ("get", f"{get:.1f} us"),
        ("children", f"{whole / min(_PAGE, per_directory):.2f} us per name"),
        ("open", f"{opening * 1000:.0f} ms"),
        ("memory", f"+{(peak - before) / 1024:.0f} MiB (of it the mapped file up to {size / 2**20:.0f} MiB)"),
    ]
    for what, value in rows:
        print(f"{what:18}{value}")


if __name__ == "__main__":
    main()
