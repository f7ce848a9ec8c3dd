"""The limits hold at every moment, and full is never the reader's trouble."""

from __future__ import annotations

import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpufs.cache import CHUNK, space
from tests.unit.cache.conftest import OpenCache
from tests.unit.cache.helpers import (
    MIB,
    bytes_on_disk,
    chunk_content,
    content,
    digest_of,
    lookup,
    object_files,
    publish,
    read_all,
)


@pytest.mark.parametrize("policy", ["epoch", "lru"])
def test_limit_is_kept_under_threads_on_a_data_set_larger_than_the_cache(
    directory: Path, opened: OpenCache, policy: str
) -> None:
    limit = 8 * MIB
    cache, metrics = opened(directory, size=limit, policy=policy)
    worst = 0
    watching = threading.Lock()

    def read_some(seed: int) -> None:
        nonlocal worst
        choice = random.Random(seed)
        for _ in range(60):
            name, size = (number := choice.randrange(60)), 100_000 + 10_000 * (number % 40)
            if (found := lookup(cache, name)) is None:
                publish(cache, name, size)
            else:
                assert found == content(name, size)
            with watching:
                worst = max(worst, cache.usage().bytes, bytes_of_objects(directory))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(read_some, range(8)))
    assert worst <= limit
    assert (metrics.evictions if policy == "lru" else metrics.not_admitted).value > 0
    assert metrics.cache_errors.value == 0
    assert cache.usage().bytes == bytes_on_disk(directory)


def bytes_of_objects(directory: Path) -> int:
    """Like bytes_on_disk, while files come and go."""
    total = 0
    for path in object_files(directory).values():
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


def test_least_recently_used_goes_first_and_a_hit_counts_as_use(directory: Path, opened: OpenCache) -> None:
    cache, _ = opened(directory, size=10 * MIB)
    for name in "abcdefghi":
        publish(cache, name, MIB)
    cache.flush()
    assert lookup(cache, "a") is not None
    publish(cache, "new", MIB)
    assert lookup(cache, "a") is not None
    assert lookup(cache, "b") is None
    assert lookup(cache, "new") is not None
    cache.flush()
    assert lookup(cache, "i") is not None


def test_eviction_keeps_open_descriptors_readable(directory: Path, opened: OpenCache) -> None:
    cache, _ = opened(directory, size=4 * MIB)
    held = {name: cache.publish(digest_of(name), content(name, MIB), "test") for name in range(12)}
    assert lookup(cache, 0) is None
    for name, fd in held.items():
        assert read_all(fd) == content(name, MIB)


def test_an_object_larger_than_the_limit_is_served_and_not_kept(directory: Path, opened: OpenCache) -> None:
    cache, metrics = opened(directory, size=MIB)
    publish(cache, "small", 1000)
    publish(cache, "large", 2 * MIB)
    assert lookup(cache, "large") is None
    assert lookup(cache, "small") is not None
    with_nothing = cache.open_partial(digest_of("huge"), 3 * CHUNK)
    assert not with_nothing.write(0, chunk_content("huge", 0, 3 * CHUNK))
    assert not with_nothing.has(0) and with_nothing.fd == -1 and not with_nothing.complete
    with_nothing.close()
    assert (metrics.cache_errors.value, metrics.evictions.value) == (0, 0)


def test_partial_chunks_count_and_an_open_partial_is_evicted_last(directory: Path, opened: OpenCache) -> None:
    cache, _ = opened(directory, size=16 * MIB)
    size = 5 * CHUNK
    unused = cache.open_partial(digest_of("unused"), size - 2 * CHUNK)
    assert unused.write(0, chunk_content("unused", 0, size))
    partial = cache.open_partial(digest_of("p"), size - 2 * CHUNK)
    assert partial.write(0, chunk_content("p", 0, size))
    assert cache.usage().bytes == 2 * CHUNK
    assert cache.usage().objects == 0
    unused.close()
    for name in range(6):
        publish(cache, name, 2 * MIB)
    assert partial.has(0)
    assert (directory / "partial" / digest_of("p").hex()).exists()
    assert not (directory / "partial" / digest_of("unused").hex()).exists()
    partial.close()
    assert cache.usage().bytes == bytes_on_disk(directory) <= 16 * MIB


def test_min_free_is_kept_on_a_small_disk(small_disk: Path, opened: OpenCache) -> None:
    """Case 13: 16 readers on a data set larger than the disk."""
    cache, metrics = opened(small_disk / "cache", min_free=8 * MIB)

    def read_some(seed: int) -> int:
        choice = random.Random(seed)
        least = 2**60
        for _ in range(25):
            name = choice.randrange(80)
            if (found := lookup(cache, name)) is None:
                publish(cache, name, 500_000)
            else:
                assert found == content(name, 500_000)
            disk = os.statvfs(small_disk)
            least = min(least, disk.f_bavail * disk.f_frsize)
        return least

    with ThreadPoolExecutor(16) as threads:
        least = min(threads.map(read_some, range(16)))
    # The catalogue itself (LMDB) is on the same disk.
    assert least >= 8 * MIB - MIB
    assert metrics.evictions.value > 0
    assert cache.usage().objects > 10
    cache.flush()


def test_a_disk_filled_by_others_is_bypassed(small_disk: Path, opened: OpenCache) -> None:
    """ENOSPC at any place: every read is right, nothing is torn."""
    cache, _ = opened(small_disk / "cache")
    publish(cache, "before", MIB)
    with open(small_disk / "other", "wb", buffering=0) as other:
        try:
            while True:
                other.write(bytes(MIB))
        except OSError:
            pass
        for name in range(8):
            publish(cache, name, 3 * MIB)
        partial = cache.open_partial(digest_of("p"), 2 * CHUNK)
        partial.write(0, chunk_content("p", 0, 2 * CHUNK))
        partial.close()
        cache.flush()
    for name in range(8):
        assert lookup(cache, name) in (None, content(name, 3 * MIB))
    (small_disk / "other").unlink()
    publish(cache, "after", MIB)
    assert lookup(cache, "after") == content("after", MIB)


def test_a_disk_that_is_full_before_its_statistics_say_so(
    small_disk: Path, opened: OpenCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The free space was measured, then another program took it: write(2) gives ENOSPC."""
    monkeypatch.setattr(space, "_NEARLY_FULL", 0)
    cache, metrics = opened(small_disk / "cache")
    publish(cache, "before", MIB)
    with open(small_disk / "other", "wb", buffering=0) as other:
        try:
            while True:
                other.write(bytes(MIB))
        except OSError:
            pass
    publish(cache, "a", 2 * MIB)
    assert metrics.cache_errors.value > 0
    assert lookup(cache, "a") is None
    assert list((small_disk / "cache" / "tmp").iterdir()) == []
