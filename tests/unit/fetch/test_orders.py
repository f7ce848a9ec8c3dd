"""Orders: what stands at which position, and where an inode is found in them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufs.fetch.orders import BATCH, SPARSE, SPARSE_FROM, Announced, History, Listing
from gpufs.index import ROOT, Index
from tests.unit.fetch.helpers import add_files


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    made = Index(tmp_path / "index", "source")
    yield made
    made.close()


def test_an_announced_order_grows_and_is_searched() -> None:
    order = Announced()
    numbers = range(10, 10 + 2 * SPARSE_FROM)
    order.extend(numbers[:100])
    order.extend(numbers[100:])
    assert list(order.numbers(95, 105)) == list(numbers[95:105])
    assert list(order.numbers(len(numbers) - 1, len(numbers) + 5)) == [numbers[-1]]
    assert all(order.find(numbers[at]) == at for at in range(SPARSE_FROM))
    found = [at for at in range(SPARSE_FROM, len(numbers)) if order.find(numbers[at]) is not None]
    assert all(order.find(numbers[at]) == at for at in found)
    assert len(found) == pytest.approx(SPARSE_FROM / SPARSE, abs=1), "a bounded part of the memory"


def test_every_shard_of_an_order_can_be_found() -> None:
    for stride in (2, 3, 8, 16, 64):
        order = Announced()
        order.extend(range(1, stride * 2 * SPARSE_FROM, stride))
        numbers = order.numbers(SPARSE_FROM, SPARSE_FROM + 4 * SPARSE)
        assert sum(order.find(number) is not None for number in numbers) == 4


def test_the_history_keeps_the_last_files_and_no_more() -> None:
    history = History(100)
    for at in range(250):
        history.record([at])
        low = max(0, at - 99)
        assert list(history.numbers(0, 1000)) == list(range(low, at + 1))
        assert list(history.numbers(at - 20, at - 10)) == [n for n in range(at - 20, at - 10) if n >= low]
    assert history.end == 250
    assert [history.find(n) for n in range(250)] == [None] * 150 + list(range(150, 250))


def test_the_history_finds_the_last_time() -> None:
    history = History(100)
    history.record([1, 2, 3, 1])
    assert history.find(1) == 3
    history.record([2, 4])
    assert history.find(2) == 4 and history.find(3) == 2


def test_a_listing_gives_the_files_behind_a_name(index: Index) -> None:
    files = add_files(index, 2 * BATCH + 10, 100)
    listing = Listing(index, ROOT, files[9].name)
    numbers = [inode.number for inode in files[10:]]
    assert list(listing.numbers(0, 5)) == numbers[:5]
    assert list(listing.numbers(BATCH - 1, BATCH + 1)) == numbers[BATCH - 1 : BATCH + 1]
    assert list(listing.numbers(len(numbers) - 1, len(numbers) + 50)) == numbers[-1:]
    assert list(listing.numbers(len(numbers) + 50, len(numbers) + 60)) == []
