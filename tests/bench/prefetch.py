"""A reader of small files that are 20 ms away: without and with what is fetched in advance.

One thread reads, on 2 processors that the mount and the server share. `without` is a mount whose cache can
keep nothing, so that nothing is fetched in advance either. In each of the others every file must have been
fetched, and only once.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from gpufs import hints
from tests.bench.lab import as_they_come, prepared
from tests.mounts import Mounted
from tests.servers import BUCKET
from tests.servers.distant import Distant, distant_server

LATENCY = 0.02  # seconds
SIZE = 8192
FILES = 4000
SAMPLE = 300  # files of the run without
WANTED = 1000  # files/s of the reader whose order is announced

Row = tuple[str, str]


def run() -> None:
    as_they_come(_rows())


def _rows() -> Iterator[Row]:
    flat = [f"train/{number:06}.jpeg" for number in range(FILES)]
    classes = [f"c{number // 40:03}/{number:06}.jpeg" for number in range(FILES)]
    with _world(flat[:SAMPLE], cache_size="64KiB") as (mounted, server):
        without = _read(mounted, _shuffled(flat[:SAMPLE])) / SAMPLE
        yield ("without, a file", f"{without * 1e3:.1f} ms, {FILES:,} files take {without * FILES:.0f} s")
    for what, keys in (
        (f"epoch fill, {FILES:,} files in 1 directory, random order", flat),
        (f"epoch fill, {FILES:,} files in 100 directories, random order", classes),
    ):
        with _world(keys) as (mounted, server):
            seconds = _read(mounted, _shuffled(keys))
            yield (what, _told(seconds, FILES, without) + _once(server, keys))
    with _world(flat) as (mounted, server):
        order = _shuffled(flat)
        assert hints.announce(mounted.path, order)
        late, seconds = _read_at(mounted, order, WANTED)
        yield (
            f"announced, a reader that wants {WANTED:,} files/s",
            f"{FILES / seconds:,.0f} files/s, at most {late * 1e3:.0f} ms late, {mounted.count('misses')} "
            "were not here" + _once(server, flat),
        )
    with _world(flat) as (mounted, server):
        assert hints.announce(mounted.path, order)
        seconds = _read(mounted, order)
        yield ("announced, as fast as it goes", _told(seconds, FILES, without) + _once(server, flat))
    # Of a tenth of a large directory: too little for epoch fill to begin at once.
    large = [f"train/{number:06}.jpeg" for number in range(20_000)]
    with _world(large) as (mounted, server):
        part = large[5000:5390]
        seconds = _read(mounted, part)
        extra = sum(server.fetched().values()) - len(part)
        yield (
            f"neighbours, {len(part)} files of 20,000 in the order of names",
            _told(seconds, len(part), without) + f"; {extra} more were fetched",
        )
    yield from _larger_than_the_cache(flat, without)


def _larger_than_the_cache(keys: list[str], without: float) -> Iterator[Row]:
    """A cache for half of the files: the second epoch announced, or in the order of the first."""
    order = _shuffled(keys)
    half = f"{FILES * SIZE // 2}"
    for what in ("in the same order again", "announced"):
        with _world(keys, cache_size=half) as (mounted, server):
            _read(mounted, order)
            before = sum(server.fetched().values())
            if what == "announced":
                order = _shuffled(keys, seed=2)
                assert hints.announce(mounted.path, order)
            seconds = _read(mounted, order)
            again = sum(server.fetched().values()) - before
            yield (
                f"half of the files cached, 2nd epoch {what}",
                _told(seconds, FILES, without) + f"; {again / FILES:.2f} fetched a file",
            )


@contextmanager
def _world(keys: Sequence[str], **options: str) -> Iterator[tuple[Mounted, Distant]]:
    """A mount with its index full and its cache empty."""
    with (
        distant_server(keys, SIZE, LATENCY) as server,
        prepared(server.endpoint, **options) as mounted,
    ):
        assert mounted.source == f"s3://{BUCKET}"
        mounted.mount().crawled()
        yield mounted, server


def _shuffled(keys: Sequence[str], seed: int = 1) -> list[str]:
    return random.Random(seed).sample(keys, len(keys))


def _read(mounted: Mounted, order: Sequence[str]) -> float:
    begin = time.monotonic()
    for path in order:
        (mounted.path / path).read_bytes()
    return time.monotonic() - begin


def _read_at(mounted: Mounted, order: Sequence[str], rate: float) -> tuple[float, float]:
    """Each file at its time; by how much the latest was late in the second half, and all the seconds."""
    begin = time.monotonic()
    late = 0.0
    for count, path in enumerate(order):
        ahead = begin + count / rate - time.monotonic()
        if ahead > 0:
            time.sleep(ahead)
        (mounted.path / path).read_bytes()
        if count > len(order) / 2:
            late = max(late, time.monotonic() - begin - count / rate)
    return late, time.monotonic() - begin


def _told(seconds: float, files: int, without: float) -> str:
    return f"{seconds:.1f} s, {files / seconds:,.0f} files/s, {without * files / seconds:.1f} x as fast"


def _once(server: Distant, keys: Sequence[str]) -> str:
    counts = server.fetched()
    assert set(counts) == set(keys), f"{len(set(keys) - set(counts))} were not fetched"
    twice = sum(count > 1 for count in counts.values())
    return "; each fetched once" if not twice else f"; {twice} FETCHED TWICE"
