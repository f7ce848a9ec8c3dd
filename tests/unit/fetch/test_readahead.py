"""Read-ahead: nothing for random readers, a window that doubles for sequential ones."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpufs.fetch.readahead import MAX_STREAMS, MAX_WINDOW, ReadAhead


def test_the_first_read_fetches_only_its_own_chunk() -> None:
    assert len(ReadAhead(100).access(0, 0)) == 0


def test_a_sequential_reader_doubles_its_window_up_to_the_limit() -> None:
    ahead = ReadAhead(1000)
    windows = [len(ahead.access(chunk, chunk)) for chunk in range(9)]
    assert windows == [0, 1, 2, 4, 8, 16, 32, 32, 32]
    assert MAX_WINDOW >= 32


def test_reads_within_one_chunk_ask_for_nothing_more() -> None:
    ahead = ReadAhead(100)
    ahead.access(0, 0)
    ahead.access(1, 1)
    assert [len(ahead.access(1, 1)) for _ in range(1000)] == [0] * 1000
    assert ahead.access(2, 2) == range(3, 5)


def test_a_read_across_a_chunk_border_goes_on_with_its_stream() -> None:
    ahead = ReadAhead(100)
    ahead.access(0, 0)
    assert ahead.access(0, 1) == range(2, 3)
    assert ahead.access(1, 2) == range(3, 5)


def test_several_sequential_readers_of_one_file_are_told_apart() -> None:
    ahead = ReadAhead(1000)
    for step in range(6):
        for start in (0, 300, 600):
            window = ahead.access(start + step, start + step)
    assert window == range(606, 606 + 16)


def test_it_never_goes_beyond_the_end() -> None:
    ahead = ReadAhead(5)
    for chunk in range(5):
        window = ahead.access(chunk, chunk)
        assert all(number < 5 for number in window)
    assert len(window) == 0


@given(st.lists(st.integers(0, 10_000), unique=True, max_size=200))
def test_scattered_reads_never_cause_read_ahead(chunks: list[int]) -> None:
    ahead = ReadAhead(100_000)
    for chunk in chunks:
        assert len(ahead.access(chunk * 3, chunk * 3)) == 0
    assert len(ahead._streams) <= MAX_STREAMS
