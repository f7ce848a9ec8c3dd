"""Readers beside a warm-up that fills the link; a server that refuses more than some requests at once.

The link is a process that passes on RATE bytes a second, in one queue for all connections, 20 ms away from a
SeaweedFS. Targets: a reader's median within 1.5 x of what it is without the warm-up; the link used by more
than 70% meanwhile, and by more than 90% when nobody reads.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from statistics import median, quantiles

from tests.bench.lab import MIB, as_they_come, prepared
from tests.mounts import Mounted
from tests.servers import BUCKET, S3Endpoint, fault_proxy, weed_server
from tests.servers.link import slow_link

RATE = 40e6
ROUND_TRIP = 0.02
SMALL = 100_000
LARGE = 64 * MIB
CHUNK = 4 * MIB
SMALL_FILES, LARGE_FILES = 6000, 10  # for the warm-ups
READ_LARGE = 8  # for the reader of chunks
READ_DIRECTORIES, READ_EACH = (
    120,
    7,
)  # for the reader of small files: so few of each, in less than half of the
UNREAD_DIRECTORIES = 130  # directories, that epoch fill leaves them alone
SETTLED, ALONE, READING = 1.5, 2.0, 4.0  # seconds: before a warm-up is measured; without readers; with each
AT_ONCE = 16  # requests the other server takes


def run() -> None:
    as_they_come(_rows())


def _rows() -> Iterator[tuple[str, str]]:
    body = os.urandom(LARGE)
    with weed_server() as endpoint:
        endpoint.client().create_bucket(Bucket=BUCKET)
        endpoint.put(BUCKET, {f"small/{n % 8}/{n:05}": body[:SMALL] for n in range(SMALL_FILES)})
        endpoint.put(BUCKET, {f"large/{n}": body for n in range(LARGE_FILES)})
        endpoint.put(
            BUCKET, dict.fromkeys(map(_small_name, range(READ_DIRECTORIES * READ_EACH)), body[:SMALL])
        )
        endpoint.put(BUCKET, {f"read/unread{n}/0": b"." for n in range(UNREAD_DIRECTORIES)})
        endpoint.put(BUCKET, {f"chunks/{n}": body for n in range(READ_LARGE)})
        with slow_link(endpoint.url, RATE, ROUND_TRIP) as url:
            link = replace(endpoint, url=url)
            with prepared(link, cache_size="80%", min_free="0") as mounted:
                mounted.mount().crawled()
                readers = {"100 KB files": _small_reads(mounted), "chunks of large files": _chunks(mounted)}
                alone = {name: _times(reads) for name, reads in readers.items()}
                yield from ((f"{name}, alone", _shown(times)) for name, times in alone.items())
                for what in ("small", "large"):
                    with _warming(mounted, what):
                        yield (
                            f"warming {what} files, nobody reads",
                            _use(mounted, lambda: time.sleep(ALONE)),
                        )
                        for name, reads in readers.items():
                            times: list[float] = []
                            use = _use(mounted, lambda t=times, r=reads: t.extend(_times(r)))
                            slower = median(times) / median(alone[name])
                            yield (f"{name}, warming {what} files", f"{_shown(times)}: {slower:.2f} x; {use}")
                    mounted.command("evict", str(mounted.path / what))
        yield from _refused(endpoint)


def _small_reads(mounted: Mounted) -> Iterator[Callable[[], object]]:
    for number in range(READ_DIRECTORIES * READ_EACH):
        yield (mounted.path / _small_name(number)).read_bytes


def _small_name(number: int) -> str:
    return f"read/{number // READ_EACH:03}/{number % READ_EACH}"


def _chunks(mounted: Mounted) -> Iterator[Callable[[], object]]:
    """Backwards, so that nothing is read ahead."""
    for number in range(READ_LARGE):
        for chunk in reversed(range(LARGE // CHUNK)):
            yield lambda path=mounted.path / f"chunks/{number}", at=chunk * CHUNK: _pread(path, at)


def _pread(path: os.PathLike[str], offset: int) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        assert len(os.pread(fd, 4096, offset)) == 4096
    finally:
        os.close(fd)


def _times(reads: Iterator[Callable[[], object]]) -> list[float]:
    times: list[float] = []
    end = time.monotonic() + READING
    while time.monotonic() < end and (read := next(reads, None)) is not None:
        begin = time.monotonic()
        read()
        times.append(time.monotonic() - begin)
    return times


def _shown(times: list[float]) -> str:
    return (
        f"median {median(times) * 1e3:.0f} ms, p99 {quantiles(times, n=100)[98] * 1e3:.0f} ms ({len(times)})"
    )


def _use(mounted: Mounted, work: Callable[[], object]) -> str:
    before, begin = mounted.count("remote_bytes"), time.monotonic()
    work()
    share = (mounted.count("remote_bytes") - before) / (time.monotonic() - begin) / RATE
    return f"link used by {100 * share:.0f}%"


@contextmanager
def _warming(mounted: Mounted, what: str) -> Iterator[None]:
    command = [sys.executable, "-m", "gpufs", "warm", str(mounted.path / what), "--json"]
    process = subprocess.Popen(command, env=mounted.env, stdout=subprocess.DEVNULL)
    try:
        time.sleep(SETTLED)
        yield
        if process.poll() is not None:
            print("  (the warm-up was over too early)")
    finally:
        process.terminate()
        process.wait()


def _refused(endpoint: S3Endpoint) -> Iterator[tuple[str, str]]:
    """A server that refuses what is more than AT_ONCE requests, and takes ROUND_TRIP for each."""
    with fault_proxy(endpoint.url) as proxy:
        proxy.most, proxy.takes = AT_ONCE, ROUND_TRIP
        with prepared(replace(endpoint, url=proxy.url), cache_size="80%", min_free="0") as mounted:
            mounted.mount().crawled()
            for part in range(2):
                before, begin = mounted.status(), time.monotonic()
                for number in range(part * 4, part * 4 + 4):
                    done = mounted.command("warm", str(mounted.path / f"small/{number}"))
                    assert done.returncode == 0, done.stdout + done.stderr
                seconds = time.monotonic() - begin
                after = mounted.status()
                files = after["prefetched"] - before["prefetched"]
                refused = 1000 * (after["throttled"] - before["throttled"]) / files
                yield (
                    f"a server that takes {AT_ONCE} at once, {'then' if part else 'at first'}",
                    f"{files / seconds:,.0f} files/s of {AT_ONCE / ROUND_TRIP:,.0f}; "
                    f"{refused:.0f} refusals per 1,000",
                )
