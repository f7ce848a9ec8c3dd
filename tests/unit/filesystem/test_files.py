"""Open files: right bytes from wherever they are, counted rightly, and nothing left open."""

from __future__ import annotations

import math
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from gpufs.cache import CHUNK
from gpufs.errors import DeadlineExceeded, IsADirectory, ObjectArchived, RemoteFailed, VersionGone
from gpufs.fetch.failures import FAILURE_HOLDS
from gpufs.fetch.readahead import MAX_WINDOW
from gpufs.index import ROOT, Change, Inode
from tests.unit.filesystem.helpers import BIG, FakeSource, World, content, descriptors, play

SMALL = content("small", 100_000)
LARGE = content("large", BIG)
MIB = 1 << 20

Scene = Callable[[World], Awaitable[None]]


def example() -> FakeSource:
    return FakeSource({"small": SMALL, "large": LARGE, "empty": b"", "d/x": b"x"})


async def read_all(world: World, number: int, size: int, step: int = MIB) -> bytes:
    pieces = []
    offset = 0
    while piece := await world.read(number, offset, step):
        pieces.append(piece)
        offset += len(piece)
    assert offset == size
    return b"".join(pieces)


async def read_file(world: World, path: str) -> bytes:
    """Open, read to the end, release."""
    inode = await world.find(path)
    assert inode is not None
    await world.files.open(inode.number)
    try:
        return await read_all(world, inode.number, inode.size)
    finally:
        world.files.release(inode.number)


def object_files(folder: Path) -> list[Path]:
    return [path for path in (folder / "cache/objects").rglob("*") if path.is_file()]


def assert_nothing_open(world: World) -> None:
    assert not world.files._open
    assert not [fd for fd in os.listdir("/proc/self/fd") if _leads_below(fd, "/objects/", "/partial/")]


def _leads_below(fd: str, *parts: str) -> bool:
    try:
        target = os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return False
    return any(part in target for part in parts)


@pytest.mark.parametrize("cache_size", [1 << 30, 1], ids=["kept", "unkept"])
def test_every_file_reads_right_and_leaves_nothing_open(tmp_path: Path, cache_size: int) -> None:
    """Small, large and empty; kept in the cache or not; twice."""

    async def scene(world: World) -> None:
        for _ in range(2):
            for path, data in world.source.objects.items():
                assert await read_file(world, os.fsdecode(path)) == data
        await world.settled()
        assert_nothing_open(world)

    play(tmp_path, example(), scene, cache_size=cache_size)


def test_opens_count_as_hits_only_when_all_bytes_are_here(tmp_path: Path) -> None:
    source = example()

    async def scene(world: World) -> None:
        counts = world.metrics

        async def expect(path: str, opens: int, hits: int, misses: int) -> None:
            number = await world.number(path)
            await world.files.open(number)
            assert (counts.opens.value, counts.hits.value, counts.misses.value) == (opens, hits, misses)
            if path != "empty":
                await world.read(number, 0, 10)
            world.files.release(number)
            await world.settled()

        await expect("small", 1, 0, 1)
        await expect("small", 2, 1, 1)
        await expect("empty", 3, 2, 1)
        await expect("large", 4, 2, 2)
        await expect("large", 5, 2, 3)  # a part is here: still a miss
        assert await read_file(world, "large") == LARGE
        await world.settled()
        await expect("large", 7, 3, 4)
        await world.files.open(await world.number("large"))
        assert (counts.hits.value, counts.misses.value) == (4, 4)
        world.files.release(await world.number("large"))

    play(tmp_path, source, scene)
    chunks = sorted(offset // CHUNK for path, offset, _ in source.reads if path == b"large")
    assert chunks == list(range(11)), "each chunk was fetched once"


TEXT = b"some text " * 10_000


async def keep_compressed(world: World, path: str, data: bytes) -> Inode:
    inode = await world.find(path)
    assert inode is not None
    os.close(world.cache.publish(inode.digest, memoryview(data), compress=True))
    assert world.cache.has_compressed(inode.digest)
    return inode


def test_an_object_that_is_kept_compressed_is_a_hit(tmp_path: Path) -> None:
    """Opened by many at once it is expanded once; also for a read without an open; nothing stays open."""
    source = FakeSource({"text": TEXT})

    async def scene(world: World) -> None:
        inode = await keep_compressed(world, "text", TEXT)
        expanded = []
        expand = world.cache.expand
        world.cache.expand = lambda *args: expanded.append(args) or expand(*args)  # type: ignore
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(world.files.open, inode.number)
        assert len(expanded) == 1
        assert await read_all(world, inode.number, len(TEXT)) == TEXT
        for _ in range(10):
            world.files.release(inode.number)
        assert world.metrics.hits.value == 10 and world.metrics.misses.value == 0
        await world.settled()
        assert_nothing_open(world)
        before = descriptors()
        assert await world.read(inode.number, 5, 10) == TEXT[5:15]
        world.files.release(inode.number)
        await world.settled()
        assert descriptors() == before and len(expanded) == 2

    play(tmp_path, source, scene)
    assert not source.reads


def test_a_damaged_object_that_is_kept_compressed_is_a_miss(tmp_path: Path) -> None:
    source = FakeSource({"text": TEXT})

    async def scene(world: World) -> None:
        await keep_compressed(world, "text", TEXT)
        (path,) = (tmp_path / "cache/compressed").glob("??/*")
        os.truncate(path, 30)
        assert await read_file(world, "text") == TEXT
        assert world.metrics.misses.value == 1 and world.metrics.corrupt_entries.value == 1
        assert await read_file(world, "text") == TEXT
        assert world.metrics.hits.value == 1

    play(tmp_path, source, scene)
    assert len(source.reads) == 1


@pytest.mark.parametrize(("path", "data"), [("small", SMALL), ("large", LARGE), ("empty", b"")])
def test_reads_around_the_end(tmp_path: Path, path: str, data: bytes) -> None:
    """Shorter at the end, empty beyond it, the same cold as hot."""
    size = len(data)

    async def scene(world: World) -> None:
        number = await world.number(path)
        await world.files.open(number)
        for _ in range(2):
            for offset in (0, max(size - 10, 0), size, size + 1, size + 10 * MIB):
                assert await world.read(number, offset, 4096) == data[offset : offset + 4096]
        world.files.release(number)

    play(tmp_path, example(), scene)


def test_a_read_may_span_chunks(tmp_path: Path) -> None:
    source = example()

    async def scene(world: World) -> None:
        number = await world.number("large")
        await world.files.open(number)
        for offset in (CHUNK - 1000, 5 * CHUNK - 1, CHUNK - 1000):
            assert await world.read(number, offset, MIB) == LARGE[offset : offset + MIB]
        world.files.release(number)

    play(tmp_path, source, scene)
    assert sorted({offset // CHUNK for _, offset, _ in source.reads}) == [0, 1, 4, 5]


def test_reading_one_place_a_thousand_times_fetches_one_chunk(tmp_path: Path) -> None:
    """Also when the cache can keep nothing."""
    for cache_size in (1 << 30, 1):
        source = example()

        async def scene(world: World) -> None:
            number = await world.number("large")
            for _ in range(1000):
                await world.files.open(number)
                assert await world.read(number, 0, 1) == LARGE[:1]
                world.files.release(number)

        play(tmp_path / str(cache_size), source, scene, cache_size=cache_size)
        assert source.reads == [(b"large", 0, CHUNK)]


def test_random_reads_fetch_only_their_chunks(tmp_path: Path) -> None:
    source = example()

    async def scene(world: World) -> None:
        number = await world.number("large")
        await world.files.open(number)
        for chunk in (7, 2, 9, 4):
            offset = chunk * CHUNK + 5000
            assert await world.read(number, offset, 4096) == LARGE[offset : offset + 4096]
        await world.settled()
        world.files.release(number)

    play(tmp_path, source, scene)
    assert [offset // CHUNK for _, offset, _ in source.reads] == [7, 2, 9, 4]


def test_a_sequential_reader_has_a_full_window_in_flight(tmp_path: Path) -> None:
    """The reader is ahead of a slow source: everything behind its seventh chunk is under way at once."""
    source = FakeSource({"huge": bytes(48 * CHUNK)})
    source.passing = 7 * CHUNK

    async def scene(world: World) -> None:
        number = await world.number("huge")
        await world.files.open(number)
        source.hold()
        for offset in range(0, source.passing, MIB):
            await world.read(number, offset, MIB)
        await source.held(MAX_WINDOW)
        ahead = sorted(offset // CHUNK for _, offset, _ in source.reads)[7:]
        assert ahead == list(range(7, 7 + MAX_WINDOW))
        source.failure = RemoteFailed("enough")  # nothing of this need go to the disk
        source.let_go()
        await world.settled()
        world.files.release(number)
        assert_nothing_open(world)

    play(tmp_path, source, scene)


def test_failed_read_ahead_is_not_the_readers_trouble(tmp_path: Path) -> None:
    """What was not asked for may fail; the reader who comes to it later gets it, or his own error."""
    source = example()

    async def scene(world: World) -> None:
        number = await world.number("large")
        await world.files.open(number)
        await world.read(number, 0, 10)
        source.passing = 2 * CHUNK
        source.hold()
        assert await world.read(number, CHUNK, 10) == LARGE[CHUNK : CHUNK + 10]
        await source.held(1)
        source.failure = RemoteFailed("500")
        source.let_go()
        await world.settled()
        with pytest.raises(RemoteFailed):
            await world.read(number, 2 * CHUNK, 10)
        source.failure = None
        times.jump(FAILURE_HOLDS)
        assert await read_all(world, number, BIG) == LARGE
        world.files.release(number)

    times = trio.testing.MockClock()
    play(tmp_path, source, scene, clock=times)


def test_the_kernels_second_try_does_not_wait_for_a_second_deadline(tmp_path: Path) -> None:
    """It reads again what it could not read ahead: for a moment that fails without asking the source."""
    source, times = example(), trio.testing.MockClock()

    async def scene(world: World) -> None:
        number = await world.number("large")
        await world.files.open(number)
        source.failure = DeadlineExceeded("60 s of silence")
        for _ in range(2):
            for _ in range(3):
                with pytest.raises(DeadlineExceeded):
                    await world.read(number, 0, 4096)
            assert await world.read(number, BIG, 10) == b""
            times.jump(FAILURE_HOLDS)
        assert len(source.reads) == 2
        source.failure = None
        assert await world.read(number, 0, 4096) == LARGE[:4096]
        world.files.release(number)

    play(tmp_path, source, scene, clock=times)


def test_many_readers_of_one_file_cause_one_fetch(tmp_path: Path) -> None:
    source = example()

    async def scene(world: World) -> None:
        number = await world.number("small")
        source.hold()

        async def reader() -> None:
            await world.files.open(number)
            assert await world.read(number, 0, MIB) == SMALL
            world.files.release(number)

        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(reader)
            await source.held(1)
            source.let_go()
        assert_nothing_open(world)

    play(tmp_path, source, scene)
    assert source.reads == [(b"small", 0, len(SMALL))]


@pytest.mark.parametrize("cancelled", [0, 1, 2])
def test_cancelling_one_waiter_of_an_open_disturbs_no_other(tmp_path: Path, cancelled: int) -> None:
    source = example()

    async def scene(world: World) -> None:
        number = await world.number("small")
        source.hold()
        scopes = [trio.CancelScope() for _ in range(3)]
        read: list[int] = []

        async def reader(which: int) -> None:
            with scopes[which]:
                await world.files.open(number)
                assert await world.read(number, 0, MIB) == SMALL
                world.files.release(number)
                read.append(which)

        async with trio.open_nursery() as nursery:
            for which in range(3):
                nursery.start_soon(reader, which)
            await source.held(1)
            await trio.testing.wait_all_tasks_blocked()
            scopes[cancelled].cancel()
            await trio.testing.wait_all_tasks_blocked()
            source.let_go()
        assert sorted(read) == [n for n in range(3) if n != cancelled]
        assert_nothing_open(world)

    play(tmp_path, source, scene)
    assert len(source.reads) == 1


def test_nobody_waits_any_more_and_the_fetch_still_ends_in_the_cache(tmp_path: Path) -> None:
    source = example()

    async def scene(world: World) -> None:
        for path in ("small", "large"):
            number = await world.number(path)
            source.hold()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(world.files.open, number)
                if path == "large":
                    await trio.to_thread.run_sync(lambda: None)
                    await trio.testing.wait_all_tasks_blocked(0.05)
                    nursery.start_soon(world.files.read, number, 0, 10)
                await source.held(1)
                nursery.cancel_scope.cancel()
            source.let_go()
            await world.settled()
            while number in world.files._open:
                world.files.release(number)  # the open of the large one had succeeded
        assert_nothing_open(world)
        requests = len(source.reads)
        assert await read_file(world, "small") == SMALL
        assert len(source.reads) == requests

    play(tmp_path, source, scene)


@pytest.mark.parametrize("failure", [RemoteFailed("500"), ObjectArchived("frozen"), ValueError("a bug")])
def test_failures_leave_nothing_open_and_are_not_remembered(tmp_path: Path, failure: Exception) -> None:
    source = example()

    async def scene(world: World) -> None:
        small, large = await world.number("small"), await world.number("large")
        before = descriptors()
        for _ in range(20):
            source.failure = failure
            with pytest.raises(type(failure)):
                await world.files.open(small)
            await world.files.open(large)
            with pytest.raises(type(failure)):
                await world.read(large, 0, 10)
            world.files.release(large)
            with pytest.raises(type(failure)):
                await world.read(small, 0, 10)  # as after a restart of the process: never opened here
            world.files.release(small)
        with pytest.raises(IsADirectory):
            await world.files.open(await world.number("d"))
        with pytest.raises(VersionGone):
            await world.files.open(4711)
        assert_nothing_open(world)
        source.failure = None
        for _ in range(50):
            assert await read_file(world, "small") == SMALL
        assert_nothing_open(world)
        assert descriptors() <= before + 2  # worker threads have none; the catalogue may

    play(tmp_path, source, scene)


def test_a_read_without_an_open_and_a_release_without_one(tmp_path: Path) -> None:
    """As they come after a restart of the process: handles carry no state."""

    async def scene(world: World) -> None:
        for path, data in (("small", SMALL), ("large", LARGE), ("empty", b"")):
            number = await world.number(path)
            assert await world.read(number, 10, 100) == data[10:110]
            world.files.release(number)
        await world.settled()
        assert_nothing_open(world)
        assert world.metrics.opens.value == 0

    play(tmp_path, example(), scene)


@pytest.mark.parametrize("cut", [0, 5000, len(SMALL) - 1])
def test_a_cache_file_cut_short_is_never_the_readers_trouble(tmp_path: Path, cut: int) -> None:
    """Right bytes for who has it open and who opens it next, from the source; counted; then whole again."""
    source = example()

    async def scene(world: World) -> None:
        number = await world.number("small")
        await world.files.open(number)
        (path,) = object_files(tmp_path)
        os.truncate(path, cut)
        assert await read_all(world, number, len(SMALL), 4096) == SMALL
        assert world.metrics.corrupt_entries.value > 0
        world.files.release(number)
        counted, requests = world.metrics.corrupt_entries.value, len(source.reads)
        assert await read_file(world, "small") == SMALL
        assert len(source.reads) == requests + 1
        assert await read_file(world, "small") == SMALL
        assert len(source.reads) == requests + 1 and world.metrics.corrupt_entries.value == counted

    play(tmp_path, source, scene)


def test_a_partial_cache_file_cut_short_is_never_the_readers_trouble(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        number = await world.number("large")
        await world.files.open(number)
        await world.read(number, 4 * CHUNK, 10)
        (path,) = (p for p in (tmp_path / "cache/partial").iterdir() if p.suffix != ".map")
        os.truncate(path, CHUNK)
        assert await world.read(number, 4 * CHUNK + 7, 100) == LARGE[4 * CHUNK + 7 :][:100]
        world.files.release(number)

    play(tmp_path, example(), scene)


def test_a_file_removed_from_the_cache_while_open_reads_on(tmp_path: Path) -> None:
    """From its descriptor, without asking the source; a large one goes on fetching what it lacks."""
    source = example()

    async def scene(world: World) -> None:
        small, large = await world.number("small"), await world.number("large")
        await world.files.open(small)
        await world.files.open(large)
        await world.read(large, 4 * CHUNK, 10)
        for path in (*object_files(tmp_path), *(tmp_path / "cache/partial").iterdir()):
            path.unlink()
        requests = len(source.reads)
        assert await read_all(world, small, len(SMALL)) == SMALL
        assert await world.read(large, 4 * CHUNK, 10) == LARGE[4 * CHUNK :][:10]
        assert len(source.reads) == requests
        assert await read_all(world, large, BIG) == LARGE
        world.files.release(small)
        world.files.release(large)
        await world.settled()
        assert_nothing_open(world)
        assert await read_file(world, "large") == LARGE

    play(tmp_path, source, scene)


def test_a_version_that_is_gone_is_stale_and_its_directory_is_asked_again(tmp_path: Path) -> None:
    """At open (small), at a read (large), and where the cache's copy turned out to be damaged."""
    source = example()

    async def scene(world: World) -> None:
        numbers = {path: await world.number(path) for path in ("small", "large", "d/x")}
        await world.files.open(numbers["large"])
        assert await world.read(numbers["large"], 0, 10) == LARGE[:10]
        await world.files.open(numbers["d/x"])
        (path,) = object_files(tmp_path)
        os.truncate(path, 0)
        for name in numbers:
            source.put(name, b"new")
        with pytest.raises(VersionGone):
            await world.files.open(numbers["small"])
        for name in ("large", "d/x"):
            with pytest.raises(VersionGone):
                await world.read(numbers[name], 5 * CHUNK if name == "large" else 0, 10)
            inode = world.tree.inode(numbers[name])
            assert Change(inode.parent, inode.name) in world.changes
        assert await world.read(numbers["large"], 5, 5) == LARGE[5:10]  # what is here stays readable
        world.files.release(numbers["large"])
        world.files.release(numbers["d/x"])
        for name in numbers:
            assert await world.number(name) != numbers[name]
            assert await read_file(world, name) == b"new"
        assert_nothing_open(world)

    play(tmp_path, source, scene, ttl=math.inf)
    assert source.lists == {b"": 2, b"d": 2}


def test_who_has_the_old_version_open_keeps_it(tmp_path: Path) -> None:
    """A refresh gives the name a new inode; no reader sees a mix."""
    source = example()

    async def scene(world: World) -> None:
        old = await world.number("small")
        await world.files.open(old)
        new_data = content("new", len(SMALL))
        source.put("small", new_data)
        await world.tree.refresh(b"small")
        assert await read_file(world, "small") == new_data
        assert await read_all(world, old, len(SMALL)) == SMALL
        world.files.release(old)
        assert await world.number("small") != old

    play(tmp_path, source, scene, ttl=math.inf)


def test_closing_while_work_is_under_way_closes_nothing_twice(tmp_path: Path) -> None:
    """At the end of a mount reads may still wait: their descriptors' numbers may be others' by then."""
    source = example()
    others: list[int] = []

    async def scene(world: World) -> None:
        async with trio.open_nursery() as nursery:
            inner = World(source, world.index, world.cache, world.metrics, nursery, 300, world.tree._now_ns)
            small, large = await inner.number("small"), await inner.number("large")
            await inner.files.open(small)
            await inner.files.open(large)
            (path,) = object_files(tmp_path)
            os.truncate(path, 0)
            source.hold()
            for number in (small, large):
                nursery.start_soon(inner.files.read, number, 0, 10)
            await source.held(2)
            inner.files.release(small)
            inner.files.release(large)
            inner.files.close()
            others.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(4))
            nursery.cancel_scope.cancel()
        try:
            for fd in others:
                os.fstat(fd)
        finally:
            for fd in others:
                os.close(fd)

    play(tmp_path, source, scene)


def test_root_is_never_a_file(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        with pytest.raises(IsADirectory):
            await world.files.open(ROOT)

    play(tmp_path, example(), scene)


def test_a_truncated_entry_is_replaced_when_it_is_opened(tmp_path: Path) -> None:
    """The kernel may be given the cache's file itself, and would take it for the whole of a shorter one."""
    source = FakeSource({"a": content("a", 5000)})

    async def scene(world: World) -> None:
        number = await world.number("a")
        await world.files.open(number)
        world.files.release(number)
        inode = world.index.get(number)
        assert inode is not None
        (path,) = (tmp_path / "cache/objects").rglob(inode.digest.hex())
        os.truncate(path, 4999)
        fd = await world.files.open(number)
        assert fd is not None and os.pread(fd, 9000, 0) == content("a", 5000)
        world.files.release(number)
        assert world.metrics.corrupt_entries.value == 1
        assert path.read_bytes() == content("a", 5000)

    play(tmp_path, source, scene)
