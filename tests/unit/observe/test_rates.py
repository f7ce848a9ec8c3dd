"""What happened between two moments."""

from __future__ import annotations

import pytest

from gpufs.observe.figures import Process
from gpufs.observe.rates import Interval, summary
from tests.unit.observe.helpers import figures


def test_rates_are_of_the_time_between() -> None:
    before = figures(10.0, counters={"opens": 100, "hits": 100, "remote_bytes": 5})
    now = figures(
        12.0,
        counters={
            "opens": 300, "hits": 260, "misses": 40, "passthrough_opens": 120, "fast_path_opens": 20,
            "remote_bytes": 1005, "prefetched_used": 30, "prefetched_wasted": 10,
        },
        times={"miss_wait": [0.1] * 40},
    )  # fmt: skip
    found = summary(Interval(before, now))
    assert (found.opens, found.misses, found.remote_bytes) == (100, 20, 500)
    assert found.hit_ratio == 160 / 200
    assert (found.kernel_share, found.fast_path_share, found.filesystem_share) == (0.6, 0.1, 0.1)
    assert found.miss_p50 == pytest.approx(0.1, rel=0.42) and found.waiting == pytest.approx(2.0)
    assert found.prefetch_value == 0.75 and found.fetch_p50 is None


def test_of_nothing_there_are_no_shares_and_no_percentiles() -> None:
    found = summary(Interval(figures(1.0), figures(2.0)))
    assert found.hit_ratio is found.kernel_share is found.miss_p99 is found.prefetch_value is None
    assert found.opens == 0 and found.stalls == []


def test_a_daemon_that_has_started_anew_counts_from_zero() -> None:
    before = figures(10.0, counters={"opens": 100}, processes=[Process(7, "a", 50.0, 0.0, 9, 0)])
    now = figures(
        11.0,
        counters={"opens": 3},
        times={"miss_wait": [0.5]},
        processes=[Process(7, "a", 0.5, 0.0, 1, 0)],
        started="2",
    )
    found = summary(Interval(before, now))
    assert found.opens == 3 and found.waiting == pytest.approx(0.5)
    assert found.stalls[0].now == 0.5


def test_how_much_each_process_has_waited_lately() -> None:
    before = figures(10.0, processes=[Process(7, "a", 50.0, 1.0, 9, 0), Process(8, "b", 1.0, 0.0, 1, 0)])
    now = figures(12.0, processes=[Process(7, "a", 51.0, 1.5, 20, 1), Process(9, "c", 0.5, 0.0, 1, 0)])
    assert [(stall.pid, stall.now) for stall in summary(Interval(before, now)).stalls] == [
        (7, 0.75),
        (9, 0.25),
    ]


def test_two_moments_that_are_one_are_no_division_by_zero() -> None:
    assert summary(Interval(figures(1.0), figures(1.0))).opens == 0
