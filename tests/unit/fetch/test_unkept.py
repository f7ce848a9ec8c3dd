"""Chunks the cache could not keep: bounded in bytes, the latest used of them stay."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from gpufs.fetch.fetcher import UnkeptChunks


def key(number: int) -> tuple[bytes, int]:
    return b"digest", number


def test_the_least_recently_used_go_first() -> None:
    chunks = UnkeptChunks(30)
    for number in range(3):
        chunks.put(key(number), memoryview(bytes([number]) * 10))
    assert chunks.get(key(0)) == b"\0" * 10
    chunks.put(key(3), memoryview(b"x" * 10))
    assert [key(n) in chunks for n in range(4)] == [True, False, True, True]
    assert chunks.get(key(1)) is None


def test_one_chunk_is_always_kept_however_large() -> None:
    """Or whoever fetched it could never be given it."""
    chunks = UnkeptChunks(10)
    for number in range(3):
        chunks.put(key(number), memoryview(bytes(100)))
        assert [key(n) in chunks for n in range(3)] == [n == number for n in range(3)]


@given(
    st.integers(1, 50),
    st.lists(st.tuples(st.booleans(), st.integers(0, 8), st.integers(0, 20)), max_size=60),
)
def test_never_more_than_the_limit_and_never_other_bytes(
    limit: int, steps: list[tuple[bool, int, int]]
) -> None:
    chunks = UnkeptChunks(limit)
    newest: dict[int, bytes] = {}
    for turn, (put, number, size) in enumerate(steps):
        if put:
            newest[number] = bytes([turn]) * size
            chunks.put(key(number), memoryview(newest[number]))
            assert chunks.get(key(number)) == newest[number]
        elif (data := chunks.get(key(number))) is not None:
            assert data == newest[number]
        held = [n for n in range(9) if key(n) in chunks]
        assert sum(len(newest[n]) for n in held) <= limit or len(held) == 1
