"""What is guessed from the opens of before, and when nothing is."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from gpufs.fetch.learning import IN_A_ROW, SUCCESSORS, Neighbours, Replay
from gpufs.fetch.orders import History
from gpufs.index import Index, Inode
from tests.unit.fetch.helpers import add_files


def guesses(history: History, replay: Replay, numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Every open is a miss: at which of them it is guessed, and where it would be followed on."""
    found = []
    for at, number in enumerate(numbers):
        before = history.find(number)
        history.record([number])
        start = replay.missed(before)
        if start is not None:
            found.append((at, start))
    return found


def epoch(count: int, seed: int) -> list[int]:
    return random.Random(seed).sample(range(1, count + 1), count)


@pytest.mark.parametrize("count", [200, 3000, 20_000])
def test_an_order_that_repeats_is_followed_soon(count: int) -> None:
    history = History(1 << 20)
    replay = Replay(history)
    order = epoch(count, 1)
    assert guesses(history, replay, order) == []
    at, start = guesses(history, replay, order)[0]
    assert at < 100 and history.numbers(start, start + 3).tolist() == order[at + 1 : at + 4]  # type: ignore


def test_workers_that_swap_files_do_not_hide_that_it_repeats() -> None:
    history = History(1 << 20)
    replay = Replay(history)
    order = epoch(5000, 1)
    place = {number: at for at, number in enumerate(order)}
    swapped = sorted(order, key=lambda n: place[n] + random.Random(n).randrange(64))
    guesses(history, replay, order)
    assert guesses(history, replay, swapped)[0][0] < 150


@pytest.mark.parametrize("count", [2000, 20_000])
def test_another_order_of_the_same_files_is_no_repetition(count: int) -> None:
    history = History(1 << 20)
    replay = Replay(history)
    for seed in range(4):
        assert guesses(history, replay, epoch(count, seed)) == []


def test_what_was_opened_just_now_is_no_repetition() -> None:
    history = History(1 << 20)
    assert guesses(history, Replay(history), [1, 2, 3, 4, 5] * 5) == []


# -- neighbours


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    made = Index(tmp_path / "index", "source")
    yield made
    made.close()


def first_guess(neighbours: Neighbours, files: Sequence[Inode]) -> tuple[int, list[int]] | None:
    for at, file in enumerate(files):
        listing = neighbours.missed(file)
        if listing is not None:
            return at, list(listing.numbers(0, 3))
    return None


def test_files_in_the_order_of_their_names_are_followed(index: Index) -> None:
    files = add_files(index, 1000, 100)
    assert first_guess(Neighbours(index), files[500:]) == (
        IN_A_ROW,
        [file.number for file in files[501 + IN_A_ROW :][:3]],
    )


def test_workers_that_share_a_sequence_are_followed(index: Index) -> None:
    """Eight that take every eighth file each, and eight with a part of it each."""
    files = add_files(index, 1000, 100)
    guess = first_guess(Neighbours(index), [files[at ^ 5] for at in range(1000)])
    assert guess is not None and guess[0] < 3 * SUCCESSORS
    guess = first_guess(Neighbours(index), [files[at % 8 * 100 + at // 8] for at in range(800)])
    assert guess is not None and guess[0] < 3 * SUCCESSORS


def test_a_random_order_is_no_sequence(index: Index) -> None:
    files = add_files(index, 10_000, 100)
    assert first_guess(Neighbours(index), random.Random(1).sample(files, 10_000)) is None
