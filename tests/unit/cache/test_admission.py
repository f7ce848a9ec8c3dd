"""The epoch policy in a real cache: newcomers, staged objects, and the clock that goes with the uses."""

from __future__ import annotations

import os
from pathlib import Path

import lmdb
import pytest

from gpufs.cache import CHUNK, Cache, Purpose, policy
from gpufs.cache import eviction as eviction_module
from gpufs.cache.policy import History
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

LIMIT = 10 * MIB
KEPT = 9  # objects of 1 MiB, with the margin


@pytest.fixture(autouse=True)
def _no_time_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts in uses alone is enough, and nothing is remembered for a moment."""
    monkeypatch.setattr(policy, "_ERA_NS", 0)
    monkeypatch.setattr(eviction_module, "_REFUSING_SECONDS", 0)


def read_epoch(cache: Cache, names: range) -> int:
    """Each of the objects once; how many were there."""
    hits = 0
    for name in names:
        if lookup(cache, name) is not None:
            hits += 1
        else:
            publish(cache, name, MIB)
        cache.flush()
    return hits


def stage(cache: Cache, name: object) -> bool:
    read_all(cache.publish(digest_of(name), content(name, MIB), purpose=Purpose.STAGE))
    return cache.has_object(digest_of(name))


def history_of(cache: Cache) -> History:
    return cache._catalogue.history()


def test_what_epochs_use_is_kept_and_newcomers_are_served_all_the_same(
    directory: Path, opened: OpenCache
) -> None:
    cache, metrics = opened(directory, size=LIMIT, policy="epoch")
    assert [read_epoch(cache, range(18)) for _ in range(4)] == [0, KEPT, KEPT, KEPT]
    assert metrics.evictions.value == 0
    assert metrics.not_admitted.value == 4 * (18 - KEPT)
    assert cache.usage().bytes == bytes_on_disk(directory)


def test_another_data_set_takes_the_place_of_the_first(directory: Path, opened: OpenCache) -> None:
    cache, metrics = opened(directory, size=LIMIT, policy="epoch")
    for _ in range(3):
        read_epoch(cache, range(18))
    ratios = [read_epoch(cache, range(100, 130)) for _ in range(3)]
    assert ratios == [0, KEPT, KEPT]
    assert metrics.evictions.value == KEPT


def test_a_refusal_holds_for_a_moment_and_for_nothing_smaller(
    directory: Path, opened: OpenCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eviction_module, "_REFUSING_SECONDS", 3600)
    cache, metrics = opened(directory, size=LIMIT, policy="epoch")
    read_epoch(cache, range(KEPT + 1))
    assert cache.at_once(MIB) and not cache.fits(MIB)
    cache.evict(digest_of(0))
    publish(cache, "refused", MIB)
    assert not cache.has_object(digest_of("refused")) and metrics.not_admitted.value == 2
    publish(cache, "smaller", MIB - 4096)
    assert cache.has_object(digest_of("smaller"))


def test_the_limit_holds_when_it_was_made_smaller(directory: Path, opened: OpenCache) -> None:
    cache, _ = opened(directory, size=LIMIT, policy="epoch")
    read_epoch(cache, range(KEPT))
    cache.close()
    cache, metrics = opened(directory, size=LIMIT // 2, policy="epoch")
    publish(cache, "new", MIB)
    assert cache.usage().bytes == bytes_on_disk(directory) <= LIMIT // 2
    assert metrics.evictions.value >= KEPT // 2


def test_a_partial_object_is_one_use_however_many_chunks_it_has(directory: Path, opened: OpenCache) -> None:
    cache, _ = opened(directory, policy="epoch")
    publish(cache, "first", 1000)
    cache.flush()
    before = history_of(cache).clock
    partial = cache.open_partial(digest_of("p"), 5 * CHUNK)
    for chunk in range(5):
        assert partial.write(chunk, chunk_content("p", chunk, 5 * CHUNK))
        cache.flush()
    partial.close()
    cache.flush()
    assert history_of(cache).clock == before + 1


def test_the_clock_goes_on_after_times_of_an_earlier_version(directory: Path, opened: OpenCache) -> None:
    """Such an entry was used a moment ago, not thousands of millions of uses ago."""
    cache, _ = opened(directory, size=LIMIT, policy="epoch")
    read_epoch(cache, range(KEPT))
    cache.close()
    with lmdb.open(str(directory / "catalogue"), max_dbs=3) as env:
        about = env.open_db(b"about")
        with env.begin(write=True) as txn:
            ticks = History.unpack(txn.pop(b"history", db=about))
    cache, metrics = opened(directory, size=LIMIT, policy="epoch")
    assert [read_epoch(cache, range(18)) for _ in range(3)] == [KEPT] * 3
    assert metrics.evictions.value == 0
    assert history_of(cache).base > ticks.clock


# Staged objects


def test_a_staged_object_gives_its_room_away_once_it_was_read(directory: Path, opened: OpenCache) -> None:
    cache, metrics = opened(directory, size=LIMIT, policy="epoch")
    read_epoch(cache, range(KEPT - 1))
    assert stage(cache, "staged")
    publish(cache, "refused", MIB)
    assert not cache.has_object(digest_of("refused"))
    assert lookup(cache, "staged")
    cache.flush()
    publish(cache, "next", MIB)
    assert cache.has_object(digest_of("next")) and not cache.has_object(digest_of("staged"))
    assert metrics.prefetched_used.value == 1 and metrics.prefetched_wasted.value == 0


def test_staged_objects_have_an_allowance_of_what_is_in_use_and_each_order_has_its_own(
    directory: Path, opened: OpenCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eviction_module, "_ALLOWANCE_SHARE", 0.2)
    cache, metrics = opened(directory, size=LIMIT, policy="epoch")
    read_epoch(cache, range(KEPT))
    assert 2 * MIB <= cache.room_for_staged() < 3 * MIB
    assert [stage(cache, f"staged {n}") for n in range(3)] == [True, True, False]
    assert cache.room_for_staged() < MIB and metrics.evictions.value == 2
    for n in range(2):
        assert lookup(cache, f"staged {n}")
    cache.flush()
    assert 2 * MIB <= cache.room_for_staged() < 3 * MIB, "that of those that were read"
    cache.begin_order()
    assert 4 * MIB <= cache.room_for_staged() < 5 * MIB
    assert metrics.prefetched_wasted.value == 0


def test_a_use_before_the_catalogue_knows_of_the_object_is_not_lost(
    directory: Path, opened: OpenCache
) -> None:
    """The fetch process has kept it, and a reader has opened it, before the one told of it."""
    cache, metrics = opened(directory, policy="epoch")
    read_all(cache.publish(digest_of("a"), content("a", 1000), purpose=Purpose.FILL))
    pending, cache._catalogue._pending.changes = dict(cache._catalogue._pending.changes), {}
    cache.touch([digest_of("a")])
    cache.flush()
    assert metrics.prefetched_used.value == 0
    cache._catalogue._pending.changes = pending
    cache.flush()
    assert metrics.prefetched_used.value == 1
    assert len(object_files(directory)) == 1 and os.listdir(directory / "tmp") == []
