"""Epoch fill: the rest of a directory is wanted once a job has missed enough of it."""

from __future__ import annotations

import os
import random
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
from gpufs.source.base import Entry, Kind, ObjectRef, Page
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


# -- trees


def tree(world: World, directories: int, files: int) -> list[list[Inode]]:
    """Directories 000, 001, ... in the root with so many files each."""
    names = [b"%03d" % n for n in range(directories)]
    found = []
    with world.index.write() as writer:
        root = writer.begin(ROOT, 1)
        writer.add(root, Page(b"", [Entry(name, Kind.DIRECTORY) for name in names], [], True))
        writer.finish(root)
    for name in names:
        inode = world.index.lookup(ROOT, name)
        assert inode is not None
        with world.index.write() as writer:
            listing = writer.begin(inode.number, 1)
            entries = [Entry(b"%03d" % n, Kind.FILE, SIZE, 1, "v") for n in range(files)]
            writer.add(listing, Page(name, entries, [], True))
            writer.finish(listing)
        found.append(world.index.children(inode.number, None, files))
    return found


def test_a_share_of_a_tree_is_enough_in_any_order(world: World) -> None:
    """A directory for each class: no single one is missed often before most of the tree was."""
    files = [file for directory in tree(world, 50, 20) for file in directory]
    share = int(len(files) * SHARE)
    shuffled = random.Random(1).sample(files, len(files))
    miss(world, shuffled[: share - 1])
    assert world.fill.next() is None
    miss(world, shuffled[share - 1 : share])
    wanted = list(world.wanted())
    assert {w.digest for w in wanted} == {file.digest for file in files} and len(wanted) == len(files)
    assert {w.ref.path for w in wanted} >= {b"000/000", b"049/019"}


def test_one_class_after_the_other_is_filled_alone_until_most_were_read(world: World) -> None:
    classes = tree(world, 20, 40)
    wanted = []
    for files in classes:
        miss(world, files[:FEWEST])
        wanted.append(len(list(world.wanted())))
    assert wanted == [40] * 10 + [len(classes) * 40] + [0] * 9


def test_a_tree_with_more_directories_than_files_in_each_counts_too(world: World) -> None:
    classes = tree(world, 400, 2)
    miss(world, [files[0] for files in random.Random(2).sample(classes, 15)])
    assert world.fill.next() is None
    miss(world, [files[1] for files in random.Random(3).sample(classes, 1)])
    assert len(list(world.wanted())) == 800


def test_what_is_being_filled_counts_for_nothing_else(world: World) -> None:
    classes = tree(world, 3, 40)
    miss(world, classes[0][:FEWEST])
    assert len(list(world.wanted())) == 40
    miss(world, classes[0] * 10)
    assert world.fill.next() is None


def test_what_was_not_listed_yet_can_be_filled_later(world: World) -> None:
    [files] = tree(world, 1, 40)
    with world.index.write() as writer:
        root = writer.begin(ROOT, 2)
        names = [Entry(b"000", Kind.DIRECTORY), Entry(b"later", Kind.DIRECTORY)]
        direct = [Entry(b"%03d" % n, Kind.FILE, SIZE, 1, "v") for n in range(100, 110)]
        writer.add(root, Page(b"", direct + names, [], True))
        writer.finish(root)
    in_root = [inode for inode in world.index.children(ROOT, None, 100) if inode.kind is Kind.FILE]
    miss(world, in_root[:FEWEST])
    assert len(list(world.wanted())) == len(files) + len(in_root)
    miss(world, in_root[:FEWEST])
    assert len(list(world.wanted())) == len(files) + len(in_root)
