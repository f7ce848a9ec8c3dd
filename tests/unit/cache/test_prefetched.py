"""Objects that were fetched before anybody asked: whether they were used is known."""

from __future__ import annotations

from pathlib import Path

from gpufs.cache import Purpose
from tests.unit.cache.conftest import OpenCache
from tests.unit.cache.helpers import MIB, content, digest_of, lookup, publish, read_all


def test_the_first_use_is_counted_once(directory: Path, opened: OpenCache) -> None:
    cache, metrics = opened(directory)
    read_all(cache.publish(digest_of("a"), content("a", 1000), purpose=Purpose.FILL))
    publish(cache, "asked for", 1000)
    cache.flush()
    assert metrics.prefetched_used.value == 0
    for _ in range(2):
        assert lookup(cache, "a") and lookup(cache, "asked for")
        cache.flush()
    assert metrics.prefetched_used.value == 1
    for name in ("a", "asked for"):
        cache.evict(digest_of(name))
    assert metrics.prefetched_wasted.value == 0


def test_one_that_goes_unused_was_wasted(directory: Path, opened: OpenCache) -> None:
    cache, metrics = opened(directory)
    for name in "ab":
        read_all(cache.publish(digest_of(name), content(name, 1000), purpose=Purpose.FILL))
    cache.evict(digest_of("a"))
    cache.flush()
    cache.evict(digest_of("b"))
    assert (metrics.prefetched_used.value, metrics.prefetched_wasted.value) == (0, 2)


def test_nothing_is_evicted_for_what_nobody_asked_for(directory: Path, opened: OpenCache) -> None:
    cache, metrics = opened(directory, size=4 * MIB)
    for name in range(3):
        publish(cache, name, MIB)
    read_all(cache.publish(digest_of("early"), content("early", MIB), purpose=Purpose.FILL))
    assert lookup(cache, "early") is None and metrics.evictions.value == 0
