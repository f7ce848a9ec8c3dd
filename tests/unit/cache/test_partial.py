"""Large objects: filled chunk by chunk, resumed, completed, and never a chunk that was not written."""

from __future__ import annotations

import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpufs.cache import CHUNK, Partial
from gpufs.cache import partial as partial_module
from tests.unit.cache.conftest import OpenCache
from tests.unit.cache.helpers import (
    bytes_on_disk,
    chunk_content,
    digest_of,
    lookup,
    open_cache,
    publish,
    run_killed,
    run_to_end,
    scrub,
)

SIZE = 5 * CHUNK + 1234


def whole(name: object) -> bytes:
    return b"".join(chunk_content(name, chunk, SIZE) for chunk in range(6))


def fill(partial: Partial, name: object, chunks: list[int]) -> None:
    for chunk in chunks:
        assert partial.write(chunk, chunk_content(name, chunk, SIZE))


def test_chunks_in_any_order_complete_the_object(directory: Path, opened: OpenCache) -> None:
    cache, metrics = opened(directory)
    partial = cache.open_partial(digest_of("p"), SIZE)
    assert (partial.size, partial.chunks) == (SIZE, 6)
    fill(partial, "p", [5, 0, 3])
    assert [partial.has(chunk) for chunk in range(6)] == [True, False, False, True, False, True]
    assert os.pread(partial.fd, CHUNK, 3 * CHUNK) == chunk_content("p", 3, SIZE)
    assert not partial.complete
    assert lookup(cache, "p") is None
    fill(partial, "p", [1, 2, 4])
    assert partial.complete
    assert lookup(cache, "p") == whole("p")
    assert os.pread(partial.fd, SIZE, 0) == whole("p")
    assert list((directory / "partial").iterdir()) == []
    assert (cache.usage().objects, cache.usage().bytes) == (1, bytes_on_disk(directory))
    partial.close()
    partial.close()
    assert metrics.cache_errors.value == 0


def test_a_whole_object_opened_as_partial_has_every_chunk(directory: Path, opened: OpenCache) -> None:
    """Another process completed it between a look into objects/ and the opening."""
    cache, _ = opened(directory)
    partial = cache.open_partial(digest_of("p"), SIZE)
    fill(partial, "p", list(range(6)))
    partial.close()
    again = cache.open_partial(digest_of("p"), SIZE)
    assert again.complete and all(again.has(chunk) for chunk in range(6))
    assert os.pread(again.fd, SIZE, 0) == whole("p")
    fill(again, "p", [2])
    again.close()
    assert list((directory / "partial").iterdir()) == []
    assert cache.usage().bytes == bytes_on_disk(directory)


def test_a_wrong_length_is_refused(directory: Path, opened: OpenCache) -> None:
    """Case 12: a short body never becomes a chunk."""
    cache, _ = opened(directory)
    partial = cache.open_partial(digest_of("p"), SIZE)
    for chunk, length in ((0, CHUNK - 1), (5, CHUNK), (5, 1233), (6, 0), (-1, CHUNK)):
        with pytest.raises(ValueError):
            partial.write(chunk, memoryview(bytes(length)))
    partial.close()


def test_threads_may_write_the_same_chunks(directory: Path, opened: OpenCache) -> None:
    cache, metrics = opened(directory)
    partial = cache.open_partial(digest_of("p"), SIZE)

    def write_all(seed: int) -> None:
        order = list(range(6))
        random.Random(seed).shuffle(order)
        fill(partial, "p", order)

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(write_all, range(6)))
    assert lookup(cache, "p") == whole("p")
    assert cache.usage().bytes == bytes_on_disk(directory)
    partial.close()
    assert metrics.cache_errors.value == 0


def test_a_partial_object_is_resumed_after_a_clean_end(directory: Path, opened: OpenCache) -> None:
    cache, _ = open_cache(directory)
    partial = cache.open_partial(digest_of("p"), SIZE)
    fill(partial, "p", [0, 1, 2])
    partial.close()
    cache.close()
    cache, _ = opened(directory)
    assert cache.usage().bytes == 3 * CHUNK
    partial = cache.open_partial(digest_of("p"), SIZE)
    assert [partial.has(chunk) for chunk in range(6)] == [True] * 3 + [False] * 3
    fill(partial, "p", [3, 4, 5])
    partial.close()
    assert lookup(cache, "p") == whole("p")


def test_resume_after_kill_in_the_middle_of_a_chunk(directory: Path, opened: OpenCache) -> None:
    run_killed(
        """
cache, _ = open_cache(directory)
size = 5 * CHUNK + 1234
partial = cache.open_partial(digest_of("p"), size)
assert partial.write(0, chunk_content("p", 0, size))
real = os.pwrite
def half(fd, data, offset):
    real(fd, data[:len(data) // 2], offset)
    os.kill(os.getpid(), signal.SIGKILL)
os.pwrite = half
partial.write(1, chunk_content("p", 1, size))
""",
        directory,
    )
    cache, _ = opened(directory)
    partial = cache.open_partial(digest_of("p"), SIZE)
    assert [partial.has(chunk) for chunk in range(6)] == [True] + [False] * 5
    scrub(cache)
    assert cache.usage().bytes == CHUNK
    fill(partial, "p", [1, 2, 3, 4, 5])
    partial.close()
    assert lookup(cache, "p") == whole("p")


def test_killed_between_the_last_chunk_and_the_completion(directory: Path, opened: OpenCache) -> None:
    run_killed(
        """
cache, _ = open_cache(directory)
partial = cache.open_partial(digest_of("p"), CHUNK + 1)
assert partial.write(0, chunk_content("p", 0, CHUNK + 1))
os.rename = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
partial.write(1, chunk_content("p", 1, CHUNK + 1))
""",
        directory,
    )
    cache, _ = opened(directory)
    partial = cache.open_partial(digest_of("p"), CHUNK + 1)
    assert partial.complete
    found = lookup(cache, "p")
    assert found is not None and len(found) == CHUNK + 1
    partial.close()


def test_two_processes_fill_one_object_together(directory: Path, opened: OpenCache) -> None:
    cache, metrics = opened(directory)
    partial = cache.open_partial(digest_of("p"), SIZE)
    fill(partial, "p", [0, 2, 4])
    out = run_to_end(
        """
cache, metrics = open_cache(directory)
size = 5 * CHUNK + 1234
partial = cache.open_partial(digest_of("p"), size)
print([partial.has(c) for c in range(6)])
for chunk in (1, 3, 5):
    assert partial.write(chunk, chunk_content("p", chunk, size))
print(partial.complete, cache.first, metrics.cache_errors.value)
partial.close()
cache.close()
""",
        directory,
    )
    assert out.splitlines() == [str([True, False] * 3), "True False 0"]
    assert partial.complete and all(partial.has(chunk) for chunk in range(6))
    assert os.pread(partial.fd, SIZE, 0) == whole("p")
    partial.close()
    assert lookup(cache, "p") == whole("p")
    cache.flush()
    assert (cache.usage().objects, cache.usage().bytes) == (1, bytes_on_disk(directory))
    assert metrics.cache_errors.value == 0


@pytest.mark.parametrize("removed", [["data"], ["map"], ["data", "map"]])
def test_files_removed_behind_our_back(directory: Path, opened: OpenCache, removed: list[str]) -> None:
    """Case 10: an open partial goes on; a new one never believes a chunk that is not there."""
    cache, metrics = opened(directory)
    partial = cache.open_partial(digest_of("p"), SIZE)
    fill(partial, "p", [0, 1])
    path = directory / "partial" / digest_of("p").hex()
    for name in removed:
        (path if name == "data" else path.with_suffix(".map")).unlink()
    again = cache.open_partial(digest_of("p"), SIZE)
    assert not any(again.has(chunk) for chunk in range(6))
    for chunk in range(2, 6):
        partial.write(chunk, chunk_content("p", chunk, SIZE))
    for chunk in range(6):
        if partial.has(chunk):
            expected = chunk_content("p", chunk, SIZE)
            assert os.pread(partial.fd, len(expected), chunk * CHUNK) == expected
    assert partial.has(0) and partial.has(1)
    assert lookup(cache, "p") in (None, whole("p"))
    fill(again, "p", list(range(6)))
    assert lookup(cache, "p") == whole("p")
    again.close()
    partial.close()
    assert metrics.cache_errors.value == 0


def test_eviction_of_an_open_partial_keeps_its_chunks_readable(directory: Path, opened: OpenCache) -> None:
    cache, _ = opened(directory)
    partial = cache.open_partial(digest_of("p"), SIZE)
    fill(partial, "p", [0])
    assert cache.evict(digest_of("p")) == CHUNK
    assert partial.has(0)
    assert os.pread(partial.fd, CHUNK, 0) == chunk_content("p", 0, SIZE)
    assert not partial.write(1, chunk_content("p", 1, SIZE))
    partial.close()
    assert cache.usage().bytes == 0
    publish(cache, "other", 10)


def test_a_truncated_data_file_is_begun_again(directory: Path, opened: OpenCache) -> None:
    cache, _ = opened(directory)
    partial = cache.open_partial(digest_of("p"), SIZE)
    fill(partial, "p", [0, 1])
    partial.close()
    os.truncate(directory / "partial" / digest_of("p").hex(), 100)
    partial = cache.open_partial(digest_of("p"), SIZE)
    assert not any(partial.has(chunk) for chunk in range(6))
    partial.close()


def test_closing_waits_for_the_thread_that_is_writing(
    directory: Path, opened: OpenCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its descriptor might by then be another file's, which would get the chunk written into it."""
    cache, metrics = opened(directory)
    partial = cache.open_partial(digest_of("p"), SIZE)
    fd = partial.fd
    inside, go_on = threading.Event(), threading.Event()
    write_at = partial_module.write_at

    def slow(fd: int, data: memoryview, offset: int) -> None:
        inside.set()
        assert go_on.wait(30)
        write_at(fd, data, offset)

    monkeypatch.setattr(partial_module, "write_at", slow)
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(partial.write, 2, chunk_content("p", 2, SIZE))
        assert inside.wait(30)
        partial.close()
        os.fstat(fd)
        assert not partial.write(3, chunk_content("p", 3, SIZE))
        go_on.set()
        assert written.result(30)
    assert (partial.fd, partial.has(2)) == (-1, False)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    again = cache.open_partial(digest_of("p"), SIZE)
    assert [again.has(chunk) for chunk in range(6)] == [False, False, True, False, False, False]
    assert os.pread(again.fd, CHUNK, 2 * CHUNK) == chunk_content("p", 2, SIZE)
    again.close()
    assert metrics.cache_errors.value == 0
