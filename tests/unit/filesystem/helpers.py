"""A source that is a dictionary, with gates to hold its answers back, and the trees and files made of it."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import trio
import trio.testing

from gpufs.cache import CHUNK, Cache, Limit
from gpufs.errors import NotADirectory, NotFound, VersionGone
from gpufs.fetch.fetcher import Fetcher
from gpufs.fetch.messages import Wanted
from gpufs.fetch.page import FILESYSTEM
from gpufs.fetch.workers import Workers
from gpufs.filesystem.files import Files
from gpufs.filesystem.tree import Tree
from gpufs.filesystem.waits import Waits
from gpufs.index import ROOT, Change, Index, Inode
from gpufs.metrics import Metrics
from gpufs.source.base import Abilities, Batch, Entry, Kind, ObjectRef, Page
from tests.unit.fetch.helpers import traffic_of


def version_of(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


class FakeSource:
    """`objects` (path -> bytes) as a tree. `failure`, when set, is what every request raises.

    While `gate` is closed, requests wait in it, but for reads of the first `passing` bytes of an object.
    """

    id = "fake://data"

    def __init__(self, objects: dict[str, bytes], *, flat: bool = False) -> None:
        self.objects = {os.fsencode(path): data for path, data in objects.items()}
        self._versions: dict[bytes, str] = {}  # of contents, for a large one is read chunk by chunk
        self.flat = flat
        self.failure: Exception | None = None
        self.asked: Counter[str] = Counter()
        self.lists: Counter[bytes] = Counter()
        self.reads: list[tuple[bytes, int, int]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.passing = 0
        self.waiting = 0  # requests held by the gate now
        self._changed = threading.Condition()

    @property
    def abilities(self) -> Abilities:
        return Abilities(flat_listing=self.flat, pins_versions=True)

    def put(self, path: str, data: bytes) -> None:
        self.objects[os.fsencode(path)] = data

    def remove(self, path: str) -> None:
        del self.objects[os.fsencode(path)]

    def hold(self) -> None:
        """Let requests wait from now on, until let_go()."""
        self.gate.clear()

    def let_go(self) -> None:
        self.gate.set()

    def wait_until_held(self, count: int) -> None:
        """Worker thread: return once `count` requests are held at the same time."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.waiting >= count, 30), f"{self.waiting} are held"

    async def held(self, count: int) -> None:
        await trio.to_thread.run_sync(self.wait_until_held, count)

    def version(self, data: bytes) -> str:
        if len(data) <= CHUNK:
            return version_of(data)
        return self._versions.setdefault(data[:64], version_of(data))

    def _enter(self, what: str, offset: int | None = None) -> None:
        with self._changed:
            self.asked[what] += 1
        if offset is None or offset >= self.passing:
            self._wait()
        if self.failure is not None:
            raise self.failure

    def _wait(self) -> None:
        with self._changed:
            self.waiting += 1
            self._changed.notify_all()
        assert self.gate.wait(30), "a request was held and forgotten"
        with self._changed:
            self.waiting -= 1

    def check(self) -> None:
        self._enter("check")

    def list(self, directory: bytes) -> Iterator[Page]:
        self._enter("list")
        self.lists[directory] += 1
        if directory in self.objects:
            raise NotADirectory(f"{directory!r} is a file")
        entries = self._entries(directory)
        if directory and not entries:
            raise NotFound(f"no directory {directory!r}")
        yield Page(directory, entries, [], last=True)

    def walk(self) -> Iterator[Batch]:
        self._enter("walk")
        pending = [b""]
        while pending:
            directory = pending.pop(0)
            entries = self._entries(directory)
            yield [Page(directory, entries, [], last=True)]
            head = directory + b"/" if directory else b""
            pending += [head + e.name for e in entries if e.kind is Kind.DIRECTORY]

    def stat(self, path: bytes) -> Entry:
        raise AssertionError("nobody needs stat()")

    def key(self, path: bytes) -> bytes:
        return path

    def prepare(self) -> None:
        pass

    def downloads(self) -> None:
        return None

    def read(
        self, ref: ObjectRef, offset: int, length: int, *, spent: float = 0.0, waited: float = 0.0
    ) -> memoryview:
        self.reads.append((ref.path, offset, length))
        self._enter("read", offset)
        data = self.objects.get(ref.path)
        if data is None or self.version(data) != ref.version or len(data) != ref.size:
            raise VersionGone(f"{ref.path!r} is another version")
        assert offset >= 0 and offset + length <= len(data), "asked beyond the end"
        return memoryview(data)[offset : offset + length]

    def close(self) -> None:
        self.let_go()

    def _entries(self, directory: bytes) -> list[Entry]:
        head = directory + b"/" if directory else b""
        found: dict[bytes, Entry] = {}
        for path, data in self.objects.items():
            name, slash, _ = path.removeprefix(head).partition(b"/")
            if not path.startswith(head):
                continue
            if slash:
                found[name] = Entry(name, Kind.DIRECTORY)
            else:
                found[name] = Entry(name, Kind.FILE, len(data), 1, self.version(data))
        return sorted(found.values(), key=lambda entry: entry.name)


class Clock:
    """The tree's clock: a day behind the real one, so that what it wrote never lies in the future."""

    def __init__(self) -> None:
        self.behind = 86400.0

    def __call__(self) -> int:
        return time.time_ns() - int(self.behind * 1e9)

    def pass_by(self, seconds: float) -> None:
        self.behind -= seconds


class Watcher:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.hits: list[int] = []
        self.misses: list[Inode] = []

    def hit(self, numbers: Sequence[int]) -> None:
        self.hits += numbers

    def missed(self, inode: Inode) -> None:
        self.misses.append(inode)


class World:
    """What a test works with: the parts of a mount, all but FUSE."""

    def __init__(
        self, source: FakeSource, index: Index, cache: Cache, metrics: Metrics, nursery: trio.Nursery,
        ttl: float, now_ns: Callable[[], int],
    ) -> None:  # fmt: skip
        self.source = source
        self.index = index
        self.cache = cache
        self.metrics = metrics
        self.nursery = nursery
        self.changes: list[Change] = []
        self.waits = Waits(metrics, trio.current_time)
        self.tree = Tree(source, index, ttl, metrics, self.waits, nursery, self.changes.append, now_ns)
        self.traffic = traffic_of(metrics, FILESYSTEM)
        self.fetcher = Fetcher(source, cache, self.traffic, nursery)
        self._workers = Workers(8)
        self.watcher = Watcher()
        self.files = Files(
            self.tree, cache, self.fetcher, self.whole_object, self.watcher, metrics, self.waits, nursery
        )

    async def whole_object(self, wanted: Wanted) -> int:
        """What the fetch process does, in a thread."""
        return await self._workers.run(self._fetch, wanted)

    def _fetch(self, wanted: Wanted) -> int:
        fd = self.cache.rescue(wanted.digest)
        if fd is None:
            fd = self.cache.publish(wanted.digest, self.source.read(wanted.ref, 0, wanted.ref.size))
        return fd

    async def find(self, path: str) -> Inode | None:
        """Walk to `path` by lookups, as the kernel does."""
        number = ROOT
        inode = self.index.get(ROOT)
        for name in path.split("/"):
            inode, _ = await self.tree.lookup(number, os.fsencode(name))
            if inode is None:
                return None
            number = inode.number
        return inode

    async def number(self, path: str) -> int:
        inode = await self.find(path)
        assert inode is not None, f"no {path}"
        return inode.number

    async def names(self, path: str = "") -> list[str]:
        number = await self.number(path) if path else ROOT
        children, _ = await self.tree.children(number, None, 1000)
        return [os.fsdecode(child.name) for child in children]

    async def read(self, number: int, offset: int, size: int) -> bytes:
        return bytes(await self.files.read(number, offset, size))

    async def settled(self) -> None:
        """Wait until all background tasks of the test's nursery are done."""
        while self.nursery.child_tasks:
            await trio.to_thread.run_sync(time.sleep, 0.001)  # they wait for threads: no clock tells


def play(
    folder: Path,
    source: FakeSource,
    scene: Callable[[World], Awaitable[None]],
    *,
    ttl: float = 300.0,
    now_ns: Callable[[], int] = time.time_ns,
    cache_size: int = 1 << 30,
    clock: trio.testing.MockClock | None = None,
) -> None:
    """Run `scene` in a world of its own, with time standing still unless the scene moves it."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            try:
                await scene(World(source, index, cache, metrics, nursery, ttl, now_ns))
            finally:
                source.let_go()
            nursery.cancel_scope.cancel()

    metrics = Metrics()
    with _index(folder / "index") as index:
        cache = Cache(
            folder / "cache", cache_size=Limit(cache_size), min_free=Limit(0), metrics=metrics, boot_id="b"
        )
        try:
            trio.run(main, clock=clock or trio.testing.MockClock())
        finally:
            cache.close()


@contextmanager
def _index(folder: Path) -> Iterator[Index]:
    index = Index(folder, FakeSource.id)
    try:
        yield index
    finally:
        index.close()


def content(name: str, size: int) -> bytes:
    """`size` bytes in which no two places look alike."""
    return hashlib.shake_128(name.encode()).digest(size)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


BIG = 10 * CHUNK + 12345
