"""Microseconds per cache operation, in a directory of /var/tmp."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from time import perf_counter

from gpufs.cache import CHUNK, Cache, Limit
from gpufs.metrics import Metrics
from tests.bench.lab import table

SIZE = 62_000
COUNT = 5000


def run() -> None:
    rows: list[tuple[str, str]] = []

    def note(what: str, call: object, count: int) -> None:
        assert callable(call)
        begin = perf_counter()
        call()
        rows.append((what, f"{(perf_counter() - begin) / count * 1e6:.2f} us"))

    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        cache = Cache(
            Path(directory) / "cache", cache_size=Limit(2**31), min_free=Limit(0), metrics=Metrics()
        )
        digests = [os.urandom(16) for _ in range(COUNT)]
        data = memoryview(os.urandom(SIZE))
        note("publish 62 KB", lambda: [os.close(cache.publish(d, data, "bench")) for d in digests], COUNT)
        cache.flush()
        note("open_object, hit", lambda: [os.close(cache.open_object(d) or -1) for d in digests], COUNT)
        absent = [os.urandom(16) for _ in range(COUNT)]
        note("open_object, miss", lambda: [cache.open_object(d) for d in absent], COUNT)
        note("flush of 5,000 access times", cache.flush, 1)
        partial = cache.open_partial(os.urandom(16), 64 * CHUNK)
        chunk = memoryview(os.urandom(CHUNK))
        note("write of a chunk", lambda: [partial.write(i, chunk) for i in range(64)], 64)
        note("has", lambda: [partial.has(i % 64) for i in range(100_000)], 100_000)
        partial.close()
        note("evict", lambda: [cache.evict(d) for d in digests], COUNT)
        cache.close()
    table(rows)
