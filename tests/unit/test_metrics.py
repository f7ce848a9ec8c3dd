"""Counters and times: nothing is lost between threads and processes; percentiles are near the truth."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import hypothesis.strategies as st
import pytest
from hypothesis import given

from gpufs.fetch.page import FETCH, FILESYSTEM, SharedPage
from gpufs.metrics import BOUNDS, Metrics


def test_what_several_threads_count_adds_up() -> None:
    metrics = Metrics()

    def work(_: int) -> None:
        metrics.remote_requests.add()
        metrics.fetch_time.observe(0.001)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(5000)))
    assert metrics.remote_requests.value == 5000
    assert metrics.fetch_time.times.count == 5000
    assert metrics.fetch_time.times.seconds == pytest.approx(5.0, rel=1e-3)


def test_another_process_sees_what_is_counted_and_its_successor_goes_on_from_there() -> None:
    page = SharedPage()
    mine, theirs = Metrics(page.counted(FILESYSTEM)), Metrics(page.counted(FETCH))
    other = SharedPage(page.fd)
    for _ in range(2):  # two processes after each other
        there = Metrics(other.counted(FETCH))
        for number, counter in enumerate(there.counters.values(), 1):
            counter.add(number)
        there.miss_wait.observe(0.5)
    expected = {name: 2 * number for number, name in enumerate(theirs.counters, 1)}
    assert theirs.snapshot() == expected
    assert theirs.miss_wait.times.count == 2 and theirs.miss_wait.times.seconds == 1.0
    assert not any(mine.snapshot().values()) and not mine.miss_wait.times.count


@given(st.lists(st.floats(0.0002, 90.0), min_size=1, max_size=300), st.sampled_from([0.05, 0.5, 0.95, 0.99]))
def test_a_percentile_is_right_within_the_width_of_a_bucket(values: list[float], share: float) -> None:
    metrics = Metrics()
    for value in values:
        metrics.fetch_time.observe(value)
    # what at least this share of them took at most
    exact = sorted(values)[max(0, -int(-share * len(values) // 1) - 1)]
    assert exact / 1.42 <= metrics.fetch_time.times.quantile(share) <= exact * 1.42


def test_percentiles_of_many_are_near_the_truth() -> None:
    metrics, random_ = Metrics(), random.Random(1)
    values = sorted(random_.lognormvariate(-4, 1) for _ in range(20_000))
    for value in values:
        metrics.fetch_time.observe(value)
    for share in (0.5, 0.95, 0.99):
        exact = values[int(share * len(values))]
        assert metrics.fetch_time.times.quantile(share) == pytest.approx(exact, rel=0.05)


@pytest.mark.parametrize("seconds", [0.0, 1e-9, BOUNDS[0], BOUNDS[-1], 1e6])
def test_times_out_of_the_ordinary_are_counted_too(seconds: float) -> None:
    metrics = Metrics()
    metrics.miss_wait.observe(seconds)
    assert metrics.miss_wait.times.count == 1
    assert BOUNDS[0] <= metrics.miss_wait.times.quantile(0.5) <= BOUNDS[-1]


def test_a_percentile_of_nothing_is_zero() -> None:
    assert Metrics().miss_wait.times.quantile(0.99) == 0.0


def test_times_since_then() -> None:
    metrics = Metrics()
    metrics.miss_wait.observe(1.0)
    then = metrics.miss_wait.times
    metrics.miss_wait.observe(3.0)
    since = metrics.miss_wait.times - then
    assert since.count == 1 and since.seconds == pytest.approx(3.0)
    begun_anew = Metrics()
    begun_anew.miss_wait.observe(0.01)
    assert (begun_anew.miss_wait.times - metrics.miss_wait.times).count == 1
