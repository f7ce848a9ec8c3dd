"""Following an order: what is asked for, how far ahead, and where the reader is."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from gpufs.fetch.following import (
    BEHIND,
    CERTAIN,
    FULL,
    LARGE_CHUNKS,
    MOST,
    PAUSE_SHARE,
    PORTION,
    STRAYS,
    STRIDE,
    WAITING,
    Follower,
    Portion,
)
from gpufs.fetch.orders import Announced

CHUNK = 4 << 20
SIZE = 1000
AMPLE = 1 << 40


class Reader:
    """Reads an order; everything that is asked for comes at once, `cached` is here already."""

    def __init__(self, numbers: Iterable[int], window: int = 256, *, guessed: bool = False) -> None:
        self.numbers = list(numbers)
        order = Announced()
        order.extend(self.numbers)
        self.sizes: dict[int, int] = {}
        self.looked_at = 0
        self.follower = Follower(order, 0, window, self.size_of, guessed=guessed)
        self.asked: list[int] = []
        self.here: set[int] = set()
        self.missed = 0
        self.most_bytes = AMPLE

    def size_of(self, number: int) -> int:
        self.looked_at += 1
        return self.sizes.get(number, SIZE)

    def take(self) -> list[Portion]:
        portions = []
        while (portion := self.follower.take(self.most_bytes)) is not None:
            portions.append(portion)
            self.asked += portion.small + portion.large
        return portions

    def answer(self, portions: list[Portion]) -> None:
        for portion in portions:
            numbers = portion.small + portion.large
            all_here = all(number in self.here for number in numbers)
            self.here.update(numbers)
            self.follower.answered(portion, all_here=all_here)

    def serve(self) -> None:
        while portions := self.take():
            self.answer(portions)

    def read(self, numbers: Iterable[int]) -> None:
        self.serve()
        for number in numbers:
            missed = number not in self.here
            self.missed += missed
            self.here.add(number)
            self.follower.seen(number, missed=missed)
            self.serve()


def test_all_is_asked_for_once_in_order_and_nobody_waits() -> None:
    numbers = random.Random(1).sample(range(1, 10**6), 3000)
    reader = Reader(numbers)
    reader.read(numbers)
    assert reader.asked == numbers and not reader.missed


def test_it_stays_a_window_ahead() -> None:
    reader = Reader(range(1, 3000))
    for at in range(1000):
        reader.read([at + 1])
        ahead = len(reader.asked) - reader.follower.position
        assert FULL // 2 < ahead <= FULL
    assert reader.follower.position == 1000


def test_no_more_waits_for_an_answer_than_is_of_use() -> None:
    reader = Reader(range(1, 3000), window=MOST)
    assert sum(portion.files for portion in reader.take()) == WAITING == len(reader.asked)
    assert reader.take() == []


def test_the_window_grows_while_readers_have_to_wait() -> None:
    reader = Reader(range(1, 20000))
    for number in reader.numbers[:10000]:
        reader.follower.seen(number, missed=True)
    assert reader.follower.window == MOST


def test_the_window_of_a_guess_grows_as_it_is_used_up_to_a_point() -> None:
    reader = Reader(range(1, 5000), window=8)
    reader.serve()
    assert len(reader.asked) == 8
    reader.read(reader.numbers[:2000])
    assert reader.follower.window == FULL and not reader.missed


def test_bytes_ahead_are_bounded() -> None:
    reader = Reader(range(1, 3000))
    reader.most_bytes = 20 * SIZE
    for at in range(500):
        reader.read([at + 1])
        assert len(reader.asked) - reader.follower.position <= 20
    assert not reader.missed


@pytest.mark.parametrize("workers", [2, 8])
def test_workers_that_take_turns_are_one_reader(workers: int) -> None:
    """A DataLoader's: each reads a batch of its own, all at the same time."""
    numbers = random.Random(2).sample(range(1, 10**6), 8192)
    batch = 64
    reader = Reader(numbers)
    reader.serve()
    for start in range(0, len(numbers), batch * workers):
        group = [numbers[start + w * batch : start + (w + 1) * batch] for w in range(workers)]
        reader.read(number for turn in zip(*group, strict=True) for number in turn)
    assert sorted(reader.asked) == sorted(set(reader.asked)), "asked for twice"
    assert reader.missed < 0.05 * len(numbers)
    assert reader.follower.position == len(numbers)


def test_a_reader_that_goes_on_elsewhere_is_found() -> None:
    """A job that resumes from a checkpoint; and one that begins anew."""
    numbers = random.Random(3).sample(range(1, 10**6), 50_000)
    reader = Reader(numbers)
    reader.read(numbers[:100])
    for start in (40_000, 0):
        before = reader.missed
        reader.read(numbers[start : start + 2000])
        assert reader.follower.position == start + 2000
        assert reader.missed - before < 20 * STRAYS


def test_the_opens_of_others_change_nothing() -> None:
    reader = Reader(range(1, 3000))
    for at in range(1000):
        reader.read([at + 1])
        reader.follower.seen(10**7 + at, missed=True)
    assert reader.follower.position == 1000 and not reader.missed and not reader.follower.ended


def test_a_guess_ends_when_files_are_opened_in_another_order() -> None:
    numbers = random.Random(4).sample(range(1, 10**6), 20_000)
    reader = Reader(numbers, window=64, guessed=True)
    reader.read(numbers[:1000])
    assert not reader.follower.ended
    others = random.Random(5).sample(numbers, 20_000)
    for count, number in enumerate(others):  # noqa: B007
        reader.follower.seen(number, missed=True)
        if reader.follower.ended:
            break
    assert count < 300 and reader.take() == []


def test_a_guess_survives_local_swaps() -> None:
    numbers = list(range(1, 5000))
    reader = Reader(numbers, window=64, guessed=True)
    swapped = sorted(numbers, key=lambda number: number + random.Random(number).randrange(100))
    reader.read(swapped)
    assert not reader.follower.ended and reader.missed < 0.1 * len(numbers)


def test_what_is_all_here_is_hardly_looked_at() -> None:
    reader = Reader(range(1, 20_001))
    reader.here.update(reader.numbers)
    reader.read(reader.numbers)
    assert reader.looked_at < CERTAIN + 2 * PORTION + WAITING + len(reader.numbers) // STRIDE + 1


def test_what_is_not_here_after_all_is_found_in_time() -> None:
    reader = Reader(range(1, 20_001))
    reader.here.update(reader.numbers[:10_000])
    reader.read(reader.numbers)
    assert not reader.missed


def test_of_large_files_the_first_chunks_count() -> None:
    reader = Reader(range(1, 100))
    reader.sizes = dict.fromkeys(reader.numbers, 100 * CHUNK)
    reader.most_bytes = 8 * LARGE_CHUNKS * CHUNK
    portions = reader.take()
    assert [n for portion in portions for n in portion.large] == reader.numbers[:8]
    assert not any(portion.small for portion in portions)


def test_what_cannot_be_fetched_is_passed_over() -> None:
    """Directories, empty files, and what is no longer in the index."""
    reader = Reader(range(1, 500))
    reader.sizes = dict.fromkeys(range(1, 500, 2), 0)
    reader.read(range(2, 500, 2))
    assert reader.asked == list(range(2, 500, 2)) and not reader.missed


def test_the_reader_is_not_lost_far_behind_what_was_asked_for() -> None:
    """A source that is too slow: what many readers have passed is not fetched for them any more."""
    reader = Reader(range(1, 20_000))
    portions = reader.take()
    for number in reader.numbers[:10_000]:
        reader.follower.seen(number, missed=True)
    reader.answer(portions)
    assert reader.take()[0].start >= 10_000 - BEHIND


def test_without_room_it_waits_until_the_reader_has_gone_on() -> None:
    reader = Reader(range(1, 3000))
    first, *others = reader.take()
    for portion in (first, *others):
        reader.follower.answered(portion, all_here=False, later=portion is first)
    assert reader.take() == []
    for number in range(1, 1 + 256 // PAUSE_SHARE):
        assert reader.take() == []
        reader.follower.seen(number, missed=False)
    again = reader.take()
    assert again[0].small[0] == 1 + 256 // PAUSE_SHARE, "what was read meanwhile is not asked for"


def test_what_readers_have_fetched_themselves_is_not_asked_for() -> None:
    """It may not be here any more: a cache that is full keeps it no longer than it is read."""
    reader = Reader(range(1, 3000), window=8)
    for number in range(5, 200):
        reader.follower.seen(number, missed=True)
    reader.serve()
    assert reader.asked[:5] == [1, 2, 3, 4, 200]
