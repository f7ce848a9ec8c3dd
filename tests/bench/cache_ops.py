"""Microseconds per cache operation in a directory: python -m tests.bench.cache_ops [DIRECTORY]."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

from gpufs.cache import CHUNK, Cache, Limit
from gpufs.metrics import Metrics

SIZE = 62_000
COUNT = 5000


def main(parent: str | None) -> None:
    with tempfile.TemporaryDirectory(dir=parent) as directory:
        cache = Cache(
            Path(directory) / "cache", cache_size=Limit(2**31), min_free=Limit(0), metrics=Metrics()
        )
        digests = [os.urandom(16) for _ in range(COUNT)]
        data = memoryview(os.urandom(SIZE))
        report("publish 62 KB", lambda: [os.close(cache.publish(d, data, "bench")) for d in digests], COUNT)
        cache.flush()
        report("open_object, hit", lambda: [os.close(cache.open_object(d) or -1) for d in digests], COUNT)
        absent = [os.urandom(16) for _ in range(COUNT)]
        report("open_object, miss", lambda: [cache.open_object(d) for d in absent], COUNT)
        report("flush of 5000 access times", cache.flush, 1)
        partial = cache.open_partial(os.urandom(16), 64 * CHUNK)
        chunk = memoryview(os.urandom(CHUNK))
        report("write of a chunk", lambda: [partial.write(i, chunk) for i in range(64)], 64)
        report("has", lambda: [partial.has(i % 64) for i in range(100_000)], 100_000)
        partial.close()
        report("evict", lambda: [cache.evict(d) for d in digests], COUNT)
        cache.close()


def report(what: str, run: object, count: int) -> None:
    assert callable(run)
    started = time.perf_counter()
    run()
    print(f"{what}: {(time.perf_counter() - started) / count * 1e6:.2f} us")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
