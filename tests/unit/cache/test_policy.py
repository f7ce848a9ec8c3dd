"""What may be replaced by what: the rules alone, and what they come to in a simulated cache."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufs.cache.ghosts import Ghosts
from gpufs.cache.policy import SPENT, History, Shortage, least_recently_used, needless
from tests.bench.policy_model import Epochs
from tests.unit.cache.helpers import digest_of

SECOND = 10**9
FILES = 1000
RATE = 50  # uses a second: much happens in an epoch


def data_set(name: str, files: int = FILES) -> list[bytes]:
    return [digest_of(f"{name}{number}") for number in range(files)]


def epochs(files: list[bytes], count: int, seed: int = 1) -> Iterator[list[bytes]]:
    choice = random.Random(seed)
    for _ in range(count):
        yield choice.sample(files, len(files))


def ratio(cache: Epochs, epoch: list[bytes]) -> float:
    return sum(map(cache.use, epoch)) / len(epoch)


@pytest.mark.parametrize("share", [0.05, 0.25, 0.5, 0.65, 0.8, 0.9])
@pytest.mark.parametrize("files", [100, FILES])
def test_random_epochs_hit_what_fits_from_the_second_one_on(share: float, files: int) -> None:
    cache = Epochs(int(share * files), rate=RATE)
    first, *others = (ratio(cache, epoch) for epoch in epochs(data_set("a", files), 6))
    assert first == 0 and min(others) >= 0.95 * share


def test_so_do_epochs_that_are_always_in_the_same_order() -> None:
    """After the part that is cached the rest misses in a row, as another data set would."""
    cache, files = Epochs(FILES // 2, rate=RATE), data_set("a")
    assert ratio(cache, files) == 0
    assert all(ratio(cache, files) >= 0.95 * 0.5 for _ in range(5))


@pytest.mark.parametrize("files", [300, 500, FILES, 4 * FILES])
def test_a_job_that_moves_to_another_data_set_has_it_within_one_epoch(files: int) -> None:
    cache = Epochs(FILES // 2, rate=RATE)
    for epoch in epochs(data_set("a"), 3):
        ratio(cache, epoch)
    first, *others = (ratio(cache, epoch) for epoch in epochs(data_set("b", files), 4))
    best = min(1.0, FILES / 2 / files)
    # What was read before the move was noticed comes into the cache with the second epoch.
    unnoticed = (3 * RATE + FILES // 16) / files
    assert first == 0 and others[0] >= best - unnoticed - 0.02
    assert min(others[1:]) >= 0.95 * best


def test_a_job_that_comes_back_has_its_data_set_again() -> None:
    cache = Epochs(FILES // 2, rate=RATE)
    for name in "abab":
        ratios = [ratio(cache, epoch) for epoch in epochs(data_set(name), 4)]
        assert min(ratios[2:]) >= 0.95 * 0.5


@pytest.mark.parametrize("times", [1, 5])
def test_another_job_beside_it_takes_nothing_that_a_job_needs(times: int) -> None:
    cache = Epochs(FILES // 2, rate=RATE)
    for epoch in epochs(data_set("a"), 3):
        ratio(cache, epoch)
    beside = (name for epoch in epochs(data_set("b"), 100, 2) for name in epoch)
    for epoch in epochs(data_set("a"), 3, 3):
        hits = 0
        for name in epoch:
            hits += cache.use(name)
            for _ in range(times):
                cache.use(next(beside))
        assert hits / FILES >= 0.95 * 0.5


def test_when_one_of_two_jobs_ends_the_other_has_the_cache_in_the_end() -> None:
    cache = Epochs(FILES // 2, rate=RATE)
    for epoch in epochs(data_set("a"), 3):
        ratio(cache, epoch)
    for a, b in zip(*(next(epochs(data_set(name), 1)) for name in "ab"), strict=True):
        cache.use(a), cache.use(b)
    assert [ratio(cache, epoch) for epoch in epochs(data_set("b"), 7, 2)][-1] >= 0.95 * 0.5


# The history


def used(history: History, before: int | None, *, kept: bool = True) -> int:
    tick = history.advance(1)
    history.used(tick, before, kept=kept)
    return tick


def test_nothing_is_needless_while_nothing_is_known() -> None:
    history = History(1000)
    for _ in range(10_000):
        used(history, None, kept=False)
    history.settle(100, 100 * SECOND)
    assert history.needless_before <= 1000


def test_an_era_counts_only_after_so_many_uses_and_so_much_time() -> None:
    history = History(1000)
    old = used(history, None)
    used(history, old)
    used(history, 900)  # from before there was a history
    moved = history.clock
    history.settle(800, 1 * SECOND)
    for _ in range(101):
        used(history, None, kept=False)
    history.settle(800, 3 * SECOND)
    assert history.needless_before <= SPENT + 1
    history.settle(800, 4 * SECOND)
    assert history.needless_before == moved


def test_a_use_of_what_was_abandoned_takes_the_judgement_back() -> None:
    history = History(1000)
    old = used(history, None)
    used(history, 900)
    history.settle(8, 1 * SECOND)
    for _ in range(100):
        used(history, None, kept=False)
    history.settle(8, 5 * SECOND)
    assert history.needless_before > old
    used(history, old, kept=False)
    assert history.needless_before > old, "what is not here is of the job before, or was evicted since"
    used(history, old)
    assert history.needless_before <= old


def test_what_is_idle_for_longer_than_any_interval_is_needless() -> None:
    history = History(1000)
    unused = used(history, None)
    loop = [used(history, None) for _ in range(100)]
    for _ in range(3):
        loop = [used(history, before) for before in loop]
        history.settle(101, 1 * SECOND)
    assert unused < history.needless_before < min(loop)


def test_one_odd_use_of_something_old_does_not_keep_everything_for_as_long() -> None:
    history = History(1000)
    odd = used(history, None)
    loop = [used(history, None) for _ in range(100)]
    for _ in range(50):
        loop = [used(history, before) for before in loop]
        history.settle(101, 1 * SECOND)
    used(history, odd)
    assert history.longest <= 2 * 1.25 * 100


def test_the_history_survives_its_row() -> None:
    history = History(10**18)
    for before in (None, 5, 10**18 + 1):
        used(history, before)
    history.settle(100, 5)
    again = History.unpack(history.pack())
    assert all(getattr(again, name) == getattr(history, name) for name in History.__slots__)


@given(st.dictionaries(st.binary(min_size=16, max_size=16), st.integers(10**18, 10**18 + 10**6)))
def test_a_ghost_is_right_or_forgotten(ticks: dict[bytes, int]) -> None:
    ghosts = Ghosts()
    for digest, tick in ticks.items():
        assert ghosts.get(digest, 10**18) is None
        ghosts.put(digest, tick)
        assert ghosts.get(digest, 10**18 + 10**6) == tick
    assert all(ghosts.get(digest, 10**18 + 10**6) in (None, tick) for digest, tick in ticks.items())


# The victims


class Entry(NamedTuple):
    accessed: int
    charge: int = 10


ENTRIES = [(bytes([number]), Entry(number)) for number in range(10)]


def unused(*_: object) -> bool:
    return False


def test_victims_are_the_least_recently_used_of_what_is_needless() -> None:
    shortage = Shortage(0, 20, 35)
    assert needless(ENTRIES, shortage, unused, before=6) == ([b"\0", b"\1", b"\2", b"\3"], 0)
    assert needless(ENTRIES, shortage, unused, before=2) == ([b"\0", b"\1"], 0)


def test_nothing_is_evicted_when_it_would_not_be_enough() -> None:
    assert needless(ENTRIES, Shortage(0, 25, 40), unused, before=2) == ([], 0)


def test_the_allowance_is_taken_last_and_no_more_of_it_than_needed() -> None:
    assert needless(ENTRIES, Shortage(0, 25, 90), unused, 2, allowance=30) == ([b"\0", b"\1", b"\2"], 10)
    assert needless(ENTRIES, Shortage(0, 55, 90), unused, 2, allowance=30) == ([], 0)


def test_what_is_in_use_is_never_needless_and_goes_last_otherwise() -> None:
    def in_use(digest: bytes, entry: Entry) -> bool:
        return digest < b"\3"

    assert needless(ENTRIES, Shortage(0, 10, 10), in_use, before=5)[0] == [b"\3"]
    assert least_recently_used(ENTRIES[:5], 30, in_use) == [b"\3", b"\4", b"\0"]
