"""What the measurements share: a server of a made-up dataset, a mount of it, and what its daemon uses.

`python -m tests.bench.lab FILES DIRECTORIES` is the server: a process of its own, so that neither its
memory nor its time is mistaken for the daemon's. It prints its address and ends with its stdin.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from gpufs.cache import Cache, Limit
from gpufs.index import ROOT, Index
from gpufs.metrics import Metrics
from gpufs.source import Entry, Kind, Page, open_source
from gpufs.source.s3.settings import S3Settings
from tests.mounts import Mounted, daemons_of, detach, wait_until
from tests.servers import BUCKET, S3Endpoint
from tests.servers.listing import Pattern, listing_server

MIB = 1 << 20
FILE_SIZE = 4096
VERSION = f"{FILE_SIZE:032x}-1"  # what the server says of a Pattern of that size
MTIME_NS = 1_709_294_400_000_000_000
PAGE = 1000


@dataclass(frozen=True, slots=True)
class Dataset:
    """`directories` directories with the same number of small files each."""

    files: int
    directories: int

    @property
    def per_directory(self) -> int:
        return self.files // self.directories

    def directory(self, number: int) -> bytes:
        return b"n%07d" % number

    def file(self, number: int) -> bytes:
        return b"%06d.jpeg" % number

    def path(self, number: int) -> str:
        """The path of one of all files, counted directory by directory."""
        directory, file = divmod(number, self.per_directory)
        return os.fsdecode(self.directory(directory) + b"/" + self.file(file))

    def keys(self) -> Iterator[bytes]:
        for directory in range(self.directories):
            head = self.directory(directory) + b"/"
            for file in range(self.per_directory):
                yield head + self.file(file)


@contextmanager
def served(dataset: Dataset) -> Iterator[S3Endpoint]:
    """A scripted S3 server of `dataset` in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.lab", str(dataset.files), str(dataset.directories)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        yield S3Endpoint(url, "test", "testtest", "us-east-1", flat=True)
    finally:
        process.stdin.close()
        process.wait(30)
        process.stdout.close()


@contextmanager
def prepared(served: S3Endpoint | str, **options: str) -> Iterator[Mounted]:
    """A mount of a server's bucket, or of the source of that name, that is not made yet.

    It and its files are gone after the block.
    """
    work = Path(tempfile.mkdtemp(prefix="gpufs-bench-", dir="/var/tmp"))
    env = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
    env["GPUFS_TEST_MOUNT"] = str(work / "mnt")
    source = served if isinstance(served, str) else f"s3://{BUCKET}"
    if not isinstance(served, str):
        env |= served.env()
        options = {"endpoint_url": served.url, "region": served.region} | options
    mounted = Mounted(source, work, options, env)
    try:
        yield mounted
    finally:
        detach(mounted.path)
        wait_until(lambda: not daemons_of(mounted.path), "the daemon to end", 30)
        shutil.rmtree(work, ignore_errors=True)


def fill_index(mounted: Mounted, dataset: Dataset) -> None:
    """Put the whole dataset into the index that the mount is going to open."""
    metrics = Metrics()
    source = open_source(mounted.source, S3Settings(endpoint_url=mounted.options["endpoint_url"]), metrics)
    cache = Cache(mounted.cache, cache_size=Limit(1 << 30), min_free=Limit(0), metrics=metrics)
    index = Index(cache.index_directory(source.id), source.id)
    try:
        load(index, dataset)
    finally:
        index.close()
        cache.close()
        source.close()


def entries_of(dataset: Dataset, numbers: range) -> list[Entry]:
    return [Entry(dataset.file(i), Kind.FILE, FILE_SIZE, MTIME_NS, VERSION) for i in numbers]


def load(
    index: Index, dataset: Dataset, entries: Callable[[Dataset, range], list[Entry]] = entries_of
) -> float:
    """Write `dataset` into `index` as a crawl does; seconds spent in the index alone."""
    spent = 0.0
    started_ns = time.time_ns()
    with index.write() as writer:
        root = writer.begin(ROOT, started_ns)
    for number in range(dataset.directories):
        name = dataset.directory(number)
        begin = time.perf_counter()
        with index.write() as writer:
            last = number + 1 == dataset.directories
            writer.add(root, Page(b"", [Entry(name, Kind.DIRECTORY)], [], last))
            inode = writer.resolve(name)
            assert inode is not None
            listing = writer.begin(inode, started_ns)
        spent += time.perf_counter() - begin
        for at in range(0, dataset.per_directory, PAGE):
            end = min(at + PAGE, dataset.per_directory)
            page = Page(name, entries(dataset, range(at, end)), [], end == dataset.per_directory)
            begin = time.perf_counter()
            with index.write() as writer:
                writer.add(listing, page)
                if page.last:
                    writer.finish(listing)
            spent += time.perf_counter() - begin
    begin = time.perf_counter()
    with index.write() as writer:
        writer.finish(root)
        writer.mark_crawled()
    return spent + time.perf_counter() - begin


def resident(mounted: Mounted) -> int:
    """Bytes of memory of all the mount's processes, pages of the index's file apart."""
    total = 0
    for pid in daemons_of(mounted.path):
        counted = True
        for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
            if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                counted = not line.endswith("/data.mdb")
            elif counted and line.startswith("Rss:"):
                total += int(line.split()[1]) << 10
    return total


def daemon_cpu(mounted: Mounted) -> float:
    """Seconds of processor time the mount's threads have used so far, to the nanosecond."""
    nanoseconds = 0
    for pid in daemons_of(mounted.path):
        for task in Path(f"/proc/{pid}/task").iterdir():
            nanoseconds += int((task / "schedstat").read_text().split()[0])
    return nanoseconds / 1e9


def idle(mounted: Mounted) -> float:
    """daemon_cpu() once the daemon has nothing more to do of its own."""
    before, now = -1.0, daemon_cpu(mounted)
    while now - before > 1e-4:
        time.sleep(0.1)
        before, now = now, daemon_cpu(mounted)
    return now


def microseconds(call: Callable[[], object], times: int, *, repeat: int = 5) -> float:
    """Processor time of one call: the median of `repeat` rounds of `times` calls."""
    rounds = []
    for _ in range(repeat):
        begin = time.process_time()
        for _ in range(times):
            call()
        rounds.append((time.process_time() - begin) / times * 1e6)
    return median(rounds)


def table(rows: list[tuple[str, str]]) -> None:
    width = max(len(what) for what, _ in rows) + 2
    for what, value in rows:
        print(f"  {what:<{width}}{value}")


def as_they_come(rows: Iterator[tuple[str, str]]) -> None:
    """Print a table whose rows take long."""
    for what, value in rows:
        print(f"  {what:<66}{value}", flush=True)


def main() -> None:
    dataset = Dataset(int(sys.argv[1]), int(sys.argv[2]))
    body = Pattern(FILE_SIZE)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with listing_server(dict.fromkeys(dataset.keys(), body)) as (scripted, endpoint):
        scripted.render()
        print(endpoint.url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
