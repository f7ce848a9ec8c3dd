"""Whole objects into the cache: each fetched once, readers first, and nobody is left without an answer."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpufs.cache import Cache, Purpose
from gpufs.errors import AccessDenied, GpufsError, RemoteFailed, VersionGone
from gpufs.fetch.ahead import LOOKS, RENEWED_SECONDS, Ahead, spare_of
from gpufs.fetch.fill import FEWEST, EpochFill
from gpufs.fetch.messages import Named, Through, Wanted
from gpufs.fetch.objects import INLINE, THREADS, Objects
from gpufs.fetch.traffic import ADVANCE_REQUESTS as AT_ONCE
from gpufs.index import Index, Inode
from gpufs.metrics import Metrics
from gpufs.options import Size
from gpufs.shared import Part, part_of
from gpufs.source.base import ObjectRef
from tests.unit.fetch.helpers import add_files, traffic_of

SIZE = 1000
PATIENCE = 10.0
LOOK_AGAIN = 0.05


def content(name: bytes, size: int) -> bytes:
    return (name * (size // len(name) + 1))[:size]


class FakeDownloads:
    """Downloads that come when the test says so."""

    def __init__(self) -> None:
        self.started: Counter[bytes] = Counter()
        self.on_the_way: dict[bytes, tuple[ObjectRef, Any]] = {}
        self.refused: set[bytes] = set()
        self.damaged: set[bytes] = set()
        self._come: list[tuple[Any, memoryview | None]] = []
        self._ready = os.eventfd(0, os.EFD_NONBLOCK)

    def fileno(self) -> int:
        return self._ready

    def timeout(self) -> float | None:
        return None

    def start(self, ref: ObjectRef, ticket: Any) -> bool:
        if ref.path in self.refused:
            return False
        self.started[ref.path] += 1
        self.on_the_way[ref.path] = ref, ticket
        return True

    def come(self, *paths: bytes, fail: bool = False) -> None:
        for path in paths or list(self.on_the_way):
            ref, ticket = self.on_the_way.pop(path)
            self._come.append((ticket, None if fail else memoryview(content(path, ref.size))))
        os.eventfd_write(self._ready, 1)

    def turn(self) -> list[tuple[Any, memoryview | None]]:
        if self._come:
            os.eventfd_read(self._ready)
        come, self._come = self._come, []
        return come

    def intact(self, ref: ObjectRef, data: memoryview) -> bool:
        return ref.path not in self.damaged

    def close(self) -> None:
        os.close(self._ready)


class FakeSource:
    """read() waits while `gate` is closed, and raises what `errors` has for the path."""

    id = "fake"

    def __init__(self, downloads: FakeDownloads | None) -> None:
        self._downloads = downloads
        self.reads: list[tuple[bytes, float]] = []
        self.errors: dict[bytes, Exception] = {}
        self.gate = threading.Event()
        self.gate.set()

    def prepare(self) -> None:
        pass

    def downloads(self) -> FakeDownloads | None:
        return self._downloads

    def read(
        self, ref: ObjectRef, offset: int, length: int, *, spent: float = 0.0, waited: float = 0.0
    ) -> memoryview:
        self.reads.append((ref.path, spent))
        assert self.gate.wait(PATIENCE)
        if ref.path in self.errors:
            raise self.errors[ref.path]
        return memoryview(content(ref.path, ref.size))[offset : offset + length]


class FakeTier:
    """A shared cache that answers when the test says so."""

    def __init__(self) -> None:
        self.closed = False  # it is left alone
        self.asked: dict[str, tuple[Any, bool]] = {}
        self.kept: dict[str, bytes] = {}
        self.given_up: list[str] = []
        self.flushed = False
        self._come: list[tuple[Any, memoryview | None]] = []
        self._ready = os.eventfd(0, os.EFD_NONBLOCK)

    def fileno(self) -> int:
        return self._ready

    def timeout(self) -> float | None:
        return None

    def ask(self, part: Part, ticket: Any, *, urgent: bool = True) -> bool:
        if not self.closed:
            self.asked[part.name] = ticket, urgent
        return not self.closed

    def come(self, inode: Inode, data: bytes | None) -> None:
        ticket, _ = self.asked.pop(part_for(inode).name)
        self._come.append((ticket, None if data is None else memoryview(data)))
        os.eventfd_write(self._ready, 1)

    def turn(self) -> list[tuple[Any, memoryview | None]]:
        if self._come:
            os.eventfd_read(self._ready)
        come, self._come = self._come, []
        return come

    def keep(self, part: Part, data: memoryview) -> None:
        self.kept[part.name] = bytes(data)

    def give_up(self, part: Part) -> None:
        self.given_up.append(part.name)

    def flush(self, seconds: float) -> None:
        self.flushed = True


def part_for(inode: Inode) -> Part:
    return part_of("fake", inode.digest, ObjectRef(inode.name, inode.version, inode.size))


class World:
    def __init__(
        self,
        work: Path,
        *,
        downloads: bool = True,
        cache_size: int = 1 << 30,
        boot_id: str = "boot",
        compress: bool = False,
        shared: bool = False,
    ) -> None:
        self.metrics = Metrics()
        self.cache = Cache(
            work / "cache",
            cache_size=Size(bytes=cache_size),
            min_free=Size(bytes=0),
            metrics=self.metrics,
            boot_id=boot_id,
        )
        self.index = Index(self.cache.index_directory("fake"), "fake")
        self.downloads = FakeDownloads()
        self.source = FakeSource(self.downloads if downloads else None)
        self.answers: dict[int, bytes | GpufsError | None] = {}
        self.through: dict[int, tuple[Through, GpufsError | None]] = {}
        self.ahead = Ahead(self.index, self.cache, self._told)
        self.traffic = traffic_of(self.metrics)
        self.tier = FakeTier()
        self.objects = Objects(
            self.source,  # type: ignore[arg-type]
            self.cache,
            self.ahead,
            EpochFill(self.index, self.cache),
            self.traffic,
            self.metrics,
            self._answer,
            shared=self.tier if shared else None,  # type: ignore[arg-type]
            compress=compress,
        )

    def _answer(self, asker: int, fd: int | None, error: GpufsError | None) -> None:
        assert asker not in self.answers, "answered twice"
        assert fd is None or error is None
        self.answers[asker] = os.pread(fd, 8 << 20, 0) if fd is not None else error

    def _told(self, asker: int, through: Through, error: GpufsError | None) -> None:
        assert asker not in self.through, "told twice"
        self.through[asker] = through, error

    def files(self, count: int, size: int = SIZE) -> list[Inode]:
        return add_files(self.index, count, size)

    def demand(self, *inodes: Inode, asker: int = 0) -> None:
        """Askers count up from `asker`."""
        for number, inode in enumerate(inodes, asker):
            self.objects.demand(
                number, Wanted(inode.digest, ObjectRef(inode.name, inode.version, inode.size), inode.parent)
            )

    def until(self, condition: Callable[[], object]) -> None:
        """Drive the objects as their process does."""
        poll = select.poll()
        poll.register(self.objects, select.POLLIN)
        end = time.monotonic() + PATIENCE
        while not condition():
            left = end - time.monotonic()
            assert left > 0, f"waited in vain; answered: {sorted(self.answers)}"
            timeout = self.objects.timeout()
            # What threads do before they are through wakes nobody up.
            poll.poll(1000 * (LOOK_AGAIN if timeout is None else min(LOOK_AGAIN, timeout)))
            self.objects.turn()

    def read_paths(self) -> list[bytes]:
        return [path for path, _ in self.source.reads]

    def close(self) -> None:
        self.source.gate.set()
        self.objects._unread.clear()
        for threads in (self.objects._threads, self.objects._keepers, self.objects._few, self.objects._apart):
            threads.shutdown()  # the process needs no such end: it ends as a whole
        self.objects.turn()  # closes what still came
        os.close(self.objects._wake)
        self.objects._poll.close()
        self.downloads.close()
        os.close(self.tier.fileno())
        self.index.close()
        self.cache.close()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def one(**settings: Any) -> World:
        made.append(World(tmp_path, **settings))
        return made[-1]

    yield one
    for world in made:
        world.close()


@pytest.fixture
def world(make: Callable[..., World]) -> World:
    return make()


def test_all_who_ask_for_one_object_get_it_and_it_is_fetched_once(world: World) -> None:
    inode = world.files(1)[0]
    world.demand(inode, inode, inode)
    world.downloads.come(inode.name)
    world.until(lambda: len(world.answers) == 3)
    assert set(world.answers.values()) == {content(inode.name, SIZE)}
    assert world.downloads.started == {inode.name: 1} and not world.source.reads
    assert world.cache.has_object(inode.digest)
    assert world.metrics.prefetched.value == 0


def test_without_downloads_objects_are_read_for_the_first_time(make: Callable[..., World]) -> None:
    world = make(downloads=False)
    files = world.files(3)
    world.demand(*files, files[0])
    world.until(lambda: len(world.answers) == 4)
    assert [world.answers[n] for n in range(4)] == [content(i.name, SIZE) for i in [*files, files[0]]]
    assert sorted(world.source.reads) == [(inode.name, 0.0) for inode in files]


def test_what_downloads_refuse_is_read(world: World) -> None:
    inode = world.files(1)[0]
    world.downloads.refused.add(inode.name)
    world.demand(inode)
    world.until(lambda: world.answers)
    assert world.answers == {0: content(inode.name, SIZE)}
    assert world.source.reads == [(inode.name, 0.0)]


def test_what_the_shared_cache_has_is_not_fetched(make: Callable[..., World]) -> None:
    world = make(shared=True)
    inode = world.files(1)[0]
    world.demand(inode, inode)
    assert world.tier.asked[part_for(inode).name][1], "a reader waits for it"
    world.tier.come(inode, content(inode.name, SIZE))
    world.until(lambda: len(world.answers) == 2)
    assert set(world.answers.values()) == {content(inode.name, SIZE)}
    assert not world.downloads.started and not world.source.reads
    assert not world.tier.kept and not world.tier.given_up
    assert world.cache.has_object(inode.digest)


@pytest.mark.parametrize("downloads", [True, False])
@pytest.mark.parametrize("closed", [True, False])
def test_what_it_does_not_have_is_fetched_and_given_to_it(
    make: Callable[..., World], downloads: bool, closed: bool
) -> None:
    world = make(shared=True, downloads=downloads)
    world.tier.closed = closed
    inode = world.files(1)[0]
    world.demand(inode)
    if not closed:
        assert not world.downloads.started and not world.source.reads
        world.tier.come(inode, None)
    world.until(lambda: world.downloads.started or world.source.reads)
    if downloads:
        world.downloads.come()
    world.until(lambda: world.answers)
    assert world.answers == {0: content(inode.name, SIZE)}
    assert world.tier.kept == {part_for(inode).name: content(inode.name, SIZE)}
    assert not world.tier.given_up


def test_what_cannot_be_fetched_is_given_up(make: Callable[..., World]) -> None:
    """Or other hosts would wait for it."""
    world = make(shared=True, downloads=False)
    inode = world.files(1)[0]
    world.source.errors[inode.name] = VersionGone("gone")
    world.demand(inode)
    world.tier.come(inode, None)
    world.until(lambda: world.answers)
    assert isinstance(world.answers[0], VersionGone)
    assert world.tier.given_up == [part_for(inode).name] and not world.tier.kept


def test_what_is_not_what_the_source_has_is_fetched_after_all(make: Callable[..., World]) -> None:
    """Somebody has put an undamaged entry of other bytes there; the source's checksum tells."""
    world = make(shared=True)
    inode = world.files(1)[0]
    world.downloads.damaged.add(inode.name)
    world.demand(inode)
    world.tier.come(inode, b"?" * SIZE)
    world.until(lambda: world.answers)
    assert world.answers == {0: content(inode.name, SIZE)}
    assert world.read_paths() == [inode.name]
    assert world.tier.kept == {part_for(inode).name: content(inode.name, SIZE)}
    assert world.metrics.shared_corrupt.value == 1


def test_at_the_end_what_waits_is_written(make: Callable[..., World]) -> None:
    world = make(shared=True)
    world.objects.close()
    assert world.tier.flushed


def test_what_came_meanwhile_is_not_fetched(world: World) -> None:
    inode = world.files(1)[0]
    os.close(world.cache.publish(inode.digest, memoryview(b"x" * SIZE)))
    world.demand(inode)
    assert world.answers == {0: b"x" * SIZE}
    assert not world.downloads.started and not world.source.reads


@pytest.mark.parametrize("downloads", [True, False])
def test_what_is_worth_it_is_kept_compressed_and_not_fetched_again(
    make: Callable[..., World], downloads: bool
) -> None:
    """A reader who looked before it was kept asks for it all the same."""
    world = make(compress=True, downloads=downloads)
    inode = world.files(1, 50_000)[0]
    world.demand(inode)
    if downloads:
        world.downloads.come()
    world.until(lambda: 0 in world.answers)
    world.demand(inode, inode, asker=1)
    world.until(lambda: len(world.answers) == 3)
    assert set(world.answers.values()) == {content(inode.name, 50_000)}
    assert world.downloads.started.total() + len(world.source.reads) == 1
    assert world.cache.has_compressed(inode.digest) and world.cache.open_object(inode.digest) is None
    assert world.metrics.compressed.value == 1


def test_a_damaged_compressed_object_is_fetched_again(make: Callable[..., World], tmp_path: Path) -> None:
    world = make(compress=True)
    inode = world.files(1, 50_000)[0]
    world.demand(inode)
    world.downloads.come()
    world.until(lambda: 0 in world.answers)
    (path,) = (tmp_path / "cache/compressed").glob("??/*")
    path.write_bytes(b"damaged")
    world.demand(inode, asker=1)
    world.until(lambda: 1 in world.answers)
    assert world.answers[1] == content(inode.name, 50_000)
    assert world.metrics.corrupt_entries.value == 1


def test_what_is_being_compressed_holds_up_nobody_else(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make(compress=True)
    slow, other = world.files(2, 50_000)
    gate, pack = threading.Event(), world.cache._compression.pack

    def wait_and_pack(digest: bytes, data: memoryview) -> bytes | None:
        assert gate.wait(PATIENCE)
        return pack(digest, data)

    monkeypatch.setattr(world.cache._compression, "pack", wait_and_pack)
    monkeypatch.setattr(world.cache, "promises_compression", lambda data: bytes(data[:6]) == slow.name)
    world.demand(slow, other)
    world.downloads.come()
    world.until(lambda: 1 in world.answers)
    assert 0 not in world.answers
    gate.set()
    world.until(lambda: 0 in world.answers)
    assert world.cache.has_compressed(slow.digest) and not world.cache.has_compressed(other.digest)


@pytest.mark.parametrize("size", [SIZE, INLINE + 1])
@pytest.mark.parametrize("how", ["failed", "damaged"])
def test_a_download_that_brings_nothing_good_is_read_with_its_time_counted(
    world: World, how: str, size: int
) -> None:
    inode = world.files(1, size)[0]
    began = time.monotonic()
    world.demand(inode, inode)
    if how == "damaged":
        world.downloads.damaged.add(inode.name)
    world.downloads.come(inode.name, fail=how == "failed")
    world.until(lambda: len(world.answers) == 2)
    assert set(world.answers.values()) == {content(inode.name, size)}
    ((path, spent),) = world.source.reads
    assert path == inode.name and 0 < spent <= time.monotonic() - began


def test_the_wait_for_a_thread_counts_as_time_spent(world: World) -> None:
    """Or hundreds of readers of a silent server would wait for many deadlines in turn."""
    *first, last = world.files(THREADS + 1)
    world.source.gate.clear()
    world.demand(*first, last)
    came = time.monotonic()
    world.downloads.come(*[inode.name for inode in first], fail=True)
    world.until(lambda: len(world.source.reads) == THREADS)
    world.downloads.come(last.name, fail=True)
    world.objects.turn()
    released = time.monotonic()
    world.source.gate.set()
    world.until(lambda: len(world.answers) == THREADS + 1)
    assert dict(world.source.reads)[last.name] >= released - came


@pytest.mark.parametrize("size", [SIZE, INLINE + 1])
def test_only_small_objects_that_fit_are_kept_by_the_one_thread(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Writing a large one, or evicting others for it, would keep all readers waiting."""
    world = make(cache_size=20 << 20)
    files = world.files(2, size)
    threads: list[threading.Thread] = []
    publish = world.cache.publish

    def published(digest: bytes, data: memoryview, *, purpose: Purpose, compress: bool) -> int:
        threads.append(threading.current_thread())
        return publish(digest, data, purpose=purpose, compress=compress)

    monkeypatch.setattr(world.cache, "publish", published)
    world.demand(files[0])
    world.downloads.come()
    world.until(lambda: 0 in world.answers)
    for piece in (1 << 20, 1 << 12):
        while world.cache.fits(piece):
            os.close(publish(os.urandom(16), memoryview(bytes(piece))))
    world.demand(files[1], asker=1)
    world.downloads.come()
    world.until(lambda: 1 in world.answers)
    ours = [thread is threading.main_thread() for thread in threads]
    assert ours == [size <= INLINE, False]
    assert all(world.answers[n] == content(files[n].name, size) for n in range(2))


@pytest.mark.parametrize("downloads", [True, False])
def test_the_failure_of_a_read_reaches_all_who_asked(make: Callable[..., World], downloads: bool) -> None:
    world = make(downloads=downloads)
    inode, other = world.files(2)
    world.source.errors[inode.name] = AccessDenied("renew the credentials")
    world.demand(inode, inode, other)
    if downloads:
        world.downloads.come(inode.name, fail=True)
        world.downloads.come(other.name)
    world.until(lambda: len(world.answers) == 3)
    assert world.answers[0] is world.answers[1] is world.source.errors[inode.name]
    assert world.answers[2] == content(other.name, SIZE)
    del world.source.errors[inode.name]  # not remembered
    world.demand(inode, asker=3)
    if downloads:
        world.downloads.come(inode.name)
    world.until(lambda: 3 in world.answers)
    assert world.answers[3] == content(inode.name, SIZE)


def test_an_error_in_gpufs_itself_is_answered_too(make: Callable[..., World]) -> None:
    world = make(downloads=False)
    inode = world.files(1)[0]
    world.source.errors[inode.name] = ZeroDivisionError("oops")
    world.demand(inode, inode)
    world.until(lambda: len(world.answers) == 2)
    for answer in world.answers.values():
        assert isinstance(answer, RemoteFailed) and "oops" in str(answer)


@pytest.mark.parametrize("size", [SIZE, INLINE + 1])
@pytest.mark.parametrize("what", ["publish", "intact"])
def test_a_download_that_cannot_be_kept_is_answered_too(
    world: World, monkeypatch: pytest.MonkeyPatch, size: int, what: str
) -> None:
    """No descriptor or memory is left, say: neither may the reader hang nor the process end."""
    inode = world.files(1, size)[0]

    def fail(*_: object, **__: object) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(world.cache if what == "publish" else world.downloads, what, fail)
    world.demand(inode, inode)
    world.downloads.come()
    world.until(lambda: len(world.answers) == 2)
    for answer in world.answers.values():
        assert isinstance(answer, RemoteFailed) and "Too many open files" in str(answer)


def test_other_work_does_not_wait_for_the_source(make: Callable[..., World]) -> None:
    """`gpufs status` is what people ask when a source hangs."""
    world = make(downloads=False)
    files = world.files(THREADS + 1)
    world.source.gate.clear()
    world.demand(*files)
    world.until(lambda: len(world.source.reads) == THREADS)
    done = threading.Event()
    world.objects.in_thread(1000, done.set)
    world.until(lambda: 1000 in world.answers)
    assert done.is_set() and world.answers == {1000: None}


def test_other_work_that_fails_is_answered_too(world: World) -> None:
    def fail() -> None:
        raise ZeroDivisionError("oops")

    world.objects.in_thread(1, fail)
    world.until(lambda: world.answers)
    assert isinstance(world.answers[1], RemoteFailed) and "oops" in str(world.answers[1])


def begin_fill(world: World, files: list[Inode]) -> set[bytes]:
    """Miss the first few; the names that are fetched in advance then."""
    world.demand(*files[:FEWEST])
    world.downloads.come()
    world.until(lambda: len(world.answers) == FEWEST and len(world.downloads.on_the_way) == AT_ONCE)
    return set(world.downloads.on_the_way)


def test_no_more_than_a_few_are_fetched_in_advance_at_once_but_readers_do_not_wait(world: World) -> None:
    files = world.files(200)
    ahead = begin_fill(world, files)
    for _ in range(5):
        world.objects.turn()
    assert len(world.downloads.on_the_way) == AT_ONCE
    late = files[-5:]
    assert not ahead & {inode.name for inode in late}
    world.demand(*late, asker=1000)
    assert len(world.downloads.on_the_way) == AT_ONCE + 5, "readers go first"
    world.downloads.come(*ahead)
    world.until(lambda: world.metrics.prefetched.value == AT_ONCE)
    assert len(world.downloads.on_the_way) == AT_ONCE
    while len(world.downloads.started) < len(files) or world.downloads.on_the_way:
        world.downloads.come()
        world.objects.turn()
    world.until(lambda: len(world.answers) == FEWEST + 5)
    assert set(world.downloads.started.values()) == {1}, "nothing is fetched twice"
    assert all(world.cache.has_object(inode.digest) for inode in files)
    assert world.metrics.prefetched.value == len(files) - FEWEST - 5


def test_a_reader_joins_what_is_on_its_way_in_advance(world: World) -> None:
    files = world.files(100)
    name = min(begin_fill(world, files))
    inode = next(inode for inode in files if inode.name == name)
    world.demand(inode, inode, asker=1000)
    world.downloads.come(name)
    world.until(lambda: 1001 in world.answers)
    assert world.answers[1000] == world.answers[1001] == content(name, SIZE)
    assert world.downloads.started[name] == 1


def test_one_failure_ends_the_fill_of_its_directory_but_not_the_readers(world: World) -> None:
    files = world.files(200)
    ahead = begin_fill(world, files)
    bad = min(ahead)
    world.source.errors[bad] = RemoteFailed("down")
    world.downloads.come(bad, fail=True)
    world.until(lambda: bad in world.read_paths() and len(world.objects._flights) < AT_ONCE)
    started = sum(world.downloads.started.values())
    world.downloads.come()
    world.until(lambda: not world.downloads.on_the_way and not world.objects._flights)
    assert sum(world.downloads.started.values()) == started
    world.demand(files[-1], asker=1000)
    world.downloads.come(files[-1].name)
    world.until(lambda: 1000 in world.answers)
    assert world.answers[1000] == content(files[-1].name, SIZE)


def test_what_waits_to_be_verified_is_not_fetched(tmp_path: Path, make: Callable[..., World]) -> None:
    """After a power cut: what is right on the disk is used, what is damaged is fetched."""
    script = f"""
import os
from pathlib import Path
from tests.unit.fetch.test_objects import World, content
world = World(Path({str(tmp_path)!r}))
for inode in world.files(20):
    os.close(world.cache.publish(inode.digest, memoryview(content(inode.name, 1000))))
world.cache.flush()
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=Path(__file__).parents[3])
    world = make(boot_id="after the power cut")
    files = world.files(20)  # the index is not trusted then
    assert world.cache.verifying and not world.cache.has_object(files[0].digest)
    damaged = next((tmp_path / "cache" / "unverified").rglob(files[0].digest.hex()))
    damaged.write_bytes(b"?" * SIZE)
    world.demand(*files)
    world.until(lambda: len(world.answers) == 20)
    assert [world.answers[n] for n in range(20)] == [content(inode.name, SIZE) for inode in files]
    assert world.source.reads == [(files[0].name, 0.0)] and not world.downloads.started


def ask(world: World, files: list[Inode], *, asker: int = 1, at_once: int = AT_ONCE, soon: int = 0) -> None:
    world.ahead.ask(asker, Named(at_once, tuple(inode.number for inode in files), soon))
    world.objects.turn()


def test_a_batch_is_told_once_when_all_of_it_is_through(world: World) -> None:
    """What is cached, what was fetched for it, what failed and why; and each is fetched once."""
    here, gone, *others = world.files(6)
    os.close(world.cache.publish(here.digest, memoryview(content(here.name, SIZE))))
    world.source.errors[gone.name] = VersionGone("replaced")
    ask(world, [here, gone, *others])
    assert set(world.downloads.on_the_way) == {inode.name for inode in (gone, *others)}
    world.downloads.come(gone.name, fail=True)
    world.downloads.come(*[inode.name for inode in others[:-1]])
    world.until(lambda: world.metrics.prefetched.value == len(others) - 1)
    assert not world.through, "one is still on its way"
    world.downloads.come()
    world.until(lambda: world.through)
    through, error = world.through[1]
    assert through == Through(5, 5 * SIZE, 4, 4 * SIZE, 1)
    assert isinstance(error, VersionGone)
    assert all(world.cache.has_object(inode.digest) for inode in (here, *others))
    assert world.metrics.prefetched.value == len(others) and not world.answers


def test_a_batch_of_what_is_here_or_unknown_is_told_at_once(world: World) -> None:
    files = world.files(3)
    for inode in files:
        os.close(world.cache.publish(inode.digest, memoryview(content(inode.name, SIZE))))
    ask(world, files)
    world.ahead.ask(2, Named(AT_ONCE, ()))
    world.ahead.ask(3, Named(AT_ONCE, (99_999,)))
    world.objects.turn()
    assert world.through[1] == (Through(3, 3 * SIZE), None)
    assert world.through[2] == (Through(), None)
    assert world.through[3][0] == Through(failed=1) and isinstance(world.through[3][1], VersionGone)
    assert not world.downloads.started


def test_readers_and_several_batches_share_what_is_on_its_way(world: World) -> None:
    files = world.files(3)
    world.demand(files[0])
    ask(world, files[:2], asker=1)
    ask(world, files, asker=2)
    world.demand(files[1], asker=1)
    world.downloads.come()
    world.until(lambda: len(world.answers) == 2 and len(world.through) == 2)
    assert world.through[1][0].cached == 2 and world.through[2][0].cached == 3
    assert set(world.downloads.started.values()) == {1}
    assert world.metrics.prefetched.value == 2, "the first was asked for by a reader"


@pytest.mark.parametrize("at_once", [1, 5, AT_ONCE, 2 * AT_ONCE])
def test_no_more_than_was_allowed_are_on_their_way_and_readers_do_not_wait(
    world: World, at_once: int
) -> None:
    files = world.files(150)
    ask(world, files[:100], at_once=at_once)
    assert len(world.downloads.on_the_way) == at_once
    world.demand(files[-1])
    assert files[-1].name in world.downloads.on_the_way
    while not world.through:
        assert len(world.downloads.on_the_way) <= at_once + 1
        world.downloads.come()
        world.objects.turn()
    assert world.through[1] == (Through(100, 100 * SIZE, 100, 100 * SIZE, 0), None)


def test_what_was_named_comes_before_what_may_be_wanted(world: World) -> None:
    files = world.files(200)
    begin_fill(world, files)
    last = files[-AT_ONCE:]
    world.downloads.come(*sorted(world.downloads.on_the_way)[:AT_ONCE])
    ask(world, last)
    assert set(world.downloads.on_the_way) == {inode.name for inode in last}


def test_what_was_named_waits_for_a_reader_and_not_for_a_fill_that_serves_him(world: World) -> None:
    """A fill heeds no reader of its directory: it would take every turn that a warm-up leaves to him."""
    files = world.files(200, 64 << 10)
    filled = begin_fill(world, files)
    (reader, *last) = [inode for inode in files if inode.name not in filled][-40:]
    world.demand(reader, asker=1000)
    ask(world, last)
    world.downloads.come(*filled)
    world.until(lambda: world.metrics.prefetched.value == len(filled))
    named = world.downloads.on_the_way.keys() - {reader.name}
    assert named and named <= {inode.name for inode in last}
    world.until(lambda: world.downloads.come() or world.through)
    assert world.through[1][0].cached == len(last)


def test_after_many_that_are_here_others_get_their_turn(world: World) -> None:
    """Thousands that are cached already must not keep the thread from its readers."""
    files = world.files(LOOKS + 1)
    for inode in files[:-1]:
        os.close(world.cache.publish(inode.digest, memoryview(content(inode.name, SIZE))))
    ask(world, files)
    assert not world.downloads.started and world.objects.timeout() == 0
    world.objects.turn()
    assert list(world.downloads.started) == [files[-1].name]


def test_what_does_not_fit_is_not_fetched_and_nothing_is_evicted(make: Callable[..., World]) -> None:
    size = 64 << 10
    world = make(cache_size=40 * size)
    old, *files = world.files(60, size)
    os.close(world.cache.publish(old.digest, memoryview(bytes(size))))
    ask(world, files)
    while not world.through:
        world.downloads.come()
        world.objects.turn()
    fit = (40 * size - 40 * size // 100 - spare_of(world.cache)) // size - 1
    assert world.through[1] == (Through(fit, fit * size, fit, fit * size, 0), None)
    assert world.downloads.started.total() == fit
    assert world.metrics.evictions.value == 0 and world.cache.has_object(old.digest)


def test_of_a_batch_that_nobody_waits_for_no_more_is_started(world: World) -> None:
    files = world.files(100)
    ask(world, files[:90], at_once=10)
    world.ahead.cancel(1)
    world.ahead.cancel(7)  # of no effect
    ask(world, files[90:], asker=2, at_once=20)
    assert len(world.downloads.on_the_way) == 20
    world.downloads.come()
    world.until(lambda: 2 in world.through)
    assert world.downloads.started.total() == 20
    assert all(world.cache.has_object(inode.digest) for inode in (*files[:10], *files[90:]))


def test_what_is_next_in_an_order_comes_before_what_is_warmed(world: World) -> None:
    files = world.files(40)
    ask(world, files[:30], asker=1, at_once=4)
    ask(world, files[30:], asker=2, at_once=4, soon=1)
    world.until(lambda: world.downloads.come() or 2 in world.through)
    assert 1 not in world.through and list(world.downloads.started)[4:14] == [f.name for f in files[30:]]


def full(world: World, files: list[Inode]) -> list[Inode]:
    """Fill the cache with files that readers have asked for; the others."""
    kept = 0
    while world.cache.room(spare_of(world.cache)) > 0:
        os.close(world.cache.publish(files[kept].digest, memoryview(content(files[kept].name, SIZE))))
        kept += 1
    return files[kept:]


def test_what_is_next_in_an_order_is_staged_when_the_cache_is_full(make: Callable[..., World]) -> None:
    """As far as it can be: what could not be kept would be fetched again when it is read."""
    world = make(cache_size=1 << 20)
    others = full(world, world.files(600))
    ask(world, others[:60], asker=1)
    world.until(lambda: 1 in world.through)
    assert world.through[1][0] == Through(), "nothing is evicted for what may be wanted some time"
    room = world.cache.room_for_staged()
    ask(world, others[:200], asker=2, soon=1)
    world.until(lambda: world.downloads.come() or 2 in world.through)
    through, _ = world.through[2]
    assert 0 < through.fetched <= room // 4096 < 200
    assert through.fetched - 2 <= through.cached <= through.fetched == sum(world.downloads.started.values())


def test_another_order_gets_room_for_staged_objects_of_its_own(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Yet not each of very many that nobody reads."""
    now = time.monotonic()
    monkeypatch.setattr("gpufs.fetch.ahead.time.monotonic", lambda: now)
    begun: list[float] = []
    monkeypatch.setattr(world.cache, "begin_order", lambda: begun.append(now))
    for asker, order in enumerate((1, 2, 2, 3)):
        ask(world, [], asker=asker, soon=order)
    assert not begun
    now += RENEWED_SECONDS + 1
    for asker, order in enumerate((3, 4, 5), 4):
        ask(world, [], asker=asker, soon=order)
    assert len(begun) == 1
