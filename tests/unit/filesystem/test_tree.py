"""Names: how long an answer holds, who asks the source, and what is said while it is down."""

from __future__ import annotations

import math
import threading
from pathlib import Path

import pytest
import trio
import trio.testing

from gpufs.errors import AccessDenied, DeadlineExceeded, IndexUnwritable, NotFound, RemoteFailed, VersionGone
from gpufs.fetch.failures import FAILURE_HOLDS
from gpufs.filesystem.tree import CRAWL_AFTER, DOWN_PAUSE, PATIENCE, Tree
from gpufs.index import ROOT, Change
from gpufs.source.base import Kind
from gpufs.view import FOREVER, attributes_hold
from tests.unit.filesystem.helpers import Clock, FakeSource, World, play


def test_one_listing_answers_for_every_name_of_the_directory(tmp_path: Path) -> None:
    """Names that are there and names that are not: neither costs a request after the first."""
    source = FakeSource({f"d/{n}": b"x" for n in range(50)})

    async def scene(world: World) -> None:
        for n in range(50):
            assert await world.find(f"d/{n}") is not None
            assert await world.find(f"d/missing{n}") is None
        assert len(await world.names("d")) == 50

    play(tmp_path, source, scene)
    assert source.lists == {b"": 1, b"d": 1}


def test_an_answer_holds_for_what_is_left_of_the_ttl(tmp_path: Path) -> None:
    """Also "there is no such name"; and an answer that never expires is not given as infinity."""
    clock = Clock()

    async def scene(world: World) -> None:
        inode, holds = await world.tree.lookup(ROOT, b"a")
        assert inode is not None and 299 < holds <= 300
        clock.pass_by(200)
        for name, there in ((b"a", True), (b"no", False)):
            inode, holds = await world.tree.lookup(ROOT, name)
            assert (inode is not None) is there and 90 < holds <= 100
        assert 90 < (await world.tree.children(ROOT, None, 10))[1] <= 100

    async def forever(world: World) -> None:
        assert (await world.tree.lookup(ROOT, b"a"))[1] == FOREVER

    play(tmp_path, FakeSource({"a": b"1"}), scene, now_ns=clock)
    play(tmp_path, FakeSource({"a": b"1"}), forever, ttl=math.inf)


def test_after_the_ttl_the_new_state_is_seen_and_told(tmp_path: Path) -> None:
    """on_change is told each name whose answer was wrong, "no such name" included, and no other."""
    clock = Clock()
    source = FakeSource({"same": b"1", "other": b"1", "gone": b"1"})

    async def scene(world: World) -> None:
        before = await world.number("other")
        same = await world.number("same")
        source.remove("gone")
        source.put("other", b"2")
        source.put("new", b"1")
        clock.pass_by(299)
        assert await world.names() == ["gone", "other", "same"]
        assert not world.changes
        clock.pass_by(2)
        assert await world.names() == ["new", "other", "same"]
        assert await world.number("other") != before  # one inode is one version
        assert await world.number("same") == same
        assert {(c.parent, c.name) for c in world.changes} == {(ROOT, n) for n in (b"gone", b"other", b"new")}
        assert world.tree.inode(before).version != world.tree.inode(await world.number("other")).version

    play(tmp_path, source, scene, now_ns=clock)
    assert source.lists == {b"": 2}


def test_a_name_may_change_its_type(tmp_path: Path) -> None:
    clock = Clock()
    source = FakeSource({"v": b"file", "w/1": b"x"})

    async def scene(world: World) -> None:
        assert (await world.names(), await world.names("w")) == (["v", "w"], ["1"])
        source.objects = {b"v/1": b"in", b"w": b"file now"}
        clock.pass_by(301)
        v, w = await world.find("v"), await world.find("w")
        assert v is not None and v.kind is Kind.DIRECTORY and w is not None and w.kind is Kind.FILE
        assert await world.names("v") == ["1"]
        assert {Change(ROOT, b"v"), Change(ROOT, b"w")} <= set(world.changes)

    play(tmp_path, source, scene, now_ns=clock)


def test_lookups_in_one_directory_wait_for_one_listing(tmp_path: Path) -> None:
    source = FakeSource({"d/a": b"1"})

    async def scene(world: World) -> None:
        directory = await world.number("d")
        source.hold()
        found: list[bool] = []

        async def look(name: bytes) -> None:
            found.append((await world.tree.lookup(directory, name))[0] is not None)

        async with trio.open_nursery() as nursery:
            for n in range(100):
                nursery.start_soon(look, b"a" if n % 2 else b"b")
            await source.held(1)
            await trio.testing.wait_all_tasks_blocked()
            source.let_go()
        assert sorted(found) == [False] * 50 + [True] * 50

    play(tmp_path, source, scene)
    assert source.lists == {b"": 1, b"d": 1}


def test_a_failure_of_the_first_listing_is_the_readers_and_is_soon_forgotten(tmp_path: Path) -> None:
    """Those who queued behind the first, in the kernel, do not each wait for one more deadline."""
    source = FakeSource({"a": b"1"})
    clock = trio.testing.MockClock()

    async def scene(world: World) -> None:
        for failure in (RemoteFailed("500"), DeadlineExceeded("silence"), AccessDenied("no")):
            source.failure = failure
            with pytest.raises(type(failure)):
                await world.tree.lookup(ROOT, b"a")
            asked = source.lists[b""]
            if not isinstance(failure, AccessDenied):
                with pytest.raises(type(failure)):
                    await world.tree.lookup(ROOT, b"a")
                assert source.lists[b""] == asked
            clock.jump(1.1 * FAILURE_HOLDS)
        source.failure = None
        assert await world.find("a") is not None
        assert world.metrics.stale_served.value == 0

    play(tmp_path, source, scene, clock=clock)


@pytest.mark.parametrize("failure", [RemoteFailed("500"), DeadlineExceeded("silence"), AccessDenied("no")])
def test_while_the_source_is_down_the_old_listing_stays_in_force(tmp_path: Path, failure: Exception) -> None:
    """It is counted, the source is left alone for a while, and asked again after that."""
    clock, times = Clock(), trio.testing.MockClock()
    source = FakeSource({"a": b"1"})

    async def scene(world: World) -> None:
        await world.find("a")
        source.put("b", b"2")
        source.failure = failure
        clock.pass_by(301)
        for served in range(1, 4):
            inode, holds = await world.tree.lookup(ROOT, b"a")
            assert inode is not None and holds == DOWN_PAUSE
            assert await world.find("b") is None
            assert world.metrics.stale_served.value == 2 * served
        assert source.asked["list"] == 2
        times.jump(DOWN_PAUSE)
        assert await world.find("b") is None
        assert source.asked["list"] == 3
        source.failure = None
        times.jump(DOWN_PAUSE)
        assert await world.find("b") is not None

    play(tmp_path, source, scene, now_ns=clock, clock=times)


def test_an_index_that_cannot_be_written_keeps_what_it_has(tmp_path: Path) -> None:
    """The disk of the index is full: known names stay, and neither a crawl nor an ESTALE ends the mount."""
    clock = Clock()
    source = FakeSource({"a": b"1"}, flat=True)

    async def scene(world: World) -> None:
        number = await world.number("a")
        world.index._env.set_mapsize(1 << 18)
        source.objects |= {b"%06d" % n: b"" for n in range(10_000)}
        clock.pass_by(301)
        assert await world.names() == ["a"]
        assert world.metrics.stale_served.value == 1
        await world.tree.crawl()
        await world.tree.distrust(number)
        with pytest.raises(IndexUnwritable, match="is the disk full"):
            await world.tree.refresh(b"")
        assert await world.number("a") == number

    play(tmp_path, source, scene, now_ns=clock)


def test_a_slow_source_costs_a_reader_only_its_patience(tmp_path: Path) -> None:
    """The listing goes on behind the reader's back and its result is used when it comes."""
    clock, times = Clock(), trio.testing.MockClock()
    source = FakeSource({"a": b"1"})

    async def scene(world: World) -> None:
        await world.find("a")
        source.put("b", b"2")
        source.hold()
        clock.pass_by(301)
        answers: list[bool] = []

        async def look() -> None:
            answers.append((await world.tree.lookup(ROOT, b"b"))[0] is not None)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            await source.held(1)
            await trio.testing.wait_all_tasks_blocked()
            times.jump(PATIENCE - 0.1)
            await trio.testing.wait_all_tasks_blocked()
            assert not answers
            times.jump(0.2)
        assert answers == [False] and world.metrics.stale_served.value == 1
        source.let_go()
        await world.settled()
        assert await world.find("b") is not None

    play(tmp_path, source, scene, now_ns=clock, clock=times)
    assert source.lists == {b"": 2}


def test_a_directory_that_vanished_is_gone_and_its_parent_is_asked_again(tmp_path: Path) -> None:
    """With the parent's answer still fresh: the child's listing is what finds out."""
    source = FakeSource({"d/a": b"1", "e": b"2"})

    async def scene(world: World) -> None:
        directory = await world.number("d")
        source.remove("d/a")
        with pytest.raises(NotFound):
            await world.tree.lookup(directory, b"a")
        assert await world.find("d") is None
        assert Change(ROOT, b"d") in world.changes

    play(tmp_path, source, scene)
    assert source.asked["list"] == 3


def test_a_directory_that_became_a_file_is_found_out_in_the_same_way(tmp_path: Path) -> None:
    source = FakeSource({"d/a": b"1"})

    async def scene(world: World) -> None:
        directory = await world.number("d")
        source.objects = {b"d": b"file"}
        with pytest.raises(Exception, match="is a file"):
            await world.tree.lookup(directory, b"a")
        inode = await world.find("d")
        assert inode is not None and inode.kind is Kind.FILE

    play(tmp_path, source, scene)


def test_distrust_lists_the_directory_anew_although_it_never_expires(tmp_path: Path) -> None:
    """A version that is gone: the next lookup finds what took its place, and the kernel asks at all."""
    source = FakeSource({"d/a": b"1", "d/b": b"1"})

    async def scene(world: World) -> None:
        number = await world.number("d/a")
        source.put("d/a", b"22")
        assert await world.number("d/a") == number
        await world.tree.distrust(number)
        assert await world.number("d/a") != number
        assert world.changes.count(Change(await world.number("d"), b"a")) >= 1
        assert source.lists[b"d"] == 2
        # The old inode has no name any more: what happens to it says nothing about the directory.
        await world.tree.distrust(number)
        await world.find("d/a")
        assert source.lists[b"d"] == 2

    play(tmp_path, source, scene, ttl=math.inf)


def test_distrust_makes_the_kernel_ask_for_the_name_again(tmp_path: Path) -> None:
    """Or, with names that are held for ever, a reader of a large file would meet ESTALE for ever."""
    source = FakeSource({"a": b"1"})

    async def scene(world: World) -> None:
        await world.tree.distrust(await world.number("a"))
        assert world.changes == [Change(ROOT, b"a")]

    play(tmp_path, source, scene, ttl=math.inf)


def test_an_inode_the_index_does_not_know_is_stale(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        with pytest.raises(VersionGone):
            world.tree.inode(4711)
        await world.tree.distrust(4711)

    play(tmp_path, FakeSource({}), scene)


def test_reading_a_directory_ends_on_the_listing_it_began_with(tmp_path: Path) -> None:
    """Later pages never wait for the source, however long the reader takes."""
    clock = Clock()
    source = FakeSource({f"{n:03}": b"x" for n in range(100)})

    async def scene(world: World) -> None:
        first, _ = await world.tree.children(ROOT, None, 60)
        clock.pass_by(301)
        source.failure = RemoteFailed("down")
        rest, holds = await world.tree.children(ROOT, first[-1].name, 60)
        assert [c.name for c in (*first, *rest)] == [b"%03d" % n for n in range(100)]
        assert holds <= DOWN_PAUSE

    play(tmp_path, source, scene, now_ns=clock)
    assert source.asked["list"] == 1


@pytest.mark.parametrize("flat", [False, True])
def test_refresh_sees_every_change_at_once(tmp_path: Path, flat: bool) -> None:
    source = FakeSource({"a": b"1", "d/b": b"1", "d/e/c": b"1", "x/y": b"1"}, flat=flat)

    async def scene(world: World) -> None:
        await world.tree.crawl() if flat else await world.find("d/e/c")
        source.put("a", b"2")
        source.put("d/e/c", b"22")
        source.put("d/e/new", b"1")
        source.remove("d/b")
        old = await world.number("a")
        result = await world.tree.refresh(b"d")
        assert await world.names("d") == ["e"] and await world.names("d/e") == ["c", "new"]
        assert result["changes"] == 3
        assert await world.number("a") == old, "beside the refreshed directory nothing changes"
        await world.tree.refresh(b"")
        assert await world.number("a") != old

    play(tmp_path, source, scene, ttl=math.inf)


def test_refresh_of_a_file_lists_the_directory_it_is_in(tmp_path: Path) -> None:
    """Also of a file that appeared after the last listing."""
    source = FakeSource({"d/a": b"1"})

    async def scene(world: World) -> None:
        before = await world.number("d/a")
        source.put("d/a", b"2")
        source.put("d/new", b"2")
        assert await world.find("d/new") is None
        await world.tree.refresh(b"d/new")
        assert await world.find("d/new") is not None and await world.number("d/a") != before
        with pytest.raises(NotFound):
            await world.tree.refresh(b"nowhere/at/all")

    play(tmp_path, source, scene, ttl=math.inf)


def test_refresh_of_a_directory_that_vanished_takes_its_name_away(tmp_path: Path) -> None:
    """A user who refreshes a removed directory wants to see that it is removed, not an error."""
    source = FakeSource({"d/e/a": b"1", "b": b"1"})

    async def scene(world: World) -> None:
        await world.find("d/e/a")
        source.remove("d/e/a")
        await world.tree.refresh(b"d/e")
        assert await world.names() == ["b"]
        assert Change(ROOT, b"d") in world.changes

    play(tmp_path, source, scene, ttl=math.inf)


def test_a_crawl_lists_everything_in_one_walk_and_is_remembered(tmp_path: Path) -> None:
    source = FakeSource({f"d{n}/e/f": b"1" for n in range(20)}, flat=True)

    async def scene(world: World) -> None:
        assert not world.index.crawled()
        await world.tree.crawl()
        assert world.index.crawled()
        for n in range(20):
            assert await world.find(f"d{n}/e/f") is not None
        assert await world.find("d1/e/g") is None

    play(tmp_path, source, scene)
    assert source.asked == {"walk": 1}


def test_a_crawl_that_was_stopped_or_failed_does_not_count(tmp_path: Path) -> None:
    source = FakeSource({"d/e": b"1"}, flat=True)

    async def scene(world: World) -> None:
        source.failure = RemoteFailed("down")
        await world.tree.crawl()
        assert not world.index.crawled()
        source.failure = None
        world.tree.stop()
        await world.tree.crawl()
        assert not world.index.crawled()

    play(tmp_path, source, scene)


def test_listing_many_directories_singly_makes_a_crawl_worth_it(tmp_path: Path) -> None:
    """Only where walking everything is cheap, and one crawl at a time."""
    for flat in (True, False):
        source = FakeSource({f"d{n:02}/f": b"1" for n in range(40)}, flat=flat)

        async def scene(world: World, source: FakeSource = source) -> None:
            for n in range(CRAWL_AFTER + 2):
                await world.find(f"d{n:02}/f")
            await world.settled()
            for n in range(40):
                await world.find(f"d{n:02}/f")

        play(tmp_path / str(flat), source, scene)
        assert source.asked["walk"] == flat
        assert source.asked["list"] <= CRAWL_AFTER + 4 if flat else source.asked["list"] == 41


def test_attributes_of_directories_hold_as_long_as_the_listing_that_told_them(tmp_path: Path) -> None:
    """Those of a file hold for ever: it is one version. The root is told by its own listing."""
    clock = Clock()

    async def scene(world: World) -> None:
        directory, name = await world.find("d"), await world.find("d/f")
        root = world.index.get(ROOT)
        assert directory is not None and name is not None and root is not None
        clock.pass_by(200)
        for inode in (directory, root):
            assert 90 < attributes_hold(inode, world.tree.fresh_for(inode.parent)) <= 100
        assert attributes_hold(name, world.tree.fresh_for(name.parent)) == FOREVER
        clock.pass_by(1000)
        assert attributes_hold(directory, world.tree.fresh_for(ROOT)) == 1.0

    play(tmp_path, FakeSource({"d/f": b"1"}), scene, now_ns=clock)


def test_refresh_tells_what_another_mount_on_the_index_has_found(tmp_path: Path) -> None:
    """Its listing finds nothing new, while the kernel of this mount has the old answers, perhaps for ever."""
    source = FakeSource({"d/same": b"1", "d/other": b"1", "d/gone": b"1"})

    async def scene(world: World) -> None:
        other = Tree(
            source, world.index, math.inf, world.metrics, world.waits, world.nursery, lambda change: None
        )
        d = await world.number("d")
        await world.find("d/same")
        source.remove("d/gone")
        source.put("d/other", b"2")
        source.put("d/new", b"1")
        assert await other.refresh(b"") == {"directories": 2, "changes": 3}
        assert not world.changes
        assert await world.tree.refresh(b"d") == {"directories": 1, "changes": 0}
        expected = sorted(Change(d, name) for name in (b"gone", b"new", b"other"))
        assert sorted(set(world.changes)) == expected
        world.changes.clear()
        await world.tree.refresh(b"")
        assert not world.changes, "told once is enough"

    play(tmp_path, source, scene, ttl=math.inf)


def test_a_stale_version_waits_for_the_writer_of_the_index_without_stopping_others(tmp_path: Path) -> None:
    """A page of a listing is being written: whoever asks for other names meanwhile is answered."""
    source = FakeSource({"a": b"1", "b": b"1"})

    async def scene(world: World) -> None:
        number = await world.number("a")
        writing, done = threading.Event(), threading.Event()

        def write() -> None:
            with world.index.write():
                writing.set()
                assert done.wait(30)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, write)
            await trio.to_thread.run_sync(writing.wait)
            nursery.start_soon(world.tree.distrust, number)
            await trio.testing.wait_all_tasks_blocked()
            assert await world.find("b") is not None
            assert not world.changes
            done.set()
        assert world.changes == [Change(ROOT, b"a")]

    play(tmp_path, source, scene)
