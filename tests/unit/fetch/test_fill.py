"""Epoch fill: the rest of a directory is wanted once a job has missed enough of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufs.cache import Cache
from gpufs.errors import RemoteFailed
from gpufs.fetch.fill import BATCH, FEWEST, LATER, SHARE, EpochFill
from gpufs.fetch.messages import Wanted
from gpufs.index import ROOT, Index, Inode
from gpufs.metrics import Metrics
from gpufs.options import Size
from gpufs.source.base import ObjectRef
from tests.unit.fetch.helpers import add_files

FILES = 40
SIZE = 1000


class World:
    def __init__(self, directory: Path, cache_size: int) -> None:
        self.metrics = Metrics()
        self.cache = Cache(
            directory / "cache",
            cache_size=Size(bytes=cache_size),
            min_free=Size(bytes=0),
            metrics=self.metrics,
        )
        self.index = Index(self.cache.index_directory("source"), "source")
        self.fill = EpochFill(self.index, self.cache)

    def add(self, count: int, size: int = SIZE) -> list[Inode]:
        return add_files(self.index, count, size)

    def wanted(self) -> Iterator[Wanted]:
        """All that is wanted now."""
        while (item := self.fill.next()) is not None:
            if isinstance(item, Wanted):
                yield item

    def keep(self, inode: Inode) -> None:
        os.close(self.cache.publish(inode.digest, memoryview(bytes(inode.size))))

    def close(self) -> None:
        self.index.close()
        self.cache.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, 1 << 30)
    yield made
    made.close()


def miss(world: World, inodes: list[Inode]) -> None:
    for inode in inodes:
        world.fill.missed(inode.parent)


def test_after_a_few_misses_all_that_is_not_here_is_wanted_once(world: World) -> None:
    files = world.add(FILES)
    for inode in files[:FEWEST]:
        world.keep(inode)
    miss(world, files[:FEWEST])
    expected = [Wanted(i.digest, ObjectRef(i.name, i.version, i.size), ROOT) for i in files[FEWEST:]]
    assert list(world.wanted()) == expected
    miss(world, files)
    assert list(world.wanted()) == []


def test_fewer_misses_say_nothing(world: World) -> None:
    miss(world, world.add(FILES)[: FEWEST - 1])
    assert world.fill.next() is None


def test_of_a_large_directory_a_share_must_have_been_missed(world: World) -> None:
    count = int(4 * FEWEST / SHARE)
    files = world.add(count)
    miss(world, files[: 4 * FEWEST - 1])
    assert world.fill.next() is None
    world.fill.missed(ROOT)
    assert len(list(world.wanted())) == count


def test_it_wants_no_more_than_there_is_room_for(tmp_path: Path) -> None:
    """Nothing is to be evicted for what nobody has asked for yet."""
    size = 64 << 10
    world = World(tmp_path, 20 * size)
    try:
        miss(world, world.add(FILES, size)[:FEWEST])
        taken = 0
        for wanted in world.wanted():
            os.close(world.cache.publish(wanted.digest, memoryview(bytes(size))))
            taken += 1
        assert 17 <= taken < 20 and world.metrics.evictions.value == 0
    finally:
        world.close()


def test_the_disk_counts_as_room_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """`min_free` is reached before `cache_size` on a disk that others fill."""
    files = world.add(FILES)
    monkeypatch.setattr(world.cache._space, "_min_free", 1 << 60)
    miss(world, files[:FEWEST])
    assert list(world.wanted()) == []


def test_a_failure_ends_the_fill_and_later_misses_begin_it_again(world: World) -> None:
    files = world.add(FILES)
    miss(world, files[:FEWEST])
    assert isinstance(world.fill.next(), Wanted)
    world.fill.failed(ROOT, RemoteFailed("down"))
    world.fill.missed(ROOT)  # one miss begins nothing, and does not let the old one go on
    assert list(world.wanted()) == []
    miss(world, files[1:FEWEST])
    assert len(list(world.wanted())) == FILES


def test_whoever_asks_gets_a_pause_now_and_then(world: World) -> None:
    """A large directory that is here already must not keep the thread from its readers."""
    files = world.add(3 * BATCH)
    for inode in files:
        world.keep(inode)
    miss(world, files[: int(len(files) * SHARE) + 1])
    assert [world.fill.next() for _ in range(4)] == [LATER, LATER, LATER, None]
