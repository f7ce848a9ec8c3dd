"""What is trusted after a crash, and what is not."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from gpufs.cache import CHUNK
from tests.unit.cache.conftest import Launch, OpenCache
from tests.unit.cache.helpers import (
    MIB,
    bytes_on_disk,
    chunk_content,
    content,
    digest_of,
    lookup,
    object_files,
    open_cache,
    publish,
    read_all,
    run_killed,
    scrub,
)

CRASH = """
cache, _ = open_cache(directory)
for name in ("a", "b", "c"):
    publish(cache, name, 100_000)
fd = cache.publish(digest_of("large"), content("large", 4 * MIB), "test")
partial = cache.open_partial(digest_of("p"), 2 * CHUNK)
for chunk in range(2):
    partial.write(chunk, chunk_content("p", chunk, 2 * CHUNK))
begun = cache.open_partial(digest_of("begun"), 2 * CHUNK)
begun.write(0, chunk_content("begun", 0, 2 * CHUNK))
(cache.index_directory("s3://b") / "data.mdb").write_text("x")
(directory / "tmp" / "left").write_text("x")
cache.flush()
publish(cache, "unflushed", 5_000)
os.kill(os.getpid(), signal.SIGKILL)
"""
PARTIAL = b"".join(chunk_content("p", chunk, 2 * CHUNK) for chunk in range(2))


def test_kill_in_the_same_boot_keeps_everything_but_tmp(directory: Path, opened: OpenCache) -> None:
    run_killed(CRASH, directory)
    cache, metrics = opened(directory)
    assert cache.first
    assert list((directory / "tmp").iterdir()) == []
    assert (directory / "index").exists() and any((directory / "index").iterdir())
    for name in ("a", "b", "c"):
        assert lookup(cache, name) == content(name, 100_000)
    assert lookup(cache, "p") == PARTIAL
    assert lookup(cache, "unflushed") == content("unflushed", 5_000)
    # Wrong by the last second at most, before the scan; exact after it.
    assert bytes_on_disk(directory) - cache.usage().bytes == 8192
    scrub(cache)
    assert cache.usage().bytes == bytes_on_disk(directory)
    assert cache.usage().objects == 6
    assert (metrics.cache_errors.value, metrics.corrupt_entries.value) == (0, 0)


@pytest.mark.parametrize("published", [1, 7, 40])
def test_kill_in_the_middle_of_publishes_never_leaves_a_torn_object(
    directory: Path, opened: OpenCache, launch: Launch, published: int
) -> None:
    process = launch(
        """
cache, _ = open_cache(directory)
def work(thread):
    for number in range(10_000):
        publish(cache, (thread, number), 300_000)
        os.write(1, b"published" + bytes([10]))
threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
[t.start() for t in threads]
""",
        directory,
    )
    assert process.stdout is not None
    for _ in range(published):
        assert process.stdout.readline() == "published\n"
    process.kill()
    process.communicate()
    cache, _ = opened(directory)
    assert list((directory / "tmp").iterdir()) == []
    found = 0
    for thread in range(4):
        for number in range(10_000):
            data = lookup(cache, (thread, number))
            if data is None:
                break
            assert data == content((thread, number), 300_000)
            found += 1
    assert found >= published
    scrub(cache)
    assert cache.usage().objects == found == len(object_files(directory))
    assert cache.usage().bytes == bytes_on_disk(directory)


def test_after_an_unclean_reboot_good_entries_come_back_on_first_use(
    directory: Path, opened: OpenCache
) -> None:
    run_killed(CRASH, directory)
    cache, metrics = opened(directory, boot_id="boot-2")
    assert not any((directory / "index").iterdir())
    assert not any((directory / "partial").iterdir())
    for name, size in (("a", 100_000), ("large", 4 * MIB)):
        assert lookup(cache, name) is None
        fd = cache.rescue(digest_of(name))
        assert fd is not None and read_all(fd) == content(name, size)
        assert lookup(cache, name) == content(name, size)
    fd = cache.rescue(digest_of("p"))
    assert fd is not None and read_all(fd) == PARTIAL
    # It was in no flushed batch: its bytes cannot be told from torn ones.
    assert cache.rescue(digest_of("unflushed")) is None
    assert cache.rescue(digest_of("never seen")) is None
    assert (metrics.cache_errors.value, metrics.corrupt_entries.value) == (0, 0)
    scrub(cache)
    assert cache.usage().bytes == bytes_on_disk(directory)


def test_scrub_brings_back_the_good_and_deletes_the_bad(directory: Path, opened: OpenCache) -> None:
    run_killed(CRASH, directory)
    damage = object_files(directory)
    with damage[digest_of("b")].open("r+b") as file:
        file.seek(77_777)
        byte = file.read(1)
        file.seek(77_777)
        file.write(bytes([byte[0] ^ 1]))
    os.truncate(damage[digest_of("p")], CHUNK)
    cache, metrics = opened(directory, boot_id="boot-2")
    scrub(cache)
    assert not (directory / "unverified").exists()
    for name in ("a", "c"):
        assert lookup(cache, name) == content(name, 100_000)
    assert lookup(cache, "b") is None and lookup(cache, "p") is None
    assert metrics.corrupt_entries.value >= 1
    assert cache.usage().bytes == bytes_on_disk(directory)
    assert cache.usage().objects == len(object_files(directory)) == 3


def test_a_corrupt_entry_is_a_counted_miss(directory: Path, opened: OpenCache) -> None:
    run_killed(CRASH, directory)
    object_files(directory)[digest_of("a")].write_bytes(bytes(100_000))
    cache, metrics = opened(directory, boot_id="boot-2")
    assert cache.rescue(digest_of("a")) is None
    assert metrics.corrupt_entries.value == 1
    assert not list((directory / "unverified").rglob(digest_of("a").hex()))
    publish(cache, "a", 100_000)
    scrub(cache)
    assert lookup(cache, "a") == content("a", 100_000)


def test_a_second_crash_before_the_scrub_ended_loses_nothing_good(directory: Path, opened: OpenCache) -> None:
    run_killed(CRASH, directory)
    run_killed(
        """
cache, _ = open_cache(directory, boot_id="boot-2")
os.close(cache.rescue(digest_of("a")))
publish(cache, "later", 1000)
cache.flush()
os.kill(os.getpid(), signal.SIGKILL)
""",
        directory,
    )
    cache, metrics = opened(directory, boot_id="boot-3")
    assert object_files(directory) == {}
    scrub(cache)
    for name, size in (("a", 100_000), ("b", 100_000), ("c", 100_000), ("later", 1000), ("large", 4 * MIB)):
        assert lookup(cache, name) == content(name, size)
    assert metrics.corrupt_entries.value == 0
    assert cache.usage().bytes == bytes_on_disk(directory)


def test_rescue_costs_nothing_when_nothing_waits(
    directory: Path, opened: OpenCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, _ = opened(directory)
    publish(cache, "a", 1000)
    with monkeypatch.context() as patch:
        for call in ("open", "stat", "lstat", "listdir", "rename", "unlink"):
            patch.delattr(os, call)
        assert cache.rescue(digest_of("a")) is None


def test_an_object_fetched_anew_is_counted_once(directory: Path, opened: OpenCache) -> None:
    run_killed(CRASH, directory)
    cache, _ = opened(directory, boot_id="boot-2")
    scrub_later = list((directory / "unverified").glob("??/*"))
    publish(cache, "a", 100_000)
    cache.open_partial(digest_of("p"), 2 * CHUNK).close()
    assert len(list((directory / "unverified").glob("??/*"))) == len(scrub_later) - 2
    scrub(cache)
    assert cache.usage().bytes == bytes_on_disk(directory)


def test_what_is_published_during_close_is_found_by_the_next_scan(
    directory: Path, opened: OpenCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker is between its reservation and the catalogue while the cache closes."""
    cache, _ = open_cache(directory)
    real = os.rename

    def close_first(source: str, target: str) -> None:
        monkeypatch.setattr(os, "rename", real)
        cache.close()
        real(source, target)

    (path := Path(cache._layout.object_path(digest_of("late")))).parent.mkdir(parents=True)
    monkeypatch.setattr(os, "rename", close_first)
    publish(cache, "late", 5000)
    assert path.exists()
    publish(cache, "too late", 5000)
    cache, _ = opened(directory)
    assert lookup(cache, "too late") is None
    scrub(cache)
    assert cache.usage().bytes == bytes_on_disk(directory) == 8192


def test_a_stopped_scrub_returns_and_goes_on_later(directory: Path, opened: OpenCache) -> None:
    run_killed(CRASH, directory)
    cache, _ = opened(directory, boot_id="boot-2")
    cache.scrub(lambda: True)
    assert object_files(directory) == {}
    scrub(cache)
    assert len(object_files(directory)) == 5


def test_without_a_readable_state_nothing_is_trusted(directory: Path, opened: OpenCache) -> None:
    cache, _ = open_cache(directory)
    publish(cache, "a", 1000)
    cache.close()
    (directory / "state").write_bytes(b"\0garbage")
    cache, _ = opened(directory)
    assert lookup(cache, "a") is None
    fd = cache.rescue(digest_of("a"))
    assert fd is not None and read_all(fd) == content("a", 1000)


@pytest.mark.parametrize("damage", ["garbage", "truncated", "missing", "empty"])
def test_a_lost_catalogue_is_rebuilt(directory: Path, opened: OpenCache, damage: str) -> None:
    cache, _ = open_cache(directory)
    for number in range(300):
        publish(cache, number, 1000)
    used = cache.usage()
    cache.close()
    data = directory / "catalogue" / "data.mdb"
    if damage == "garbage":
        data.write_bytes(os.urandom(data.stat().st_size))
    elif damage == "truncated":
        os.truncate(data, 3 * 4096)
    elif damage == "empty":
        os.truncate(data, 0)
    else:
        shutil.rmtree(data.parent)
    cache, _ = opened(directory)
    assert cache.usage() == used
    assert lookup(cache, 7) == content(7, 1000)
    assert cache.evict(digest_of(7)) == 1000
    assert cache.usage().objects == 299
