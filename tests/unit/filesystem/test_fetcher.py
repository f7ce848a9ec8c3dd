"""Chunks: fetched once each, in the order of their importance."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import trio.testing

from gpufs.cache import CHUNK
from gpufs.errors import VersionGone
from gpufs.fetch.concurrency import Concurrency
from gpufs.fetch.traffic import Importance
from gpufs.shared import Part
from gpufs.source.base import ObjectRef
from tests.unit.filesystem.helpers import BIG, FakeSource, World, content, play

LARGE = content("large", BIG)


def chunks_read(source: FakeSource) -> list[int]:
    return [offset // CHUNK for _, offset, _ in source.reads]


class FakeShared:
    """A shared cache with `parts` (name -> bytes)."""

    def __init__(self) -> None:
        self.parts: dict[str, bytes] = {}
        self.given_up: list[str] = []

    def get(self, part: Part, *, urgent: bool) -> memoryview | None:
        data = self.parts.get(part.name)
        return None if data is None else memoryview(data)

    def keep(self, part: Part, data: memoryview) -> None:
        self.parts[part.name] = bytes(data)

    def give_up(self, part: Part) -> None:
        self.given_up.append(part.name)


def only_one_at_once(concurrency: Concurrency) -> None:
    concurrency._ceiling = concurrency._wall = 1.0
    concurrency._cut_at = time.monotonic()


def test_a_chunk_that_a_reader_wants_does_not_wait_where_it_was_queued_before(tmp_path: Path) -> None:
    """Nor is it fetched twice."""
    source = FakeSource({"large": LARGE})

    async def scene(world: World) -> None:
        inode = await world.find("large")
        assert inode is not None
        ref = ObjectRef(b"large", inode.version, inode.size)
        only_one_at_once(world.traffic.concurrency)
        partial = await world.fetcher.open_partial(inode.digest, inode.size)
        source.hold()
        async with trio.open_nursery() as nursery:
            for number, kind in ((0, Importance.WARM), (1, Importance.WARM), (2, Importance.WARM)):
                nursery.start_soon(world.fetcher.chunk, partial, inode.digest, ref, number, kind)
                await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(world.fetcher.ahead, partial, inode.digest, ref, 3)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(world.fetcher.chunk, partial, inode.digest, ref, 2)
            await trio.testing.wait_all_tasks_blocked()
            await source.held(1)
            source.let_go()
        assert list(dict.fromkeys(chunks_read(source))) == [0, 2, 3, 1]
        assert sum(length for _, _, length in source.reads) == 4 * CHUNK
        assert all(partial.has(number) for number in range(4))
        partial.close()

    play(tmp_path, source, scene)


def test_a_chunk_that_comes_in_pieces_is_whole(tmp_path: Path) -> None:
    """While somebody reads elsewhere, a warm-up asks for less at once."""
    source = FakeSource({"large": LARGE})

    async def scene(world: World) -> None:
        inode = await world.find("large")
        assert inode is not None
        ref = ObjectRef(b"large", inode.version, inode.size)
        partial = await world.fetcher.open_partial(inode.digest, inode.size)
        reader = world.traffic.began(Importance.DEMAND, 1000)
        last = partial.chunks - 1
        for number in (0, last):
            assert await world.fetcher.chunk(partial, inode.digest, ref, number, Importance.WARM) is None
        world.traffic.ended(reader, succeeded=True)
        assert chunks_read(source).count(0) > 1
        assert await world.read(inode.number, 0, CHUNK) == LARGE[:CHUNK]
        assert await world.read(inode.number, last * CHUNK, CHUNK) == LARGE[last * CHUNK :]
        world.files.release(inode.number)
        partial.close()

    play(tmp_path, source, scene)


def test_chunks_come_from_the_shared_cache_or_go_there(tmp_path: Path) -> None:
    """Also when they are asked for in pieces; what cannot be fetched is given up."""
    source = FakeSource({"large": LARGE})
    shared = FakeShared()

    async def first(world: World) -> None:
        inode = await world.find("large")
        assert inode is not None
        world.fetcher._shared = shared  # type: ignore[assignment]
        ref = ObjectRef(b"large", inode.version, inode.size)
        partial = await world.fetcher.open_partial(inode.digest, inode.size)
        reader = world.traffic.began(Importance.DEMAND, 1000)
        assert await world.fetcher.chunk(partial, inode.digest, ref, 0, Importance.WARM) is None
        world.traffic.ended(reader, succeeded=True)
        source.failure = VersionGone("gone")
        with pytest.raises(VersionGone):
            await world.fetcher.chunk(partial, inode.digest, ref, 1)
        source.failure = None
        partial.close()

    async def second(world: World) -> None:
        inode = await world.find("large")
        assert inode is not None
        world.fetcher._shared = shared  # type: ignore[assignment]
        ref = ObjectRef(b"large", inode.version, inode.size)
        partial = await world.fetcher.open_partial(inode.digest, inode.size)
        source.reads.clear()
        assert await world.fetcher.chunk(partial, inode.digest, ref, 0) is None
        assert not source.reads and partial.has(0)
        partial.close()

    play(tmp_path / "first", source, first)
    (name,) = shared.parts
    assert name.endswith(".0") and shared.parts[name] == LARGE[:CHUNK]
    assert shared.given_up == [name.removesuffix("0") + "1"]
    play(tmp_path / "second", source, second)
