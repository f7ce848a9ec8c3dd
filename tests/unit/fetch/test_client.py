"""The fetch process, a real one, over a directory: all that is asked is answered, whatever happens to it."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing

from gpufs.cache import Cache
from gpufs.errors import DeadlineExceeded, RemoteFailed, VersionGone
from gpufs.fetch import client
from gpufs.fetch.client import FetchProcess
from gpufs.fetch.messages import Wanted
from gpufs.fetch.page import FETCH, SharedPage
from gpufs.index import ROOT, Index, Inode
from gpufs.metrics import Metrics
from gpufs.options import MountConfig, Options, Size
from gpufs.source import FileSource, ObjectRef

FILES = 30
PATIENCE = 20.0


def wanted(inode: Inode) -> Wanted:
    return Wanted(inode.digest, ObjectRef(inode.name, inode.version, inode.size), inode.parent)


class World:
    """A directory with files, its index, a cache, and a fetch process for them."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.data = work / "data"
        self.data.mkdir()
        self.files = {b"%03d" % n: os.urandom(1000 + n) for n in range(FILES)}
        for name, data in self.files.items():
            (self.data / os.fsdecode(name)).write_bytes(data)
        self.source = FileSource(self.data, Metrics())
        self.page = SharedPage()
        limits = {"cache_size": Size(bytes=1 << 30), "min_free": Size(bytes=0)}
        self.cache = Cache(work / "cache", metrics=Metrics(), **limits)
        self.index = Index(self.cache.index_directory(self.source.id), self.source.id)
        with self.index.write() as writer:
            listing = writer.begin(ROOT, 1)
            for page in self.source.list(b""):
                writer.add(listing, page)
            writer.finish(listing)
        self.inodes = {inode.name: inode for inode in self.index.children(ROOT, None, FILES)}
        options = replace(Options(), cache_dir=work / "cache", **limits)  # type: ignore[arg-type]
        self.config = MountConfig(str(self.data), "/nowhere", options)
        self.fetch = FetchProcess(self.config.to_json(), self.page)
        self.deaths = 0

    @property
    def metrics(self) -> Metrics:
        """What the fetch process has counted."""
        return Metrics(self.page.counted(FETCH))

    def inode(self, number: int) -> Inode:
        return self.inodes[b"%03d" % number]

    async def contents(self, inode: Inode) -> bytes:
        fd = await self.fetch.object(wanted(inode))
        try:
            return os.pread(fd, 1 << 20, 0)
        finally:
            os.close(fd)

    async def check(self, number: int) -> None:
        inode = self.inode(number)
        assert await self.contents(inode) == self.files[inode.name]

    async def started(self, before: int = 0) -> int:
        """The pid of a process that is not `before`."""
        while self.fetch.pid in (0, before):
            await trio.sleep(0.005)
        return self.fetch.pid

    def drive(self, test: Callable[[], Awaitable[None]]) -> None:
        """Run `test` while the process is looked after."""

        def died() -> None:
            self.deaths += 1

        async def main() -> None:
            with trio.fail_after(PATIENCE):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self.fetch.run, died)
                    await test()
                    nursery.cancel_scope.cancel()

        trio.run(main)

    def close(self) -> None:
        self.fetch.close()
        self.page.close()
        self.index.close()
        self.cache.close()
        self.source.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def children() -> list[str]:
    text = "".join(path.read_text() for path in Path("/proc/self/task").glob("*/children"))
    return text.split()


def test_every_object_comes_with_its_bytes_and_is_kept(world: World) -> None:
    async def test() -> None:
        async with trio.open_nursery() as nursery:
            for number in range(FILES):
                nursery.start_soon(world.check, number)
        await world.fetch.settle()
        assert world.metrics.remote_bytes.value == sum(map(len, world.files.values()))
        assert world.metrics.remote_requests.value == FILES, "each was fetched once"
        assert world.cache.usage().objects == FILES, "the catalogue knows them here too"

    world.drive(test)
    assert all(world.cache.has_object(inode.digest) for inode in world.inodes.values())


def test_counters_are_told_once(world: World) -> None:
    async def test() -> None:
        await world.check(0)
        await world.fetch.settle()
        first = world.metrics.snapshot()
        assert first["remote_bytes"] == len(world.files[b"000"])
        await world.fetch.settle()
        assert world.metrics.snapshot() == first

    world.drive(test)


def test_the_rest_of_a_directory_comes_by_itself_after_a_few(world: World) -> None:
    async def test() -> None:
        for number in range(8):
            await world.check(number)
        while world.metrics.prefetched.value < FILES - 8:
            await world.fetch.settle()
        await world.fetch.settle()
        assert world.cache.usage().objects == FILES
        assert world.metrics.remote_requests.value == FILES

    world.drive(test)


def test_errors_of_the_source_arrive_as_what_they_are(world: World) -> None:
    gone, replaced = world.inode(0), world.inode(1)
    (world.data / "000").unlink()
    (world.data / "001").write_bytes(b"other")

    async def test() -> None:
        for inode in (gone, replaced):
            with pytest.raises(VersionGone) as there:
                await world.fetch.object(wanted(inode))
            with pytest.raises(VersionGone) as here:
                world.source.read(ObjectRef(inode.name, inode.version, inode.size), 0, inode.size)
            assert str(there.value) == str(here.value)
        await world.check(2)

    world.drive(test)


def test_another_process_answers_what_a_killed_one_was_asked(world: World) -> None:
    """Also when it is killed with requests in its socket that it has not read."""

    async def test() -> None:
        await world.check(0)
        pid = await world.started()
        os.kill(pid, signal.SIGSTOP)
        async with trio.open_nursery() as nursery:
            for number in range(FILES):
                nursery.start_soon(world.check, number)
            await trio.testing.wait_all_tasks_blocked()
            os.kill(pid, signal.SIGKILL)
        assert await world.started(before=pid)
        assert world.deaths == 1

    world.drive(test)


@pytest.mark.parametrize("number", [signal.SIGCONT, signal.SIGKILL], ids=["late", "killed"])
def test_more_requests_than_the_socket_holds_are_all_answered(world: World, number: int) -> None:
    async def test() -> None:
        pid = await world.started()
        await world.check(0)
        os.kill(pid, signal.SIGSTOP)
        async with trio.open_nursery() as nursery:
            for asker in range(1500):
                nursery.start_soon(world.check, asker % FILES)
            await trio.testing.wait_all_tasks_blocked()
            os.kill(pid, number)

    world.drive(test)


def test_several_at_once_are_had_in_advance_whatever_happens_to_the_process(world: World) -> None:
    """Another process takes over what a killed one had not told; nothing is counted twice."""

    async def test() -> None:
        await world.check(0)
        (world.data / "001").unlink()
        numbers = [world.inode(number).number for number in range(FILES)]
        pid = await world.started()
        os.kill(pid, signal.SIGSTOP)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kill_when_asked, pid)
            through, error = await world.fetch.ahead(numbers, 4)
        assert (through.cached, through.fetched, through.failed) == (FILES - 1, FILES - 2, 1)
        assert through.fetched_bytes == sum(map(len, world.files.values())) - 1000 - 1001
        assert through.cached_bytes == through.fetched_bytes + 1000
        assert isinstance(error, VersionGone)
        await world.fetch.settle()
        assert world.metrics.prefetched.value == FILES - 2

    async def kill_when_asked(pid: int) -> None:
        await trio.testing.wait_all_tasks_blocked()
        os.kill(pid, signal.SIGKILL)

    world.drive(test)


def test_of_several_that_nobody_waits_for_any_more_the_rest_is_not_fetched(world: World) -> None:
    async def test() -> None:
        await world.check(0)
        pid = await world.started()
        os.kill(pid, signal.SIGSTOP)
        numbers = [world.inode(number).number for number in range(FILES)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.fetch.ahead, numbers, 1)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        os.kill(pid, signal.SIGCONT)
        await world.fetch.ahead(numbers[-1:], 1)
        await world.fetch.settle()
        assert world.metrics.remote_requests.value == 2

    world.drive(test)


def test_several_that_end_process_after_process_are_an_error(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PAUSE", 0.01)

    async def test() -> None:
        pid = await world.started()
        useless = shutil.which("false")
        assert useless
        monkeypatch.setattr(sys, "executable", useless)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(RemoteFailed, match=r"^1 wanted in advance: 5 processes"):
            await world.fetch.ahead([world.inode(0).number], 1)

    world.drive(test)


def test_a_request_that_ends_process_after_process_fails_and_the_next_is_answered(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PAUSE", 0.01)

    async def test() -> None:
        python, useless = sys.executable, shutil.which("false")
        assert useless
        pid = await world.started()
        monkeypatch.setattr(sys, "executable", useless)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(RemoteFailed, match=r"^000: 5 processes"):
            await world.fetch.object(wanted(world.inode(0)))
        monkeypatch.setattr(sys, "executable", python)
        await world.check(1)

    world.drive(test)


def test_what_comes_for_an_asker_that_has_gone_is_closed(world: World) -> None:
    async def test() -> None:
        await world.check(0)
        before = descriptors()
        pid = await world.started()
        os.kill(pid, signal.SIGSTOP)
        async with trio.open_nursery() as nursery:
            for number in (0, 1, 2):
                nursery.start_soon(world.fetch.object, wanted(world.inode(number)))
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        os.kill(pid, signal.SIGCONT)
        for number in (0, 1, 2):  # their answers come after those nobody waits for
            await world.check(number)
        assert descriptors() == before

    world.drive(test)


def test_without_a_descriptor_left_the_reader_is_told(world: World) -> None:
    """The kernel delivers such an answer without what should come with it."""

    async def test() -> None:
        await world.check(0)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
        taken = []
        try:
            with suppress(OSError):
                while True:
                    taken.append(os.dup(0))
            with pytest.raises(RemoteFailed, match="open files"):
                await world.fetch.object(wanted(world.inode(1)))
        finally:
            for fd in taken:
                os.close(fd)
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        await world.check(1)

    world.drive(test)


def test_nothing_is_left_after_close(tmp_path: Path) -> None:
    """No process, no descriptor; and the cache is known to be whole."""
    before, processes = descriptors(), children()
    world = World(tmp_path)
    world.drive(lambda: world.check(0))
    assert len(children()) == len(processes) + 1
    world.close()
    assert children() == processes
    assert descriptors() == before
    state = json.loads((tmp_path / "cache" / "state").read_bytes())
    assert state["clean"] and state["catalogued"]


def test_a_process_that_does_not_end_is_killed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "END_PATIENCE", 0.2)
    before = children()

    async def test() -> None:
        await world.check(0)
        os.kill(await world.started(), signal.SIGSTOP)

    world.drive(test)
    world.fetch.close()
    assert children() == before


def test_a_process_that_cannot_be_started_is_an_error_and_no_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No memory for another process, say: the reader is told, and the next one is served when there is."""
    monkeypatch.setattr(client, "PAUSE", 0.01)
    good = sys.executable
    monkeypatch.setattr(client.sys, "executable", "/nonexistent/python")

    async def test() -> None:
        with pytest.raises(RemoteFailed, match="see the log"):
            await world.fetch.object(wanted(world.inode(1)))
        monkeypatch.setattr(client.sys, "executable", good)
        await world.check(2)

    world.drive(test)


def test_objects_come_though_the_cache_directory_was_removed(world: World) -> None:
    """A process started after that opens an index that knows nothing."""

    async def test() -> None:
        await world.check(0)
        shutil.rmtree(world.work / "cache")
        os.kill(await world.started(), signal.SIGKILL)
        await world.check(1)

    world.drive(test)


def test_a_process_that_stands_still_is_not_waited_for_without_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader gets a timeout, what asks for the status is not held up, and the next reader is served."""

    async def test() -> None:
        await world.check(0)
        pid = await world.started()
        os.kill(pid, signal.SIGSTOP)
        monkeypatch.setattr(client, "PATIENCE", 1.0)
        monkeypatch.setattr(client, "SETTLE_PATIENCE", 0.1)
        with trio.fail_after(PATIENCE):
            await world.fetch.settle()
            with pytest.raises(DeadlineExceeded, match=r"^001: the fetch process"):
                await world.fetch.object(wanted(world.inode(1)))
            monkeypatch.undo()
            await world.started(before=pid)
        await world.check(1)

    world.drive(test)
