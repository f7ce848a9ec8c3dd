"""What the fast path answers alone: stat of names the kernel has forgotten, and opens of cached files."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.bench.lab import Dataset, daemon_cpu, fill_index, idle, prepared, served, table

FILES = 20_000
OPENED = 2_000
THREADS = 4


def run() -> None:
    dataset = Dataset(FILES, 20)
    rows = []
    with served(dataset) as endpoint, prepared(endpoint, fast_path="auto") as mounted:
        fill_index(mounted, dataset)
        mounted.mount()
        paths = [mounted.path / dataset.path(number) for number in range(FILES)]
        for threads in (1, THREADS):
            before = mounted.count("remote_requests")
            idle(mounted)
            seconds, processor = _measured(paths, os.stat, threads, lambda: daemon_cpu(mounted))
            assert mounted.count("remote_requests") == before, "the source was asked"
            rows.append(_row("stat of forgotten names", threads, seconds, processor, FILES))
        few = paths[:OPENED]
        _in_threads(few, _read, 8)  # into the cache
        for threads in (1, THREADS):
            idle(mounted)
            seconds, processor = _measured(few, _read, threads, lambda: daemon_cpu(mounted))
            rows.append(_row("open, read, close of cached files", threads, seconds, processor, OPENED))
    table(rows)


def _row(what: str, threads: int, seconds: float, processor: float, count: int) -> tuple[str, str]:
    return (
        f"{what}, {threads} thread{'s' if threads > 1 else ''}",
        f"{count / seconds:,.0f}/s, {processor / count * 1e6:.1f} us of the daemon each",
    )


def _measured(
    paths: list[Path], work: Callable[[Path], object], threads: int, cpu: Callable[[], float]
) -> tuple[float, float]:
    """Seconds, and the daemon's processor time; the kernel knows no names at the beginning."""
    for _ in range(4):  # a name that was used lately survives the first time
        Path("/proc/sys/vm/drop_caches").write_text("2")
    used, begin = cpu(), time.perf_counter()
    _in_threads(paths, work, threads)
    return time.perf_counter() - begin, cpu() - used


def _in_threads(paths: list[Path], work: Callable[[Path], object], threads: int) -> None:
    parts = [paths[n::threads] for n in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(lambda part=part: [work(path) for path in part]) for part in parts]:
            done.result()


def _read(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        assert os.read(fd, 1 << 16)
    finally:
        os.close(fd)
