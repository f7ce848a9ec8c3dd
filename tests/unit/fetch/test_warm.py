"""Warm-ups: what is looked at and fetched, in which portions, and when they end."""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from gpufs.cache import CHUNK, Cache
from gpufs.errors import AccessDenied, GpufsError, NotFound, RemoteFailed, UsageError
from gpufs.fetch.fetcher import Fetcher
from gpufs.fetch.messages import Through
from gpufs.fetch.survey import LISTINGS
from gpufs.fetch.warm import (
    BATCH_BYTES,
    BATCH_FILES,
    BATCHES,
    DESPAIR,
    LEASE,
    MOST_AT_ONCE,
    Parts,
    Warmup,
    Warmups,
)
from gpufs.fetch.workers import Workers
from gpufs.index import ROOT, Index, Inode
from gpufs.metrics import Metrics
from gpufs.options import Size
from gpufs.source.base import Entry, Kind, ObjectRef, Page
from tests.unit.fetch.helpers import traffic_of

PATIENCE = 20.0


def file(name: bytes, size: int = 1000) -> Entry:
    return Entry(name, Kind.FILE, size, 1, "v1")


def directory(name: bytes) -> Entry:
    return Entry(name, Kind.DIRECTORY)


class FakeTree:
    """Lists what `contents` says, by directory; `failing` ones cannot be listed."""

    def __init__(self, index: Index, contents: dict[bytes, list[Entry]]) -> None:
        self._index = index
        self.contents = contents
        self.failing: dict[bytes, GpufsError] = {}
        self.listed: list[bytes] = []
        self.at_once = self.most_at_once = 0
        self.distrusted: list[int] = []

    def path(self, number: int) -> bytes:
        return self._index.path(number)

    def fresh_for(self, directory: int) -> float:
        return 1.0 if self._index.listed(directory) else 0.0

    async def lookup(self, parent: int, name: bytes) -> tuple[Inode | None, float]:
        await self.children(parent, None, 1)
        return self._index.lookup(parent, name), 1.0

    async def children(self, parent: int, after: bytes | None, limit: int) -> tuple[list[Inode], float]:
        if self.fresh_for(parent) <= 0:
            path = self._index.path(parent)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            await trio.testing.wait_all_tasks_blocked()
            self.at_once -= 1
            if path in self.failing:
                raise self.failing[path]
            self.listed.append(path)
            with self._index.write() as writer:
                listing = writer.begin(parent, 1)
                writer.add(listing, Page(path, self.contents[path], [], True))
                writer.finish(listing)
        return self._index.children(parent, after, limit), 1.0

    async def distrust(self, number: int) -> None:
        self.distrusted.append(number)


class FakeSource:
    """Of large files: read() waits while `gate` is closed."""

    id = "fake"

    def __init__(self) -> None:
        self.reads: list[tuple[bytes, int]] = []
        self.errors: dict[bytes, Exception] = {}
        self.gate = threading.Event()
        self.gate.set()

    def read(
        self, ref: ObjectRef, offset: int, length: int, *, spent: float = 0.0, waited: float = 0.0
    ) -> memoryview:
        self.reads.append((ref.path, offset // CHUNK))
        assert self.gate.wait(PATIENCE)
        if ref.path in self.errors:
            raise self.errors[ref.path]
        return memoryview(bytes(length))


class World:
    def __init__(self, work: Path, contents: dict[bytes, list[Entry]], cache_size: int = 1 << 30) -> None:
        self.metrics = Metrics()
        self.cache = Cache(
            work / "cache", cache_size=Size(bytes=cache_size), min_free=Size(bytes=0), metrics=self.metrics
        )
        self.index = Index(self.cache.index_directory("fake"), "fake")
        self.tree = FakeTree(self.index, contents)
        self.source = FakeSource()
        self.batches: list[list[bytes]] = []
        self.waiting = self.most_waiting = self.cancelled = 0
        self.gate: trio.Event | None = None  # small files come when it is set
        self.error: GpufsError | None = None
        self.mistake: Exception | None = None
        self.warmups: Warmups

    async def small_files(self, numbers: Sequence[int], at_once: int) -> tuple[Through, GpufsError | None]:
        inodes = [self.index.get(number) for number in numbers]
        self.batches.append([self.index.path(number) for number in numbers])
        self.waiting += 1
        self.most_waiting = max(self.most_waiting, self.waiting)
        try:
            if self.gate is not None:
                await self.gate.wait()
        except trio.Cancelled:
            self.cancelled += 1
            raise
        finally:
            self.waiting -= 1
        if self.mistake is not None:
            raise self.mistake
        if self.error is not None:
            return Through(failed=len(inodes)), self.error
        for inode in inodes:
            assert inode is not None
            self.keep(inode)
        size = sum(inode.size for inode in inodes if inode)
        return Through(len(inodes), size, len(inodes), size, 0), None

    def keep(self, inode: Inode) -> None:
        os.close(self.cache.publish(inode.digest, memoryview(bytes(inode.size))))

    def run(self, test: Callable[[trio.testing.MockClock], Awaitable[None]]) -> None:
        clock = trio.testing.MockClock(rate=0)

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                fetcher = Fetcher(self.source, self.cache, traffic_of(self.metrics), nursery)  # type: ignore[arg-type]
                parts = Parts(
                    self.tree,
                    self.index,
                    self.cache,
                    fetcher,
                    self.small_files,
                    self.metrics,
                    nursery,
                    Workers(2),
                )
                self.warmups = Warmups(parts)
                await test(clock)
                nursery.cancel_scope.cancel()

        trio.run(main, clock=clock)

    async def begun(self, *paths: bytes, at_once: int = 8, dry_run: bool = False) -> tuple[int, Warmup]:
        number = self.warmups.start(at_once, dry_run=dry_run)
        warmup = self.warmups.get(number)
        assert await warmup.add(paths or (b"",), only_files=False) == []
        warmup.go()
        return number, warmup

    async def done(self, *paths: bytes, at_once: int = 8) -> dict[str, Any]:
        _, warmup = await self.begun(*paths, at_once=at_once)
        await until(lambda: warmup.state == "done")
        return warmup.progress()

    def close(self) -> None:
        self.source.gate.set()
        self.index.close()
        self.cache.close()


async def until(condition: Callable[[], object]) -> None:
    """Threads are at work: the mock clock says nothing about how long."""
    for _ in range(int(PATIENCE * 1000)):
        if condition():
            return
        await trio.to_thread.run_sync(threading.Event().wait, 0.001)
    raise AssertionError("waited in vain")


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def one(contents: dict[bytes, list[Entry]], **settings: Any) -> World:
        made.append(World(tmp_path, contents, **settings))
        return made[-1]

    yield one
    for world in made:
        world.close()


Make = Callable[..., World]


def test_everything_below_is_found_and_what_was_never_listed_is_listed(make: Make) -> None:
    """Several directories at once; each file and each directory once, however often it was named."""
    contents = {b"": [directory(b"a"), file(b"f")], b"a": [directory(b"%03d" % n) for n in range(40)]}
    contents |= {b"a/%03d" % n: [file(b"x"), file(b"y", 0)] for n in range(40)}
    world = make(contents)

    async def test(_: object) -> None:
        report = await world.done(b"a", b"a/007", b"a/003/x", b"f")
        assert (report["files"], report["here"]) == (81, 40), "empty files are always here"
        assert report["cached"] == 81 and report["complete"] and report["error"] is None
        assert sorted(world.tree.listed) == sorted(contents)
        assert world.tree.most_at_once == LISTINGS
        fetched = [path for batch in world.batches for path in batch]
        assert fetched[:2] == [b"a/003/x", b"f"], "files that were named come first"
        assert sorted(fetched) == sorted([b"f", *(b"a/%03d/x" % n for n in range(40))])

    world.run(test)


def test_a_directory_that_cannot_be_listed_leaves_it_incomplete(make: Make) -> None:
    world = make({b"": [directory(b"bad"), directory(b"good")], b"good": [file(b"x")]})
    world.tree.failing[b"bad"] = AccessDenied("not for you")

    async def test(_: object) -> None:
        report = await world.done()
        assert (report["files"], report["cached"], report["complete"]) == (1, 1, False)
        assert report["error"] == "not for you"

    world.run(test)


def test_what_is_not_there_is_told(make: Make) -> None:
    world = make({b"": [directory(b"d"), file(b"f")], b"d": [file(b"g")]})

    async def test(_: object) -> None:
        warmup = world.warmups.get(world.warmups.start(1, dry_run=False))
        assert await warmup.add([b"d", b"x", b"f/y", b"", b"d/g"], only_files=False) == [1, 2]
        assert await warmup.add([b"d", b"d/g", b"z/z"], only_files=True) == [0, 2]

    world.run(test)


def test_small_files_are_asked_for_in_portions(make: Make) -> None:
    """So that there is progress to tell, little is under way after the end, and the others need not wait."""
    big = [file(b"b%02d" % n, CHUNK) for n in range(2 * BATCH_BYTES // CHUNK)]
    small = [file(b"s%05d" % n) for n in range(BATCH_FILES * (BATCHES + 2))]
    world = make({b"": big + small})

    async def test(_: object) -> None:
        world.gate = trio.Event()
        number, warmup = await world.begun()
        await until(lambda: world.waiting == BATCHES)
        await trio.testing.wait_all_tasks_blocked()
        with trio.testing.assert_checkpoints():
            await warmup.changed(0)  # nothing has
        assert world.waiting == BATCHES
        world.gate.set()
        while warmup.state != "done":
            await warmup.changed(1000)  # the clock stands still: it does not wait for that
        await warmup.changed(1000)
        assert warmup.progress()["complete"] and world.most_waiting == BATCHES
        assert [len(batch) for batch in world.batches[:2]] == [BATCH_BYTES // CHUNK] * 2
        assert {len(batch) for batch in world.batches[2:]} == {BATCH_FILES}
        assert world.warmups.get(number) is warmup, "its end can be asked for"

    world.run(test)


def test_a_dry_run_only_counts(make: Make) -> None:
    world = make({b"": [file(b"a"), file(b"b", 3 * CHUNK)]}, cache_size=2 * CHUNK)

    async def test(_: object) -> None:
        _, warmup = await world.begun(dry_run=True)
        await until(lambda: warmup.state == "done")
        report = warmup.progress()
        assert (report["files"], report["cached"], report["fits"]) == (2, 0, False)
        assert report["need"] == 3 * CHUNK + 4096 and report["room"] < 2 * CHUNK
        assert not world.batches and not world.source.reads

    world.run(test)


@pytest.mark.parametrize("how", ["stopped", "left alone"])
def test_it_ends_when_its_command_does(make: Make, how: str) -> None:
    """A command that was killed leaves no warm-up behind."""
    world = make({b"": [file(b"%04d" % n) for n in range(20 * BATCH_FILES)]})

    async def test(clock: trio.testing.MockClock) -> None:
        world.gate = trio.Event()
        number, warmup = await world.begun()
        await until(lambda: world.waiting)
        assert [shown["state"] for shown in world.warmups.shown()] == ["fetching"]
        for _ in range(3):
            clock.jump(LEASE - 1)
            await trio.testing.wait_all_tasks_blocked()
            assert world.warmups.get(number) is warmup
        if how == "stopped":
            warmup.scope.cancel()
        else:
            clock.jump(LEASE + 1)
        await trio.testing.wait_all_tasks_blocked()
        assert world.cancelled == BATCHES and not world.waiting
        assert world.warmups.shown() == []
        with pytest.raises(NotFound, match="what it has fetched is kept"):
            world.warmups.get(number)

    world.run(test)


@pytest.mark.parametrize("at_once", [0, -1, MOST_AT_ONCE + 1])
def test_a_number_of_jobs_that_cannot_be_is_refused(make: Make, at_once: int) -> None:
    world = make({b"": []})

    async def test(_: object) -> None:
        with pytest.raises(UsageError, match="--jobs"):
            world.warmups.start(at_once, dry_run=False)

    world.run(test)


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize(
    ("error", "gives_up"), [(RemoteFailed("down"), True), (AccessDenied("archived"), False)]
)
def test_a_source_that_goes_on_failing_is_not_asked_for_everything(
    make: Make, error: GpufsError, gives_up: bool, large: bool
) -> None:
    """Each object would take its whole deadline. What is refused is refused at once."""
    files = [file(b"%05d" % n, CHUNK + 1 if large else 1) for n in range(10 * DESPAIR)]
    world = make({b"": files}, cache_size=1 << 40)
    world.error = error
    world.source.errors = dict.fromkeys((entry.name for entry in files), error)

    async def test(_: object) -> None:
        report = await world.done()
        assert report["given_up"] is gives_up and report["error"] == str(error)
        assert not report["complete"] and report["cached"] == 0
        if gives_up:
            assert DESPAIR <= report["failed"] < 2 * DESPAIR + BATCHES * BATCH_FILES
        else:
            assert report["failed"] == len(files)

    world.run(test)


@pytest.mark.parametrize("size", [1, CHUNK + 1])
def test_a_mistake_of_ours_ends_the_warm_up_and_not_the_mount(make: Make, size: int) -> None:
    world = make({b"": [file(b"a", size)]})
    world.mistake = world.source.errors[b"a"] = ZeroDivisionError("oops")

    async def test(_: object) -> None:
        report = await world.done()
        assert not report["complete"] and "oops" in report["error"]

    world.run(test)


def test_what_goes_meanwhile_is_not_taken_for_cached(make: Make) -> None:
    """The exit status says what is so at the end."""
    world = make({b"": [file(b"a"), file(b"b")]})

    async def test(_: object) -> None:
        await world.done(b"a")
        world.gate = trio.Event()
        _, warmup = await world.begun()
        await until(lambda: world.waiting)
        a = world.index.lookup(ROOT, b"a")
        assert a is not None and world.cache.evict(a.digest)
        world.gate.set()
        await until(lambda: warmup.state == "done")
        report = warmup.progress()
        assert (report["here"], report["fetched"], report["cached"]) == (1, 1, 1)
        assert not report["complete"] and report["error"] is None

    world.run(test)


def test_large_files_come_chunk_by_chunk_as_many_as_allowed(make: Make) -> None:
    world = make({b"": [file(b"a", 3 * CHUNK + 7), file(b"b", 2 * CHUNK), file(b"c", 2 * CHUNK)]})

    async def test(_: object) -> None:
        world.source.gate.clear()
        _, warmup = await world.begun(at_once=5)
        await until(lambda: len(world.source.reads) == 5)
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(world.source.reads) == [(b"a", 0), (b"a", 1), (b"a", 2), (b"a", 3), (b"b", 0)]
        world.source.gate.set()
        await until(lambda: warmup.state == "done")
        report = warmup.progress()
        assert report["complete"] and (report["fetched"], report["cached"]) == (3, 3)
        assert report["fetched_bytes"] == report["bytes"] == 7 * CHUNK + 7
        assert len(world.source.reads) == len(set(world.source.reads)) == 8
        assert world.metrics.prefetched.value == 3

    world.run(test)


def test_chunks_under_way_are_kept_when_it_ends_and_not_fetched_again(make: Make) -> None:
    world = make({b"": [file(b"a", 10 * CHUNK)]})

    async def test(_: object) -> None:
        world.source.gate.clear()
        _, warmup = await world.begun(at_once=4)
        await until(lambda: len(world.source.reads) == 4)
        warmup.scope.cancel()
        await until(lambda: not world.warmups.shown())
        world.source.gate.set()
        report = await world.done()
        assert report["complete"]
        assert sorted(world.source.reads) == [(b"a", chunk) for chunk in range(10)]

    world.run(test)


def test_what_is_here_of_a_large_file_is_counted_and_leaves_less_to_fetch(make: Make) -> None:
    world = make({b"": [file(b"a", 4 * CHUNK)]}, cache_size=5 * CHUNK)

    async def test(_: object) -> None:
        await world.tree.children(ROOT, None, 1)
        a = world.index.lookup(ROOT, b"a")
        assert a is not None
        partial = world.cache.open_partial(a.digest, a.size)
        for chunk in (0, 2):
            assert partial.write(chunk, memoryview(bytes(CHUNK)))
        partial.close()
        report = await world.done()
        assert (report["here"], report["here_bytes"], report["need"]) == (0, 2 * CHUNK, 2 * CHUNK)
        assert report["fits"] and report["complete"]
        assert sorted(world.source.reads) == [(b"a", 1), (b"a", 3)]
        assert (report["fetched_bytes"], report["cached_bytes"]) == (2 * CHUNK, 4 * CHUNK)

    world.run(test)


def test_large_files_that_do_not_fit_are_left_out_whole(make: Make) -> None:
    world = make(
        {b"": [file(b"a", 3 * CHUNK), file(b"b", 6 * CHUNK), file(b"c", 2 * CHUNK)]}, cache_size=8 * CHUNK
    )

    async def test(_: object) -> None:
        report = await world.done()
        assert not report["fits"] and not report["complete"]
        assert (report["fetched"], report["cached"], report["failed"]) == (2, 2, 0)
        assert {path for path, _ in world.source.reads} == {b"a", b"c"}
        assert world.metrics.evictions.value == 0

    world.run(test)
