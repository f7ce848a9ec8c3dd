"""Whole objects: what is published is found, by anybody who may see it and by nobody else."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from gpufs.cache import CHUNK, Limit, store
from gpufs.errors import CacheUnusable
from tests.unit.cache.conftest import OpenCache
from tests.unit.cache.helpers import (
    content,
    digest_of,
    lookup,
    object_files,
    open_cache,
    publish,
    read_all,
)


@pytest.mark.parametrize("size", [0, 1, 4096, 62_000, CHUNK])
def test_published_object_is_read_back_from_both_descriptors(
    directory: Path, opened: OpenCache, size: int
) -> None:
    cache, metrics = opened(directory)
    assert cache.open_object(digest_of("a")) is None
    assert read_all(cache.publish(digest_of("a"), content("a", size), "s3://b")) == content("a", size)
    assert lookup(cache, "a") == content("a", size)
    assert metrics.cache_errors.value == 0


def test_layout_and_modes(directory: Path, opened: OpenCache) -> None:
    cache, _ = opened(directory)
    publish(cache, "a", 1000)
    name = digest_of("a").hex()
    path = directory / "objects" / name[:2] / name
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    cache.flush()
    for found in (directory, *directory.rglob("*")):
        assert stat.S_IMODE(found.stat().st_mode) == (0o700 if found.is_dir() else 0o600), found


def test_publishing_again_replaces_and_counts_once(directory: Path, opened: OpenCache) -> None:
    cache, _ = opened(directory)
    for _ in range(3):
        publish(cache, "a", 5000)
        cache.flush()
    assert (cache.usage().bytes, cache.usage().objects) == (8192, 1)


def test_objects_survive_a_clean_restart_even_into_another_boot(directory: Path) -> None:
    cache, _ = open_cache(directory)
    assert cache.first
    publish(cache, "a", 5000)
    used = cache.usage()
    cache.close()
    again, _ = open_cache(directory, boot_id="boot-2")
    assert again.usage() == used
    assert lookup(again, "a") == content("a", 5000)
    again.close()


def test_explicit_eviction_frees_the_object_and_keeps_open_descriptors(
    directory: Path, opened: OpenCache
) -> None:
    cache, metrics = opened(directory)
    fd = cache.publish(digest_of("a"), content("a", 5000), "test")
    assert cache.evict(digest_of("a")) == 5000
    assert read_all(fd) == content("a", 5000)
    assert lookup(cache, "a") is None
    assert cache.usage().bytes == 0
    assert cache.evict(digest_of("a")) == 0
    assert metrics.evictions.value == 0


def test_index_directories_are_stable_and_apart(directory: Path, opened: OpenCache) -> None:
    cache, _ = opened(directory)
    one, other = cache.index_directory("s3://a/b?x"), cache.index_directory("s3://a/c")
    assert one.is_dir() and one.parent == other.parent == directory / "index"
    assert one != other and one == cache.index_directory("s3://a/b?x")


def test_percentages_are_of_the_disk(directory: Path, small_disk: Path, opened: OpenCache) -> None:
    from gpufs.cache import Cache
    from gpufs.metrics import Metrics

    cache = Cache(
        small_disk / "c", cache_size=Limit(percent=50), min_free=Limit(percent=10), metrics=Metrics()
    )
    assert cache.usage().limit == 12 * 2**20
    cache.close()


def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, 1234, -1)
    with pytest.raises(CacheUnusable, match="belongs to user 1234"):
        open_cache(tmp_path)


def test_a_directory_that_others_can_write_is_refused(directory: Path) -> None:
    directory.mkdir()
    directory.chmod(0o777)
    with pytest.raises(CacheUnusable, match="writable by others"):
        open_cache(directory)


def test_a_file_is_refused(directory: Path) -> None:
    directory.write_text("")
    with pytest.raises(CacheUnusable):
        open_cache(directory)


def test_nothing_is_left_in_tmp(directory: Path, opened: OpenCache) -> None:
    cache, _ = opened(directory)
    for number in range(20):
        publish(cache, number, 100)
    assert list((directory / "tmp").iterdir()) == []
    assert len(object_files(directory)) == 20


def test_what_a_killed_process_was_writing_goes_while_others_live(
    directory: Path, opened: OpenCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_FLUSH_SECONDS", 0.01)
    monkeypatch.setattr(store, "_STALE_SECONDS", 0.2)
    opened(directory)
    old, new = directory / "tmp" / "theirs.1", directory / "tmp" / "theirs.2"
    old.write_bytes(b"half of an ob")
    os.utime(old, (0, 0))
    end = time.monotonic() + 20
    while old.exists():
        new.write_bytes(b"being written")
        assert time.monotonic() < end
        time.sleep(0.01)
    assert new.exists()
