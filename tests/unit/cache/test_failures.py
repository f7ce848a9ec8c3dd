"""Cache trouble is never the reader's trouble: counted, logged once per kind, bypassed."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from pathlib import Path

import lmdb
import pytest

from gpufs.cache import CHUNK
from tests.unit.cache.conftest import OpenCache
from tests.unit.cache.helpers import (
    chunk_content,
    content,
    digest_of,
    lookup,
    object_files,
    publish,
    read_all,
    scrub,
)


def failing(number: int) -> object:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("call", ["pwrite", "rename", "mkdir", "unlink", "ftruncate", "truncate", "statvfs"])
def test_any_failing_call_is_bypassed(
    directory: Path, opened: OpenCache, monkeypatch: pytest.MonkeyPatch, number: int, call: str
) -> None:
    cache, metrics = opened(directory, size=40_000)
    publish(cache, "before", 30_000)
    with monkeypatch.context() as patch:
        if call == "pwrite":
            # Not for the memfd that is the last resort.
            real = os.pwrite

            def pwrite(fd: int, data: memoryview, offset: int) -> int:
                if "memfd" in os.readlink(f"/proc/self/fd/{fd}"):
                    return real(fd, data, offset)
                raise OSError(number, os.strerror(number))

            patch.setattr(os, "pwrite", pwrite)
        else:
            patch.setattr(os, call, failing(number))
        for name in range(5):
            publish(cache, name, 30_000)
        cache.evict(digest_of("before"))
        partial = cache.open_partial(digest_of("p"), 20_000)
        partial.write(0, chunk_content("p", 0, 20_000))
        partial.close()
        scrub(cache)
        cache.flush()
    if call not in ("ftruncate", "mkdir"):
        assert metrics.cache_errors.value > 0
    publish(cache, "after", 30_000)
    assert lookup(cache, "after") == content("after", 30_000)


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ELOOP])
def test_an_object_that_cannot_be_opened_is_a_counted_miss(
    directory: Path, opened: OpenCache, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    cache, metrics = opened(directory)
    publish(cache, "a", 1000)
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", failing(number))
        assert cache.open_object(digest_of("a")) is None
        assert metrics.cache_errors.value == 1
        assert not cache.open_partial(digest_of("p"), CHUNK).has(0)
        assert read_all(cache.publish(digest_of("b"), content("b", 1000), "test")) == content("b", 1000)


def test_a_kind_of_failure_is_logged_once_and_counted_each_time(
    directory: Path, opened: OpenCache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cache, metrics = opened(directory)
    monkeypatch.setattr(os, "rename", failing(errno.EROFS))
    with caplog.at_level(logging.INFO, "gpufs.cache"):
        for name in range(50):
            publish(cache, name, 1000)
    assert metrics.cache_errors.value == 50
    assert len(caplog.records) == 1
    monkeypatch.undo()


def test_objects_deleted_behind_our_back_are_fetched_again(directory: Path, opened: OpenCache) -> None:
    """Case 10."""
    cache, metrics = opened(directory)
    held = cache.publish(digest_of("open"), content("open", 5000), "test")
    publish(cache, "closed", 5000)
    for path in object_files(directory).values():
        path.unlink()
    assert read_all(held) == content("open", 5000)
    for name in ("open", "closed"):
        assert lookup(cache, name) is None
        publish(cache, name, 5000)
        assert lookup(cache, name) == content(name, 5000)
    assert cache.usage().bytes == 2 * 8192
    assert metrics.cache_errors.value == 0


@pytest.mark.parametrize("gone", ["objects", "tmp", "partial", "catalogue", "index"])
def test_a_subdirectory_removed_while_running(directory: Path, opened: OpenCache, gone: str) -> None:
    cache, _ = opened(directory)
    publish(cache, "a", 1000)
    shutil.rmtree(directory / gone)
    publish(cache, "b", 1000)
    assert lookup(cache, "b") == content("b", 1000)
    partial = cache.open_partial(digest_of("p"), CHUNK)
    assert partial.write(0, chunk_content("p", 0, CHUNK))
    partial.close()
    assert cache.index_directory("s3://b").is_dir()
    cache.flush()


def test_the_whole_directory_removed_while_running(directory: Path, opened: OpenCache) -> None:
    cache, metrics = opened(directory)
    partial = cache.open_partial(digest_of("p"), 2 * CHUNK)
    partial.write(0, chunk_content("p", 0, 2 * CHUNK))
    shutil.rmtree(directory)
    publish(cache, "a", 1000)
    assert lookup(cache, "a") is None
    assert os.pread(partial.fd, CHUNK, 0) == chunk_content("p", 0, 2 * CHUNK)
    partial.write(1, chunk_content("p", 1, 2 * CHUNK))
    partial.close()
    scrub(cache)
    cache.flush()
    cache.close()
    assert metrics.cache_errors.value > 0
    assert not directory.exists()


@pytest.mark.parametrize("error", [lmdb.DiskError, lmdb.MapFullError, lmdb.CorruptedError])
def test_a_failing_catalogue_does_not_disturb_reads_or_limits(
    directory: Path, opened: OpenCache, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    cache, metrics = opened(directory, size=100_000)
    publish(cache, "before", 4096)

    class BrokenEnvironment:
        def begin(self, **_: object) -> None:
            raise error("broken")

        def close(self) -> None:
            pass

    working = cache._catalogue._env
    cache._catalogue._env = BrokenEnvironment()  # type: ignore[assignment]
    for name in range(50):
        publish(cache, name, 4096)
        cache.flush()
        assert cache.usage().bytes <= 100_000
    assert lookup(cache, 49) == content(49, 4096)
    assert lookup(cache, 0) is None
    assert metrics.cache_errors.value > 0
    cache._catalogue._env = working
    cache.flush()
    assert cache.usage().objects == len(object_files(directory))
