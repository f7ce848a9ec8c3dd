"""Readers are followed: what is asked for in advance for them, and which orders are kept in mind."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import pytest
import trio
import trio.testing

from gpufs.cache import CHUNK, Cache
from gpufs.errors import GpufsError, RemoteFailed
from gpufs.fetch import prefetch
from gpufs.fetch.fetcher import Fetcher
from gpufs.fetch.following import LARGE_CHUNKS
from gpufs.fetch.messages import Through
from gpufs.fetch.prefetch import ANNOUNCED_WINDOW, IDLE, LEARNED_ORDERS, Announcer, Prefetch
from gpufs.index import Index, Inode
from gpufs.metrics import Metrics
from gpufs.options import Size
from gpufs.source.base import ObjectRef
from tests.unit.fetch.helpers import add_files, traffic_of

SIZE = 1000
ME = Announcer(1000, 1, "")


class FakeSource:
    id = "fake"

    def __init__(self) -> None:
        self.reads: list[tuple[bytes, int]] = []

    def read(
        self, ref: ObjectRef, offset: int, length: int, *, spent: float = 0.0, waited: float = 0.0
    ) -> memoryview:
        self.reads.append((ref.path, offset // CHUNK))
        return memoryview(bytes(length))


class World:
    def __init__(self, work: Path) -> None:
        self.metrics = Metrics()
        self.cache = Cache(
            work / "cache", cache_size=Size(bytes=1 << 30), min_free=Size(bytes=0), metrics=self.metrics
        )
        self.index = Index(self.cache.index_directory("fake"), "fake")
        self.source = FakeSource()
        self.asked: list[int] = []
        self.orders: set[int] = set()
        self.error: GpufsError | None = None
        self.prefetch: Prefetch

    async def small_files(
        self, numbers: Sequence[int], at_once: int, order: int
    ) -> tuple[Through, GpufsError | None]:
        self.asked += numbers
        self.orders.add(order)
        await trio.lowlevel.checkpoint()
        if self.error is not None:
            raise self.error
        fetched = 0
        for number in numbers:
            inode = self.index.get(number)
            assert inode is not None
            if not self.cache.has_object(inode.digest):
                os.close(self.cache.publish(inode.digest, memoryview(bytes(inode.size))))
                fetched += 1
        return Through(len(numbers), len(numbers) * SIZE, fetched, fetched * SIZE, 0), None

    def open(self, inode: Inode) -> bool:
        """As a reader does; whether it was a hit."""
        hit = self.cache.has_object(inode.digest)
        if hit:
            self.prefetch.hit((inode.number,))
        else:
            self.prefetch.missed(inode)
            os.close(self.cache.publish(inode.digest, memoryview(bytes(inode.size))))
        return hit

    async def read(self, files: Sequence[Inode]) -> int:
        """Open all, with time for what is fetched in advance; how many were not here."""
        misses = 0
        for inode in files:
            misses += not self.open(inode)
            await trio.testing.wait_all_tasks_blocked()
        return misses

    def sources(self) -> list[str]:
        return [order["source"] for order in self.prefetch.shown()]

    def run(self, test: Callable[[trio.testing.MockClock], Awaitable[None]]) -> None:
        clock = trio.testing.MockClock(rate=0)

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                fetcher = Fetcher(self.source, self.cache, traffic_of(self.metrics), nursery)  # type: ignore[arg-type]
                self.prefetch = Prefetch(self.index, self.cache, fetcher, self.small_files, nursery)
                await test(clock)
                nursery.cancel_scope.cancel()

        trio.run(main, clock=clock)

    def close(self) -> None:
        self.index.close()
        self.cache.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def shuffled(files: Sequence[Inode], seed: int = 1) -> list[Inode]:
    return random.Random(seed).sample(files, len(files))


def numbers_of(files: Sequence[Inode]) -> list[int]:
    return [inode.number for inode in files]


def test_an_announced_order_is_fetched_before_it_is_read(world: World) -> None:
    order = shuffled(add_files(world.index, 1000, SIZE))

    async def test(_: trio.testing.MockClock) -> None:
        assert world.prefetch.announce(ME, numbers_of(order[:600]), 2, begin=True) == 600
        assert world.prefetch.announce(ME, numbers_of(order[600:]), 1, begin=False) == 400
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(world.asked) == sorted(numbers_of(order[:ANNOUNCED_WINDOW]))
        assert await world.read(order) == 0
        assert sorted(world.asked) == sorted(numbers_of(order)), "each once"
        [shown] = world.prefetch.shown()
        assert shown["announced_by"] == {"uid": 1000, "pid": 1, "name": ""}
        assert (shown["files"], shown["unknown"], shown["position"]) == (1000, 3, 1000)

    world.run(test)


def test_shards_are_followed_side_by_side_and_a_new_order_replaces_the_old(world: World) -> None:
    files = shuffled(add_files(world.index, 1200, SIZE))
    shards = [files[:600], files[600:]]

    async def test(_: trio.testing.MockClock) -> None:
        for rank, shard in enumerate(shards):
            world.prefetch.announce(Announcer(1000, rank, ""), numbers_of(shard), 0, begin=True)
        await trio.testing.wait_all_tasks_blocked()
        assert await world.read([file for pair in zip(*shards, strict=True) for file in pair]) == 0
        assert world.orders == {1, 2}
        again = numbers_of(shuffled(shards[0], seed=2))
        world.prefetch.announce(Announcer(1000, 0, ""), again, 0, begin=True)
        assert [order["position"] for order in world.prefetch.shown()] == [600, 0]
        world.prefetch.announce(Announcer(1000, 0, "validation"), again, 0, begin=True)
        assert len(world.prefetch.shown()) == 3

    world.run(test)


def test_an_order_that_repeats_is_followed(world: World) -> None:
    order = shuffled(add_files(world.index, 2000, SIZE))

    async def test(_: trio.testing.MockClock) -> None:
        assert await world.read(order) > 0.95 * len(order)
        for inode in order:
            world.cache.evict(inode.digest)
        assert await world.read(order) < 100
        assert world.sources() == ["repeated"]

    world.run(test)


def test_neighbours_are_followed(world: World) -> None:
    files = add_files(world.index, 2000, SIZE)

    async def test(_: trio.testing.MockClock) -> None:
        assert await world.read(files[300:800]) < 10
        assert world.sources() == ["neighbours"] and set(world.asked) <= set(numbers_of(files[300:1100]))

    world.run(test)


def test_a_random_order_causes_nothing(world: World) -> None:
    files = add_files(world.index, 3000, SIZE)

    async def test(_: trio.testing.MockClock) -> None:
        for seed in (1, 2):
            await world.read(shuffled(files, seed))
            for inode in files:
                world.cache.evict(inode.digest)
        assert world.asked == [] and world.sources() == []

    world.run(test)


def test_when_all_is_here_nothing_is_learned(world: World) -> None:
    files = add_files(world.index, 1000, SIZE)

    async def test(_: trio.testing.MockClock) -> None:
        for inode in files:
            os.close(world.cache.publish(inode.digest, memoryview(bytes(SIZE))))
        for _ in range(2):
            assert await world.read(files) == 0
        assert world.asked == [] and world.sources() == []

    world.run(test)


def test_of_large_files_the_first_chunks_are_fetched(world: World) -> None:
    files = add_files(world.index, 2, (LARGE_CHUNKS + 2) * CHUNK)

    async def test(_: trio.testing.MockClock) -> None:
        world.prefetch.announce(ME, numbers_of(files), 0, begin=True)
        expected = {(inode.name, chunk) for inode in files for chunk in range(LARGE_CHUNKS)}
        end = time.monotonic() + 20  # they are read in threads: the clock of the test does not tell
        while set(world.source.reads) != expected and time.monotonic() < end:
            await trio.to_thread.run_sync(os.sched_yield)
        assert set(world.source.reads) == expected
        assert len(world.source.reads) == len(expected)

    world.run(test)


def test_a_failing_source_ends_nothing(world: World) -> None:
    order = shuffled(add_files(world.index, 3000, SIZE))

    async def test(_: trio.testing.MockClock) -> None:
        world.error = RemoteFailed("down")
        world.prefetch.announce(ME, numbers_of(order), 0, begin=True)
        await trio.testing.wait_all_tasks_blocked()
        assert len(world.asked) == ANNOUNCED_WINDOW, "and it is not asked again and again"
        assert await world.read(order[:400]) == 400
        world.error = None
        assert await world.read(order[400:]) < 300

    world.run(test)


def test_what_others_announce_is_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory for orders is limited; nobody can push out those of another user."""
    monkeypatch.setattr(prefetch, "MOST_FILES", 100)
    monkeypatch.setattr(prefetch, "MOST_ORDERS", 8)

    async def test(clock: trio.testing.MockClock) -> None:
        assert world.prefetch.announce(ME, range(30), 0, begin=True) == 30
        stranger = Announcer(1001, 2, "")
        assert world.prefetch.announce(stranger, range(60), 0, begin=True) == 50
        assert world.prefetch.announce(stranger, range(60), 0, begin=False) == 0
        assert world.prefetch.announce(ME, range(30), 0, begin=False) == 20
        for name in "abcdefgh":
            clock.jump(1)
            world.prefetch.announce(Announcer(1001, 2, name), [1], 0, begin=True)
        by = [order["announced_by"] for order in world.prefetch.shown()]
        assert [(who["uid"], who["name"]) for who in by] == [(1000, ""), *((1001, n) for n in "efgh")]
        clock.jump(IDLE + 1)
        assert world.prefetch.shown() == []

    world.run(test)


def test_an_order_of_which_nothing_is_there_is_shown_with_none_of_its_files(world: World) -> None:
    async def test(_: trio.testing.MockClock) -> None:
        world.prefetch.announce(ME, [], 3, begin=True)
        assert [(order["files"], order["unknown"]) for order in world.prefetch.shown()] == [(0, 3)]

    world.run(test)


def test_guesses_are_bounded_too(world: World) -> None:
    files = add_files(world.index, 1500 * (LEARNED_ORDERS + 2), SIZE)

    async def test(_: trio.testing.MockClock) -> None:
        for part in range(0, len(files), 1500):
            await world.read(files[part : part + 8])
        assert world.sources() == ["neighbours"] * LEARNED_ORDERS

    world.run(test)
