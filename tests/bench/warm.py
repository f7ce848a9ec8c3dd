"""Files/s of `gpufs warm`, beside obstore alone in as many threads, from one SeaweedFS (target: 80%).

obstore brings everything into memory, gpufs into its cache, here in a tmpfs: the disk is not what is
measured. On a busy machine believe the processor times (those of the server are not in them): the one
thread of the fetch process gets a smaller share of the processors then than obstore's many.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median

from gpufs.cli.warm import JOBS
from tests.bench.lab import daemon_cpu, prepared, table
from tests.mounts import Mounted
from tests.servers import BUCKET, S3Endpoint, weed_server

ROUNDS = 3
SHAPES = ((20_000, 40_000), (16, 64 << 20))  # files, bytes of each

Spent = tuple[float, float]  # seconds; seconds of processor time


def run() -> None:
    rows = []
    for files, size in SHAPES:
        rounds = _rounds(files, size)
        for name, index in (("gpufs warm", 1), ("obstore alone", 0)):
            seconds, processor = (
                median(each) / files for each in zip(*(r[index] for r in rounds), strict=True)
            )
            rows.append(
                (
                    f"{files:,} files of {size / 1e6:.2f} MB, {JOBS} at once, {name}",
                    f"{1 / seconds:,.0f} files/s, {size / seconds / 1e6:,.0f} MB/s; "
                    f"processor {processor * 1e6:,.0f} us each",
                )
            )
        share = median(alone[0] / warm[0] for alone, warm in rounds)
        rows.append(("", f"{100 * share:.0f}% of the speed of obstore alone"))
    table(rows)


def _rounds(files: int, size: int) -> list[tuple[Spent, Spent]]:
    """Each time, what obstore took and what gpufs took."""
    keys = [f"d{number % 10}/{number:06}" for number in range(files)]
    cache = tempfile.mkdtemp(prefix="gpufs-bench-", dir="/dev/shm")
    try:
        with weed_server() as endpoint:
            endpoint.client().create_bucket(Bucket=BUCKET)
            endpoint.put(BUCKET, dict.fromkeys(keys, os.urandom(size)))
            with prepared(endpoint, cache_dir=f"{cache}/cache", cache_size="80%", min_free="0") as mounted:
                mounted.mount().crawled()
                return [(_alone(endpoint, keys), _warm(mounted, files)) for _ in range(ROUNDS)]
    finally:
        shutil.rmtree(cache)


def _alone(endpoint: S3Endpoint, keys: list[str]) -> Spent:
    """obstore brings everything into memory."""
    from obstore.store import S3Store

    store = S3Store(
        BUCKET,
        endpoint=endpoint.url,
        access_key_id=endpoint.access_key,
        secret_access_key=endpoint.secret_key,
        region=endpoint.region,
        client_options={"allow_http": True},
    )

    def get_all() -> None:
        with ThreadPoolExecutor(JOBS) as pool:
            assert all(pool.map(lambda key: len(store.get(key).bytes()), keys))

    return _spent(get_all, time.process_time)


def _warm(mounted: Mounted, files: int) -> Spent:
    """The whole command; nothing is cached before it and everything after it."""
    done = mounted.command("evict", str(mounted.path))
    assert done.returncode == 0, done.stderr
    before = mounted.count("prefetched")

    def warm() -> None:
        done = mounted.command("warm", str(mounted.path), timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr

    def processor() -> float:
        times = os.times()
        return daemon_cpu(mounted) + times.children_user + times.children_system

    spent = _spent(warm, processor)
    assert mounted.count("prefetched") - before == files
    return spent


def _spent(work: Callable[[], None], processor: Callable[[], float]) -> Spent:
    before, begin = processor(), time.monotonic()
    work()
    seconds = time.monotonic() - begin
    return seconds, processor() - before
