"""Epoch fill: the rest of a directory comes by itself once a job has missed enough of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from gpufs.cache import Cache
from gpufs.errors import RemoteFailed
from gpufs.fetch.fetcher import Fetcher
from gpufs.fetch.fill import FEWEST, SHARE, EpochFill
from gpufs.index import ROOT, Index, Inode
from gpufs.metrics import Metrics
from gpufs.options import Size
from gpufs.source.base import Entry, Kind, ObjectRef, Page

FILES = 40
SIZE = 1000


class CountingSource:
    """Gives every object as zeros and remembers what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.broken = False

    def read(self, ref: ObjectRef, offset: int, length: int) -> memoryview:
        self.asked.append(ref.path)
        if self.broken:
            raise RemoteFailed("down")
        return memoryview(bytes(length))


class World:
    def __init__(self, directory: Path, cache_size: int) -> None:
        self.metrics = Metrics()
        self.source = CountingSource()
        self.cache = Cache(
            directory / "cache",
            cache_size=Size(bytes=cache_size),
            min_free=Size(bytes=0),
            metrics=self.metrics,
        )
        self.index = Index(self.cache.index_directory("source"), "source")

    def add(self, count: int, size: int = SIZE) -> list[Inode]:
        entries = [Entry(b"%04d" % n, Kind.FILE, size, 1, f"v{n}") for n in range(count)]
        with self.index.write() as writer:
            listing = writer.begin(ROOT, 1)
            writer.add(listing, Page(b"", entries, [], True))
            writer.finish(listing)
        return self.index.children(ROOT, None, count)

    def close(self) -> None:
        self.index.close()
        self.cache.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, 1 << 30)
    yield made
    made.close()


def run(world: World, scene: Callable[[EpochFill], Awaitable[None]]) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            fetcher = Fetcher(world.source, world.cache, world.metrics, nursery)  # type: ignore[arg-type]
            fill = EpochFill(world.index, world.cache, fetcher, world.metrics)
            nursery.start_soon(fill.run)
            await scene(fill)
            nursery.cancel_scope.cancel()

    trio.run(main)


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(30):
        while not condition():
            await trio.sleep(0.005)


def test_a_directory_is_filled_after_a_few_misses_and_each_file_fetched_once(world: World) -> None:
    files = world.add(FILES)

    async def scene(fill: EpochFill) -> None:
        for inode in files[:FEWEST]:
            fill.missed(inode)
        await until(lambda: world.metrics.prefetched.value == FILES)
        for inode in files:  # nothing is fetched again
            fill.missed(inode)
        await trio.testing.wait_all_tasks_blocked(0.05)

    run(world, scene)
    assert sorted(world.source.asked) == [inode.name for inode in files]
    assert all(world.cache.has_object(inode.digest) for inode in files)


def test_fewer_misses_start_nothing(world: World) -> None:
    files = world.add(FILES)

    async def scene(fill: EpochFill) -> None:
        for inode in files[: FEWEST - 1]:
            fill.missed(inode)
        await trio.testing.wait_all_tasks_blocked(0.05)

    run(world, scene)
    assert world.source.asked == []


def test_of_a_large_directory_a_share_must_have_been_missed(world: World) -> None:
    count = int(2 * FEWEST / SHARE)
    files = world.add(count)

    async def scene(fill: EpochFill) -> None:
        for inode in files[: 2 * FEWEST - 1]:
            fill.missed(inode)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert world.source.asked == []
        fill.missed(files[-1])
        await until(lambda: world.metrics.prefetched.value == count)

    run(world, scene)


def test_it_evicts_nothing(tmp_path: Path) -> None:
    """A fill stops when the room is used up; what readers asked for stays."""
    world = World(tmp_path, 1 << 20)
    size = 64 << 10
    files = world.add(40, size)

    async def scene(fill: EpochFill) -> None:
        for inode in files[:FEWEST]:
            fill.missed(inode)
        await until(lambda: world.metrics.prefetched.value > 0)
        await trio.testing.wait_all_tasks_blocked(0.2)

    try:
        run(world, scene)
        assert 0 < world.metrics.prefetched.value * size < 1 << 20
        assert world.metrics.evictions.value == 0
    finally:
        world.close()


def test_a_source_that_fails_ends_the_fill_and_a_later_miss_begins_it_again(world: World) -> None:
    files = world.add(FILES)
    world.source.broken = True

    async def scene(fill: EpochFill) -> None:
        for inode in files[:FEWEST]:
            fill.missed(inode)
        await until(lambda: len(world.source.asked) > 0)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert len(world.source.asked) < FILES
        world.source.broken = False
        for inode in files[:FEWEST]:
            fill.missed(inode)
        await until(lambda: world.metrics.prefetched.value == FILES)

    run(world, scene)


def test_a_reader_who_wants_what_is_on_its_way_waits_for_that(world: World) -> None:
    (inode,) = world.add(1)

    async def scene(fill: EpochFill) -> None:
        import os

        async with trio.open_nursery() as nursery:
            fetcher = Fetcher(world.source, world.cache, world.metrics, nursery)  # type: ignore[arg-type]
            ref = ObjectRef(b"0000", inode.version, inode.size)
            nursery.start_soon(fetcher.ahead_object, inode.digest, ref)
            await trio.lowlevel.checkpoint()
            os.close(await fetcher.object(inode.digest, ref))

    run(world, scene)
    assert len(world.source.asked) == 1
